package bus_test

import (
	"context"
	"log/slog"
	"os"
	"sync"
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
)

// world is an embedded server with its streams.
type world struct {
	t     testing.TB
	srv   *embed.Server
	cfg   bus.Config
	log   *slog.Logger
	js    jetstream.JetStream
	mu    sync.Mutex
	nodes []*bus.Node
	conns []*nats.Conn
}

func testLog() *slog.Logger {
	if os.Getenv("SHALLOT_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

func classes(cfg bus.Config) bus.Config {
	if cfg.ModelClasses == nil {
		cfg.ModelClasses = []string{"default"}
	}
	if cfg.ToolClasses == nil {
		cfg.ToolClasses = []string{"default"}
	}
	return cfg
}

func newWorld(t testing.TB, cfg bus.Config) *world {
	t.Helper()
	if cfg.AfterOutage == 0 {
		cfg.AfterOutage = 300 * time.Millisecond // a start counts as an outage, and nobody is coming back here
	}
	dir, err := os.MkdirTemp(scratch, "world-")
	require.NoError(t, err)
	srv, err := embed.Start(embed.Options{Dir: dir, Sync: time.Minute})
	require.NoError(t, err)
	w := &world{t: t, srv: srv, cfg: classes(cfg), log: testLog()}
	t.Cleanup(func() {
		afterTests.Go(func() {
			var end sync.WaitGroup
			for _, n := range w.nodes {
				end.Go(func() { _ = stop(n) })
			}
			end.Wait()
			for _, nc := range w.conns {
				nc.Close()
			}
			srv.Stop()
		})
	})
	w.js, err = jetstream.New(w.conn())
	require.NoError(t, err)
	require.NoError(t, bus.Provision(t.Context(), w.js, w.cfg))
	return w
}

func (w *world) conn() *nats.Conn {
	w.t.Helper()
	nc, err := jet.Connect(jet.ConnOptions{Name: w.t.Name(), InProcess: w.srv, Log: w.log, Direct: true})
	require.NoError(w.t, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, nc)
	return nc
}

// node starts a node that stops behind the test's back.
func (w *world) node(o bus.Options) *bus.Node {
	w.t.Helper()
	n := w.start(o)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes = append(w.nodes, n)
	return n
}

// start starts a node that the test itself stops.
func (w *world) start(o bus.Options) *bus.Node {
	w.t.Helper()
	o.Config, o.Log = w.cfg, w.log
	if o.Conn == nil {
		o.Conn = w.conn()
	}
	n, err := bus.New(w.t.Context(), o)
	require.NoError(w.t, err)
	require.NoError(w.t, n.Start(context.WithoutCancel(w.t.Context())))
	return n
}

func stop(n *bus.Node) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return n.Stop(ctx)
}

func manager(t testing.TB, stages ...pipeline.Stage) *pipeline.Manager {
	t.Helper()
	m := &pipeline.Manager{}
	for _, s := range stages {
		require.NoError(t, m.Register(s, true))
	}
	return m
}

func roles(target pipeline.Target) []bus.TargetRole {
	return []bus.TargetRole{
		{Kind: messages.Model, Class: "default", Target: target, Prompt: true},
		{Kind: messages.Tool, Class: "default", Target: target},
	}
}

func nobody(pipeline.Stage) bool { return false }

func only(name string) func(pipeline.Stage) bool {
	return func(s pipeline.Stage) bool { return s.Name == name }
}

func pass(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }

// through is a model stage with both phases that only passes on.
func through(name string, order int) pipeline.Stage {
	return pipeline.Stage{Name: name, Kind: messages.Model, Order: order, Before: pass, After: pass}
}

// echo replies with the request.
func echo(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
	c.SetReply([]byte(`{"echo":` + string(c.Request()) + `}`))
	return nil
}

const chatBody = `{"model":"m","messages":[{"role":"user","content":"x"}]}`

func chatRequest() pipeline.Request {
	return pipeline.Request{Kind: messages.Model, Body: []byte(chatBody), Deadline: time.Now().Add(55 * time.Second)}
}

// wait waits for the end of a call.
func wait(t testing.TB, p pipeline.Pending) *messages.Call {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, err := p.Wait(ctx, nil)
	require.NoError(t, err)
	return c
}

func accept(t testing.TB, n *bus.Node, r pipeline.Request) pipeline.Pending {
	t.Helper()
	p, err := n.Accept(t.Context(), r)
	require.NoError(t, err)
	return p
}

// caller makes the suite's calls through a node, with the caller's own deadline and id.
type caller struct{ n *bus.Node }

func (c caller) Call(ctx context.Context, call *messages.Call) (*messages.Call, error) {
	return c.n.Call(ctx, call)
}

func (c caller) CallStream(ctx context.Context, call *messages.Call, onChunk func([]byte)) (*messages.Call, error) {
	p, err := c.n.Accept(ctx, pipeline.Request{Kind: call.Kind, Tool: call.Tool, Body: call.Request(), Tenant: call.Tenant,
		Session: call.Session, Run: call.Run, Deadline: call.Deadline, IdempotencyKey: call.IdempotencyKey, Stream: true})
	if err != nil {
		return nil, err
	}
	return p.Wait(ctx, func(d pipeline.Delta) { onChunk(d.Chunk) })
}
