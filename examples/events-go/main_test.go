package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/bus/trail"
)

// Events come while the program runs; an audit record comes also if it was written before, and again after a panic. The
// acknowledgements of this program do not disturb those of the stream.
func TestARouterHearsEventsAndEveryAuditRecord(t *testing.T) {
	t.Parallel()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Sync: time.Minute, Port: -1})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	nc, err := jet.Connect(jet.ConnOptions{Name: t.Name(), URL: srv.ClientURL()})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, bus.Provision(t.Context(), js, bus.Config{}))
	records, err := trail.New(nc, slog.New(slog.DiscardHandler))
	require.NoError(t, err)

	told := make(chan string, 10)
	panicked := false
	start := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		router, err := newRouter(ctx, srv.ClientURL(), slog.New(slog.DiscardHandler), func(m *message.Message) error {
			if string(m.Payload) == "2" && !panicked {
				panicked = true
				panic("the first time")
			}
			told <- m.Metadata["subject"] + " " + string(m.Payload)
			return nil
		})
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() { ended <- router.Run(ctx) }()
		<-router.Running()
		return func() {
			cancel()
			require.NoError(t, <-ended)
		}
	}
	const event = "shallot.v1.event.switch {}"
	next := func() string {
		for {
			select {
			case s := <-told:
				if s != event {
					return s
				}
			case <-time.After(time.Minute): // simulated: nothing; it only ends a test that hangs
				t.Fatal("nothing was told")
			}
		}
	}
	records.Publish("shallot.v1.audit.model", "", []byte("1"))
	stop := start()
	require.Equal(t, "shallot.v1.audit.model 1", next())
	require.Eventually(t, func() bool { // an event is for those whose subscription has arrived at the server
		require.NoError(t, nc.Publish("shallot.v1.event.switch", []byte("{}")))
		select {
		case s := <-told:
			return s == event
		case <-time.After(100 * time.Millisecond): // simulated: nothing; then the next event
			return false
		}
	}, time.Minute, time.Millisecond)
	records.Publish("shallot.v1.audit.model", "", []byte("2"))
	require.Equal(t, "shallot.v1.audit.model 2", next())
	stop()
	records.Publish("shallot.v1.audit.control", "", []byte("3"))
	stop = start()
	require.Equal(t, "shallot.v1.audit.control 3", next())
	stop()
	records.Close(t.Context())
	require.Equal(t, trail.State{}, records.State())
}
