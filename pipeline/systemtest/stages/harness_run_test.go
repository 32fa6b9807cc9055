package stages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/natsapi"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/stages"
)

func newWorld(t testing.TB, cfg bus.Config) *world {
	t.Helper()
	cfg.ModelClasses, cfg.ToolClasses = []string{"default"}, []string{"default"}
	dir, err := os.MkdirTemp("", "shallot-stages-")
	require.NoError(t, err)
	srv, err := embed.Start(embed.Options{Dir: dir, Sync: time.Minute})
	require.NoError(t, err)
	w := &world{srv: srv, cfg: cfg, stores: map[string]pipeline.Store{}}
	t.Cleanup(func() { srv.Stop(); _ = os.RemoveAll(dir) })
	w.js, err = jetstream.New(w.conn(t))
	require.NoError(t, err)
	require.NoError(t, bus.Provision(t.Context(), w.js, w.cfg))
	for name, bucket := range map[string]string{"cache": jet.CacheBucket, "retry": jet.RetryBucket,
		"todo": jet.TodoBucket, "limits": jet.LimitsBucket} {
		b, err := jet.OpenBucket(t.Context(), w.js, bucket)
		require.NoError(t, err)
		w.stores[name] = b
	}
	return w
}

func (w *world) conn(t testing.TB) *nats.Conn {
	t.Helper()
	nc, err := jet.Connect(jet.ConnOptions{Name: t.Name(), InProcess: w.srv, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

func (w *world) node(t testing.TB, m *pipeline.Manager, target pipeline.Target) *bus.Node {
	t.Helper()
	return w.start(t, bus.Options{Manager: m, Entry: true,
		Targets: []bus.TargetRole{{Kind: messages.Model, Class: "default", Target: target}}})
}

// start starts a node on a connection of its own, if it has none; it is stopped when the test is over.
func (w *world) start(t testing.TB, o bus.Options) *bus.Node {
	t.Helper()
	o.Config = w.cfg
	if o.Conn == nil {
		o.Conn = w.conn(t)
	}
	callers := natsapi.New(natsapi.Options{Conn: o.Conn, Root: cmp.Or(o.Config.Root, "shallot")})
	o.Callers = callers
	n, err := bus.New(t.Context(), o)
	require.NoError(t, err)
	callers.Calls = n
	require.NoError(t, n.Start(context.WithoutCancel(t.Context())))
	t.Cleanup(func() {
		if o.Conn.IsClosed() {
			return // died
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		require.NoError(t, n.Stop(ctx))
	})
	return n
}

// late is the node for the summaries of stages, which are built before it. A summary passes no stage of another row.
type late struct {
	node *bus.Node
	skip []string
}

func (l *late) Call(ctx context.Context, c *messages.Call) (*messages.Call, error) {
	if l.node == nil {
		return nil, errors.New("too early")
	}
	c.Skip = l.skip
	return l.node.Call(ctx, c)
}

// onBus runs all rows on one node.
func onBus(t *testing.T, rows []row, fused bool) {
	w, m, caller, manager := newWorld(t, bus.Config{Fusion: fused}), &scripted{rows: map[string]*played{}}, &late{},
		&pipeline.Manager{}
	d := stages.Deps{Caller: caller, Store: func(name string) pipeline.Store { return w.stores[name] }}
	names := map[string][]string{}
	for i, r := range rows {
		key := fmt.Sprint("r", i)
		m.play(t, key, r)
		for _, s := range build(t, r, "-"+key, d) {
			require.NoError(t, manager.Register(s, true))
			names[key] = append(names[key], s.Name)
			caller.skip = append(caller.skip, s.Name)
		}
	}
	caller.node = w.node(t, manager, m)
	t.Run("rows", func(t *testing.T) {
		for i, r := range rows {
			t.Run(r.id, func(t *testing.T) {
				t.Parallel()
				key := fmt.Sprint("r", i)
				others := slices.DeleteFunc(slices.Clone(caller.skip),
					func(s string) bool { return slices.Contains(names[key], s) })
				var o outcome
				for _, u := range r.turns {
					// A tenant for each row: summaries of one history are shared within a tenant.
					q := pipeline.Request{Kind: messages.Model, Tenant: key, User: key, Body: u.body, Stream: u.stream, Skip: others,
						Deadline: u.deadline()}
					q.Session, q.Run = u.in(key)
					p, err := caller.node.Accept(t.Context(), q)
					require.NoError(t, err)
					if u.leave != nil {
						<-u.leave
						p.Leave()
					}
					seen := newReader(u)
					c, err := p.Wait(t.Context(), seen.delta)
					o.add(t, u, c, err, seen, "-"+key)
				}
				was := m.outcome(key)
				o.seen, o.summaries = was.seen, was.summaries
				judge(t, r, o)
			})
		}
	})
	// What goes on behind a caller's back is over when no lease is left: no row has called the model once more.
	for _, name := range []string{jet.CallsStream} {
		require.Eventually(t, func() bool {
			s, err := w.js.Stream(t.Context(), name)
			return err == nil && s.CachedInfo().State.Msgs == 0
		}, 30*time.Second, 5*time.Millisecond, name)
	}
	for i, r := range rows {
		require.Len(t, m.outcome(fmt.Sprint("r", i)).seen, r.calls, r.id)
	}
}
