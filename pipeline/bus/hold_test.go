package bus_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// gates is an installation whose tool calls wait at a gate until somebody says yes. It counts what runs.
type gates struct {
	*world
	expires            time.Duration
	outer, asked, runs atomic.Int64
	answered           atomic.Int64 // how often the gate got an answer
	bodies             sync.Map     // call -> request that the target saw
}

func newGates(t *testing.T, cfg bus.Config, expires time.Duration) *gates {
	return &gates{world: newWorld(t, cfg), expires: expires}
}

func (g *gates) options() bus.Options {
	outer := func(context.Context, *messages.Call) (pipeline.Verdict, error) {
		g.outer.Add(1)
		return pipeline.Continue(), nil
	}
	gate := func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
		var answer string
		if _, ok := c.Notes[messages.NoteAnswer]; !ok {
			g.asked.Add(1)
			return pipeline.HoldFor([]byte(`{"may":"I?"}`), g.expires), nil
		}
		g.answered.Add(1)
		if c.Noted(messages.NoteAnswer, &answer); answer != "yes" {
			return pipeline.Stop(), nil
		}
		return pipeline.Continue(), nil
	}
	target := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		g.runs.Add(1)
		g.bodies.Store(c.ID, string(c.Request()))
		c.SetReply([]byte(`{"done":true}`))
		return nil
	})
	m := &pipeline.Manager{}
	require.NoError(g.t, m.Register(pipeline.Stage{Name: "outer", Kind: messages.Tool, Order: 10, Before: outer}, true))
	require.NoError(g.t, m.Register(pipeline.Stage{Name: "gate", Kind: messages.Tool, Order: 16, Before: gate}, true))
	return bus.Options{Entry: true, Targets: roles(target), Manager: m, MaxTime: map[messages.Kind]time.Duration{messages.Tool: time.Minute}}
}

func (g *gates) call(n *bus.Node, set ...func(*pipeline.Request)) pipeline.Pending {
	g.t.Helper()
	r := pipeline.Request{Kind: messages.Tool, Tool: "x", Body: []byte(`{"n":9007199254740993}`)}
	for _, f := range set {
		f(&r)
	}
	p := accept(g.t, n, r)
	_, err := p.Wait(g.t.Context(), nil)
	require.ErrorIs(g.t, err, pipeline.ErrHeld)
	return p
}

func (g *gates) result(n *bus.Node, id string) *messages.Call {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 40*time.Second)
	defer cancel()
	for {
		c, err := n.Result(ctx, "default", id)
		if errors.Is(err, pipeline.ErrHeld) && ctx.Err() == nil {
			runtime.Gosched() // not yet
			continue
		}
		require.NoError(g.t, err)
		require.NotNil(g.t, c)
		return c
	}
}

func (g *gates) record(id string) (jetstream.KeyValue, jetstream.KeyValueEntry) {
	g.t.Helper()
	kv, err := g.js.KeyValue(g.t.Context(), jet.ApprovalsBucket)
	require.NoError(g.t, err)
	e, err := kv.Get(g.t.Context(), messages.Key("default", id))
	require.NoError(g.t, err)
	return kv, e
}

func code(t *testing.T, err error) messages.Code {
	t.Helper()
	var f *messages.Fault
	require.ErrorAs(t, err, &f)
	return f.Code
}

// HI-12: every process goes while a call waits. It goes on at the same point in another one; the stage before the gate
// does not run again, nobody is asked again, and the tool runs once.
func TestHeldCallOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	g := newGates(t, bus.Config{}, time.Hour)
	first := g.start(g.options())
	p := g.call(first)
	require.NoError(t, stop(first))
	second := g.node(g.options())
	list, err := second.HeldCalls(t.Context(), "default")
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, []any{p.ID(), "x", "gate", `{"may":"I?"}`}, []any{list[0].Call, list[0].Tool, list[0].Stage, string(list[0].Question)})
	none, err := second.HeldCalls(t.Context(), "other")
	require.NoError(t, err)
	require.Empty(t, none, "another tenant sees nothing")
	_, err = second.Decide(t.Context(), "other", p.ID(), []byte(`"yes"`), "eve")
	require.Equal(t, messages.NotFound, code(t, err))
	_, err = second.Decide(t.Context(), "default", p.ID(), []byte(`null`), "ann")
	require.ErrorIs(t, err, pipeline.ErrHeld, "HI-10")
	_, err = second.Decide(t.Context(), "default", p.ID(), []byte(`"yes"`), "ann")
	require.NoError(t, err)
	c := g.result(second, p.ID())
	require.Nil(t, c.Fault)
	require.Equal(t, `{"done":true}`, string(c.Reply()))
	require.Equal(t, []string{"outer.beforeTool", "gate.beforeTool", "gate.beforeTool", "tool"}, c.Slip.Path)
	require.NotContains(t, c.Notes, messages.NoteAnswer)
	require.Equal(t, []int64{1, 1, 1}, []int64{g.outer.Load(), g.asked.Load(), g.runs.Load()})
	_, err = second.Decide(t.Context(), "default", p.ID(), []byte(`"no"`), "bob")
	require.Equal(t, messages.Conflict, code(t, err))
	require.ErrorContains(t, err, "by ann at ")
	_, err = second.Decide(t.Context(), "default", messages.NewID(), []byte(`"yes"`), "ann")
	require.Equal(t, messages.NotFound, code(t, err), "HI-7")
}

// Of many who decide at once, in two processes, one wins; all others are told who that was.
func TestHeldCallManyDecide(t *testing.T) {
	t.Parallel()
	g := newGates(t, bus.Config{}, time.Hour)
	nodes := []*bus.Node{g.node(g.options()), g.node(g.options())}
	p := g.call(nodes[0])
	var won atomic.Int64
	var winner atomic.Pointer[string]
	errs := make([]error, 16)
	var wait sync.WaitGroup
	for i := range errs {
		wait.Go(func() {
			who := string(rune('a' + i))
			if _, errs[i] = nodes[i%2].Decide(t.Context(), "default", p.ID(), []byte(`"yes"`), who); errs[i] == nil {
				won.Add(1)
				winner.Store(&who)
			}
		})
	}
	wait.Wait()
	require.EqualValues(t, 1, won.Load())
	for _, err := range errs {
		if err != nil {
			require.Equal(t, messages.Conflict, code(t, err))
			require.ErrorContains(t, err, "by "+*winner.Load()+" at ")
		}
	}
	require.Nil(t, g.result(nodes[1], p.ID()).Fault)
	require.EqualValues(t, 1, g.runs.Load())
}

// The time of a question ends on the server, whether a process is there or not; a decision after it comes too late.
func TestHeldCallExpires(t *testing.T) {
	t.Parallel()
	for _, up := range []bool{true, false} {
		t.Run(map[bool]string{true: "process up", false: "no process"}[up], func(t *testing.T) {
			t.Parallel()
			g := newGates(t, bus.Config{}, 1500*time.Millisecond)
			n := g.start(g.options())
			p := g.call(n)
			if !up {
				require.NoError(t, stop(n))
				time.Sleep(2 * time.Second) // simulated: no process is there when the time ends
				n = g.start(g.options())
			}
			c := g.result(n, p.ID())
			require.Equal(t, messages.Blocked, c.Fault.Code)
			require.Contains(t, c.Fault.Message, "nobody decided")
			require.Equal(t, "gate", c.Fault.Origin)
			require.Zero(t, g.runs.Load())
			_, err := n.Decide(t.Context(), "default", p.ID(), []byte(`"yes"`), "ann")
			require.Equal(t, messages.Conflict, code(t, err))
			require.ErrorContains(t, err, "by nobody at ")
			require.EqualValues(t, 1, g.asked.Load())
			require.NoError(t, stop(n))
		})
	}
}

// A held call's clock stands still: a person may think longer than the call may take, and whoever waits is not told
// that its time is over.
func TestHeldCallClockStandsStill(t *testing.T) {
	t.Parallel()
	g := newGates(t, bus.Config{}, time.Hour)
	n := g.node(g.options())
	p := g.call(n, func(r *pipeline.Request) { r.Deadline = time.Now().Add(2 * time.Second) })
	time.Sleep(2500 * time.Millisecond) // simulated: a person thinks, longer than the call may take
	_, err := n.Result(t.Context(), "default", p.ID())
	require.ErrorIs(t, err, pipeline.ErrHeld)
	require.NoError(t, n.Answer(t.Context(), "default", p.ID(), []byte(`"yes"`)))
	require.Nil(t, g.result(n, p.ID()).Fault)
	require.EqualValues(t, 1, g.runs.Load())
}

// The same idempotency key finds the held call, in any process, and its result later. The key does not end before.
func TestHeldCallByItsKey(t *testing.T) {
	t.Parallel()
	g := newGates(t, bus.Config{ResultTTL: 3 * time.Second}, time.Hour)
	a, b := g.node(g.options()), g.node(g.options())
	key := func(r *pipeline.Request) { r.IdempotencyKey = "k" }
	p := g.call(a, key)
	for _, n := range []*bus.Node{a, b} {
		require.Equal(t, p.ID(), g.call(n, key).ID())
	}
	time.Sleep(5 * time.Second) // simulated: a person thinks, longer than results and keys are kept
	require.Equal(t, p.ID(), g.call(b, key).ID())
	require.EqualValues(t, 1, g.asked.Load())
	require.NoError(t, b.Answer(t.Context(), "default", p.ID(), []byte(`"yes"`)))
	again := accept(t, a, pipeline.Request{Kind: messages.Tool, Tool: "x", Body: []byte(`{"n":9007199254740993}`), IdempotencyKey: "k"})
	require.Equal(t, p.ID(), again.ID())
	require.Equal(t, `{"done":true}`, string(wait(t, again).Reply()))
	require.EqualValues(t, 1, g.runs.Load())
}

// The caller may cancel while the call waits; that ends it, and no decision comes after it.
func TestHeldCallIsCancelled(t *testing.T) {
	t.Parallel()
	g := newGates(t, bus.Config{}, time.Hour)
	n := g.node(g.options())
	p := g.call(n)
	p.Leave() // going away with the place of the result is no cancel
	_, err := n.Result(t.Context(), "default", p.ID())
	require.ErrorIs(t, err, pipeline.ErrHeld)
	n.Cancel(p.ID())
	require.Equal(t, messages.Cancelled, g.result(n, p.ID()).Fault.Code)
	_, err = n.Decide(t.Context(), "default", p.ID(), []byte(`"yes"`), "ann")
	require.Equal(t, messages.Conflict, code(t, err))
	require.Zero(t, g.runs.Load())
}
