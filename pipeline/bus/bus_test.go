package bus_test

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
)

// world is an embedded server with its streams.
type world struct {
	t   *testing.T
	srv *embed.Server
	cfg bus.Config
	log *slog.Logger
}

func newWorld(t *testing.T, cfg bus.Config) *world {
	t.Helper()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Port: 0, Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	if cfg.ModelClasses == nil {
		cfg.ModelClasses = []string{"default"}
	}
	if cfg.ToolClasses == nil {
		cfg.ToolClasses = []string{"default"}
	}
	w := &world{t: t, srv: srv, cfg: cfg, log: slog.New(slog.DiscardHandler)}
	if os.Getenv("SHALLOT_TEST_LOG") != "" {
		w.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	js, err := jetstream.New(w.conn())
	require.NoError(t, err)
	require.NoError(t, bus.Provision(t.Context(), js, cfg))
	return w
}

func (w *world) conn() *nats.Conn {
	w.t.Helper()
	nc, err := bus.Connect(bus.ConnOptions{Name: w.t.Name(), InProcess: w.srv, Log: w.log})
	require.NoError(w.t, err)
	w.t.Cleanup(nc.Close)
	return nc
}

func (w *world) node(o bus.Options) *bus.Node {
	w.t.Helper()
	o.Config, o.Log = w.cfg, w.log
	if o.Conn == nil {
		o.Conn = w.conn()
	}
	n, err := bus.New(w.t.Context(), o)
	require.NoError(w.t, err)
	require.NoError(w.t, n.Start(w.t.Context()))
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = n.Stop(ctx)
	})
	return n
}

func manager(t *testing.T, stages []pipeline.Stage) *pipeline.Manager {
	t.Helper()
	m := &pipeline.Manager{}
	for _, s := range stages {
		require.NoError(t, m.Register(s, true))
	}
	return m
}

func roles(target pipeline.Target) []bus.TargetRole {
	return []bus.TargetRole{
		{Kind: messages.Model, Class: "default", Target: target}, {Kind: messages.Tool, Class: "default", Target: target},
	}
}

func TestOneCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	target := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		c.SetReply([]byte(`{"echo":` + string(c.Request()) + `}`))
		return nil
	})
	pass := func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }
	n := w.node(bus.Options{Entry: true, Targets: roles(target), Manager: manager(t, []pipeline.Stage{
		{Name: "a", Kind: messages.Model, Order: 10, Before: pass, After: pass},
		{Name: "b", Kind: messages.Model, Order: 20, Before: pass, After: pass},
	})})
	c, err := n.Call(t.Context(), messages.NewCall(messages.Model, "default", []byte(`{"model":"m","messages":[{"role":"user","content":"x"}]}`)))
	require.NoError(t, err)
	require.Nil(t, c.Fault)
	require.Equal(t, `{"echo":{"model":"m","messages":[{"role":"user","content":"x"}]}}`, string(c.ReplyBytes()))
	require.Equal(t, []string{"a.beforeModel", "b.beforeModel", "model", "b.afterModel", "a.afterModel"}, c.Slip.Path)
	require.Eventually(t, func() bool { return n.Held() == 0 }, 5*time.Second, 10*time.Millisecond)
	for _, name := range []string{bus.CallsStream, bus.HopsStream} {
		require.Eventually(t, func() bool {
			s, err := n.JetStream().Stream(t.Context(), name)
			return err == nil && s.CachedInfo().State.Msgs == 0
		}, 5*time.Second, 20*time.Millisecond, "every lease of %s is settled", name)
	}
}

// caller makes the suite's calls through a node, with the caller's own deadline and id.
type caller struct{ n *bus.Node }

func (c caller) Call(ctx context.Context, call *messages.Call) (*messages.Call, error) {
	return c.n.Call(ctx, call)
}

func (c caller) CallStream(ctx context.Context, call *messages.Call, onChunk func([]byte)) (*messages.Call, error) {
	p, err := c.n.Accept(ctx, pipeline.Request{Kind: call.Kind, Tool: call.Tool, Body: call.Request(), Tenant: call.Tenant,
		Session: call.Session, Run: call.Run, Deadline: call.Deadline, Stream: true})
	if err != nil {
		return nil, err
	}
	return p.Wait(ctx, func(d pipeline.Delta) { onChunk(d.Chunk) })
}

func TestRunnerOnTheEmbeddedBus(t *testing.T) {
	t.Parallel()
	for _, fused := range []bool{false, true} {
		t.Run(map[bool]string{false: "spread", true: "fused"}[fused], func(t *testing.T) {
			t.Parallel()
			pipelinetest.Runner(t, func(t *testing.T, f pipelinetest.Fixture) pipeline.Caller {
				w := newWorld(t, bus.Config{Fusion: fused})
				return caller{w.node(bus.Options{Entry: true, Targets: roles(f.Target), Manager: manager(t, f.Stages)})}
			})
		})
	}
}

func TestRunnerWithEachPartInANodeOfItsOwn(t *testing.T) {
	t.Parallel()
	pipelinetest.Runner(t, func(t *testing.T, f pipelinetest.Fixture) pipeline.Caller {
		w := newWorld(t, bus.Config{})
		for _, s := range f.Stages {
			w.node(bus.Options{Manager: manager(t, f.Stages), Hosts: func(o pipeline.Stage) bool { return o.Name == s.Name }})
		}
		nobody := func(pipeline.Stage) bool { return false }
		w.node(bus.Options{Manager: manager(t, f.Stages), Hosts: nobody, Targets: roles(f.Target)})
		return caller{w.node(bus.Options{Manager: manager(t, f.Stages), Hosts: nobody, Entry: true})}
	})
}

func TestStoreOnKV(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	js, err := jetstream.New(w.conn())
	require.NoError(t, err)
	n := 0
	pipelinetest.Store(t, func(t *testing.T) pipeline.Store {
		n++
		name := "suite_" + string(rune('a'+n%26)) + string(rune('a'+n/26))
		_, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: name, LimitMarkerTTL: time.Minute})
		require.NoError(t, err)
		b, err := bus.OpenBucket(t.Context(), js, name)
		require.NoError(t, err)
		return b
	})
}

func TestHoldIsParkedAndGoesOnWithItsAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	ask := func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
		var answer string
		if !c.Noted(bus.NoteAnswer, &answer) {
			return pipeline.Hold([]byte(`"may I?"`)), nil
		}
		if answer != "yes" {
			return pipeline.Stop(), nil
		}
		return pipeline.Continue(), nil
	}
	target := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		c.SetReply([]byte(`{"done":true}`))
		return nil
	})
	n := w.node(bus.Options{Entry: true, Targets: roles(target), Manager: manager(t, []pipeline.Stage{
		{Name: "gate", Kind: messages.Tool, Order: 10, Before: ask},
	})})
	p, err := n.Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "x", Body: []byte(`{}`)})
	require.NoError(t, err)
	_, err = p.Wait(t.Context(), nil)
	require.ErrorIs(t, err, pipeline.ErrHeld, "HI-12, contracts 9: a synchronous face does not wait")
	_, err = n.Result(t.Context(), "default", p.ID())
	require.ErrorIs(t, err, pipeline.ErrHeld)
	require.Eventually(t, func() bool { return n.Held() == 0 }, 5*time.Second, 10*time.Millisecond, "a parked call holds no lease")
	require.NoError(t, n.Answer(t.Context(), "default", p.ID(), []byte(`"yes"`)))
	c, err := n.Result(t.Context(), "default", p.ID())
	require.NoError(t, err)
	require.Nil(t, c.Fault)
	require.Equal(t, `{"done":true}`, string(c.ReplyBytes()))
	require.Error(t, n.Answer(t.Context(), "default", p.ID(), []byte(`"yes"`)))
}
