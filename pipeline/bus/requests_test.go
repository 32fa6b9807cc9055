package bus_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

func ask(t *testing.T, nc *nats.Conn, subject, body string, h nats.Header) *nats.Msg {
	t.Helper()
	m, err := nc.RequestMsg(&nats.Msg{Subject: subject, Data: []byte(body), Header: h}, 10*time.Second)
	require.NoError(t, err)
	return m
}

// TestTrap_NatsD3_PlainRequestReply: the caller gets the answer, not "+ACK", whatever headers he sends; errors carry the
// service protocol's headers.
func TestTrap_NatsD3_PlainRequestReply(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	tenants := make(chan string, 20)
	target := pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, e pipeline.Emit) error {
		tenants <- c.Tenant
		if m, _ := rawjson.FieldString(c.Request(), "model"); m == "limited" {
			f := messages.NewFault(messages.ProviderLimited, "slow down")
			f.RetryAfter = 2 * time.Second
			return f
		}
		return echo(ctx, c, e)
	})
	w.node(bus.Options{Entry: true, Targets: roles(target), Manager: manager(t, through("a", 10))})
	nc := w.conn()
	m := ask(t, nc, "shallot.v1.model.request", chatBody, nil)
	require.Equal(t, `{"echo":`+chatBody+`}`, string(m.Data))
	require.Equal(t, "a.beforeModel,model,a.afterModel", m.Header.Get("Shallot-Path"), "all stages are on the route")
	require.NotEmpty(t, m.Header.Get("Shallot-Call"))
	require.Equal(t, "default", <-tenants)
	m = ask(t, nc, "shallot.v1.tenant.acme.model.request", chatBody, nil)
	require.Empty(t, m.Header.Get("Nats-Service-Error-Code"))
	require.Equal(t, "acme", <-tenants)
	m = ask(t, nc, "shallot.v1.model.request", chatBody, nats.Header{"Shallot-Tenant": {"acme"}})
	require.Equal(t, "default", <-tenants, "contracts 4: the header is not trusted")
	require.Empty(t, m.Header.Get("Nats-Service-Error-Code"))
	m = ask(t, nc, "shallot.v1.model.request", chatBody, nats.Header{"Foreign": {"1", "2"}, "Nats-Trace-Dest": {"x"}})
	require.Empty(t, m.Header.Get("Nats-Service-Error-Code"), "nats.md D 2: foreign headers with two values harm nobody")
	<-tenants
	for name, h := range map[string]nats.Header{
		"twice, in two spellings": {"Shallot-Session": {"a"}, "shallot-session": {"b"}}, "message id twice": {"Nats-Msg-Id": {"a", "b"}}, "message id with blanks": {"Nats-Msg-Id": {"a b"}},
		"twice": {"Shallot-Session": {"a", "b"}}, "internal": {"Shallot-Stage": {"x"}}, "empty": {"Idempotency-Key": {""}},
	} {
		m = ask(t, nc, "shallot.v1.model.request", chatBody, h)
		require.Equal(t, "400", m.Header.Get("Nats-Service-Error-Code"), name)
		require.NotEmpty(t, m.Header.Get("Nats-Service-Error"), name)
		require.Contains(t, string(m.Data), `"error":{"message":`, name)
	}
	m = ask(t, nc, "shallot.v1.model.request", `{"model":"limited","messages":[]}`, nil)
	if m.Header.Get("Nats-Service-Error-Code") == "429" {
		require.Equal(t, "provider_limited", m.Header.Get("Shallot-Fault"))
		<-tenants
	} else {
		require.Equal(t, "400", m.Header.Get("Nats-Service-Error-Code"))
	}
	m = ask(t, nc, "shallot.v1.model.request", "no JSON", nil)
	require.Equal(t, "400", m.Header.Get("Nats-Service-Error-Code"))
	require.Empty(t, tenants)
	_, err := nc.Request("shallot.v1.model.requets", nil, 5*time.Second)
	require.ErrorIs(t, err, nats.ErrNoResponders, "a typo is told at once")
	m = ask(t, nc, "shallot.v1.tool.request.echo", `{"x":1}`, nil)
	require.Equal(t, `{"echo":{"x":1}}`, string(m.Data))
	w.settled()
}

// TestSubmitOverNATS: the durable form, and asking for its result.
func TestSubmitOverNATS(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	block := make(chan struct{})
	w.node(bus.Options{Entry: true, Manager: manager(t), Targets: roles(pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, e pipeline.Emit) error {
		<-block
		return echo(ctx, c, e)
	}))})
	nc, first := w.conn(), ""
	m := ask(t, nc, "shallot.v1.tenant.acme.model.submit", chatBody, nil)
	require.Equal(t, "accepted", m.Header.Get("Shallot-Status"))
	id := m.Header.Get("Shallot-Call")
	require.Contains(t, string(m.Data), `"result":"shallot.v1.tenant.acme.result.`+id+`"`, "where the tenant may ask")
	for i, key := range []string{"idempotency-key", "Idempotency-Key", "IDEMPOTENCY-KEY", "Nats-Msg-Id"} {
		again := ask(t, nc, "shallot.v1.model.submit", chatBody, nats.Header{key: {"one"}})
		require.Equal(t, "accepted", again.Header.Get("Shallot-Status"))
		require.Contains(t, string(again.Data), `"result":"shallot.v1.result.`)
		if i == 0 {
			first = again.Header.Get("Shallot-Call")
		}
		require.Equal(t, first, again.Header.Get("Shallot-Call"), "the key counts however %s is spelled", key)
	}
	for _, subject := range []string{"shallot.v1.tenant.a=2.result." + id, "shallot.v1.result.a=2", "shallot.v1.tenant.a=2.model.request", "shallot.v1.tool.request.a=2"} {
		bad := ask(t, nc, subject, "{}", nil)
		require.Equal(t, "400", bad.Header.Get("Nats-Service-Error-Code"), subject)
		require.Contains(t, string(bad.Data), "=HH", subject)
	}
	m = ask(t, nc, "shallot.v1.tenant.acme.result."+id, "", nil)
	require.Equal(t, "running", m.Header.Get("Shallot-Status"))
	require.Equal(t, "404", ask(t, nc, "shallot.v1.result."+id, "", nil).Header.Get("Nats-Service-Error-Code"), "another tenant's")
	close(block)
	require.Eventually(t, func() bool {
		return string(ask(t, nc, "shallot.v1.tenant.acme.result."+id, "", nil).Data) == `{"echo":`+chatBody+`}`
	}, 10*time.Second, 10*time.Millisecond)
	w.settled()
}

// TestStreamOverNATS: one message a chunk, an empty one at the end (ADR-47), and what was shown is the final reply.
func TestStreamOverNATS(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	chunk := func(text string) []byte {
		return []byte(`{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"` + text + `"},"finish_reason":null}]}`)
	}
	w.node(bus.Options{Entry: true, Manager: manager(t, through("a", 10)), Targets: roles(pipeline.TargetFunc(func(_ context.Context, c *messages.Call, emit pipeline.Emit) error {
		for _, text := range []string{"one ", "two ", "three"} {
			if err := emit(chunk(text)); err != nil {
				return err
			}
		}
		c.SetReply([]byte(`{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"one two three"},"finish_reason":"stop"}]}`))
		return nil
	}))})
	nc := w.conn()
	sub, err := nc.SubscribeSync(nc.NewInbox())
	require.NoError(t, err)
	require.NoError(t, nc.PublishRequest("shallot.v1.model.request", sub.Subject, []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}`)))
	shown := ""
	for {
		m, err := sub.NextMsg(10 * time.Second)
		require.NoError(t, err)
		require.Empty(t, m.Header.Get("Nats-Service-Error-Code"), string(m.Data))
		if len(m.Data) == 0 {
			require.Empty(t, m.Header, "the end has no headers")
			break
		}
		choices, _ := rawjson.Field(m.Data, "choices")
		for _, c := range rawjson.Elements(choices) {
			delta, _ := rawjson.Field(c, "delta")
			text, _ := rawjson.FieldString(delta, "content")
			shown += text
		}
	}
	require.Equal(t, "one two three", shown)
	w.settled()
}
