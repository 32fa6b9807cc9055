package natscalls_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/calls"
	"github.com/shallot-nats/shallot/pipeline/calls/natscalls"
)

// world is an embedded server with the stream of stories.
type world struct {
	t   *testing.T
	srv *embed.Server
	js  jetstream.JetStream
}

func newWorld(t *testing.T, l natscalls.Limits) *world {
	t.Helper()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	w := &world{t: t, srv: srv}
	w.js, err = jetstream.New(w.conn())
	require.NoError(t, err)
	if l.Age == 0 {
		l = natscalls.Limits{Age: time.Hour, Bytes: 64 << 20}
	}
	_, err = natscalls.Provision(t.Context(), w.js, "", l)
	require.NoError(t, err)
	return w
}

func (w *world) conn() *nats.Conn {
	w.t.Helper()
	nc, err := jet.Connect(jet.ConnOptions{Name: w.t.Name(), InProcess: w.srv, Direct: true})
	require.NoError(w.t, err)
	w.t.Cleanup(nc.Close)
	return nc
}

func (w *world) recorder(o calls.Options) *calls.Recorder {
	w.t.Helper()
	nc := w.conn()
	o.Send = nc.Publish
	if o.Sample == 0 {
		o.Sample = 1
	}
	o.Changes = true
	r := calls.New(o)
	w.t.Cleanup(r.Close)
	stop, err := natscalls.Serve(nc, "", r, func(h nats.MsgHandler) nats.MsgHandler { return h })
	require.NoError(w.t, err)
	w.t.Cleanup(stop)
	require.NoError(w.t, nc.Flush())
	return r
}

func (w *world) lookup() *natscalls.Lookup { return natscalls.NewLookup(w.conn(), "", true) }

// nodes starts a node of the bus for each part of an installation; the first owns the calls and is returned.
func (w *world) nodes(target pipeline.TargetFunc, stages ...pipeline.Stage) *bus.Node {
	w.t.Helper()
	cfg := bus.Config{ModelClasses: []string{"openai"}, ToolClasses: []string{"go"}}
	require.NoError(w.t, bus.Provision(w.t.Context(), w.js, cfg))
	start := func(o bus.Options) *bus.Node {
		o.Config, o.Conn = cfg, w.conn()
		o.Manager = &pipeline.Manager{}
		for _, s := range stages {
			require.NoError(w.t, o.Manager.Register(s, true))
		}
		o.Classify = func(*messages.Call) (string, error) { return "openai", nil }
		n, err := bus.New(w.t.Context(), o)
		require.NoError(w.t, err)
		require.NoError(w.t, n.Start(context.WithoutCancel(w.t.Context())))
		w.t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_ = n.Stop(ctx)
		})
		return n
	}
	nobody := func(pipeline.Stage) bool { return false }
	owner := start(
		bus.Options{Name: "owner", Entry: true, Hosts: nobody, Observer: w.recorder(calls.Options{Name: "owner"})},
	)
	start(bus.Options{Name: "staff"})
	start(bus.Options{Name: "models", Hosts: nobody, Targets: []bus.TargetRole{
		{Kind: messages.Model, Class: "openai", Target: target}}})
	return owner
}

// call runs a call to its end.
func (w *world) call(n *bus.Node, r pipeline.Request) *messages.Call {
	w.t.Helper()
	r.Kind = messages.Model
	if r.Deadline.IsZero() {
		r.Deadline = time.Now().Add(55 * time.Second)
	}
	p, err := n.Accept(w.t.Context(), r)
	require.NoError(w.t, err)
	end, err := p.Wait(w.t.Context(), nil)
	require.NoError(w.t, err)
	return end
}

// story waits until the story of a call is kept.
func (w *world) story(l *natscalls.Lookup, tenant, id string) (out []calls.Story) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		parts, err := l.Get(w.t.Context(), tenant, id)
		out = parts
		return err == nil && parts[len(parts)-1].State == calls.Ended
	}, 30*time.Second, 5*time.Millisecond)
	return out
}

// made is a call as an entry makes it, with two stages on its way.
func made(tenant string) *messages.Call {
	c := messages.NewCall(messages.Model, tenant,
		[]byte(`{"model":"gpt-4o","messages":[{"role":"user","content":"hello"}]}`))
	c.RequestID, c.Deadline = "req-"+c.ID, time.Now().Add(time.Minute)
	c.Slip.Stops = []messages.Stop{{Name: "outer", Order: 5}, {Name: "pii", Order: 10}, {Name: "inner", Order: 20}}
	return c
}

// tell tells a recorder of a whole call.
func tell(r *calls.Recorder, c *messages.Call) {
	w := r.Owns(c, pipeline.Ownership{})
	if c.Fault == nil {
		c.SetReply([]byte(`{"model":"gpt-4o-2024","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}`))
	}
	w.Target(c, pipeline.TargetRun{Class: "openai", Member: "models", Began: time.Now(), Elapsed: time.Millisecond,
		Facts: messages.TargetRun{Provider: "openai", Model: "gpt-4o", Micros: 900}})
	w.Left(c, pipeline.Ended)
}
