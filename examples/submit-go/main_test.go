package main

import (
	"context"
	"testing"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/natsapi"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

const soon = 20 * time.Second

// started is a server with a process that runs calls, and the request ids of those that have run.
func started(t *testing.T) (url string, nc *nats.Conn, ran chan string) {
	t.Helper()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Sync: time.Minute, Port: -1})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	nc, err = jet.Connect(jet.ConnOptions{Name: t.Name(), URL: srv.ClientURL()})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	cfg := bus.Config{ModelClasses: []string{"default"}, AfterOutage: 100 * time.Millisecond}
	require.NoError(t, bus.Provision(t.Context(), js, cfg))
	ran = make(chan string, 10)
	model := func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		c.SetReply([]byte(`{"id":"r","choices":[]}`))
		ran <- c.RequestID
		return nil
	}
	callers := natsapi.New(natsapi.Options{Conn: nc})
	n, err := bus.New(t.Context(), bus.Options{Conn: nc, Config: cfg, Entry: true, Manager: &pipeline.Manager{},
		Callers: callers,
		Targets: []bus.TargetRole{{Kind: messages.Model, Class: "default", Target: pipeline.TargetFunc(model)}}})
	require.NoError(t, err)
	callers.Calls = n
	require.NoError(t, n.Start(context.WithoutCancel(t.Context())))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		_ = n.Stop(ctx)
	})
	return srv.ClientURL(), nc, ran
}

func got[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(soon):
		require.Fail(t, "it did not come")
	}
	return v
}

// letter is the first dead letter.
func letter(t *testing.T, nc *nats.Conn) *nats.Msg {
	t.Helper()
	js, err := nc.JetStream()
	require.NoError(t, err)
	sub, err := js.SubscribeSync("shallot.v1.dead.>", nats.OrderedConsumer())
	require.NoError(t, err)
	m, err := sub.NextMsg(soon)
	require.NoError(t, err)
	return m
}

// Both modes of the publisher hand calls in. With JetStream the acceptance is the acknowledgement, and one message is
// one call, however often it is sent (BU-14).
func TestBothModesOfThePublisherHandCallsIn(t *testing.T) {
	t.Parallel()
	url, _, ran := started(t)
	for name, open := range map[string]func(url string) (*wmnats.Publisher, error){
		"acknowledged": acknowledged, "core": core,
	} {
		m := question("demo/echo", "x")
		for range 2 {
			require.NoError(t, submit(url, open, m), name)
		}
		require.Equal(t, m.UUID, got(t, ran), name)
	}
	require.Empty(t, ran)
}

// What cannot be read is refused where somebody hears it, and else is a dead letter with the reason (BU-14).
func TestWhatCannotBeReadIsNotLost(t *testing.T) {
	t.Parallel()
	url, nc, ran := started(t)
	enveloped := func(open func(url string) (*wmnats.Publisher, error)) error {
		p, err := open(url)
		require.NoError(t, err)
		defer func() { _ = p.Close() }()
		out, err := wmnats.JSONMarshaler{}.Marshal("", question("demo/echo", "x"))
		require.NoError(t, err)
		return p.Publish("shallot.v1.model.submit", message.NewMessage("m", out.Data))
	}
	require.Error(t, enveloped(acknowledged))
	require.NoError(t, enveloped(core))
	m := letter(t, nc)
	require.Equal(t, "shallot.v1.model.submit", m.Header.Get("Shallot-Dead-Subject"))
	require.Contains(t, m.Header.Get("Shallot-Dead-Reason"), "model is missing")
	require.True(t, gjson.GetBytes(m.Data, "Payload").Exists(), "it is kept as it came: %s", m.Data)
	require.Empty(t, ran)
}
