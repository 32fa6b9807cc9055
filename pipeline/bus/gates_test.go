package bus_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// gates is an installation whose tool calls wait at a gate until somebody says yes. It counts what runs.
type gates struct {
	*world
	expires                      time.Duration
	outer, asked, answered, runs atomic.Int64
	bodies                       sync.Map // call -> request that the target saw
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
	return bus.Options{Entry: true, Targets: roles(target), Manager: manager(g.t,
		pipeline.Stage{Name: "outer", Kind: messages.Tool, Order: 10, Before: outer},
		pipeline.Stage{Name: "gate", Kind: messages.Tool, Order: 16, Before: gate})}
}

// call makes a call that is held.
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

// result waits until the call has ended.
func (g *gates) result(n *bus.Node, id string) *messages.Call {
	g.t.Helper()
	var end *messages.Call
	require.Eventually(g.t, func() bool {
		c, err := n.Result(g.t.Context(), "default", id)
		if errors.Is(err, pipeline.ErrHeld) {
			return false
		}
		require.NoError(g.t, err)
		end = c
		return true
	}, 40*time.Second, 5*time.Millisecond)
	return end
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

// Every process goes while a call waits. It goes on at the same point in another one; the stage before the gate does
// not run again, nobody is asked again, and the tool runs once (HI-12).
func TestAHeldCallOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	g := newGates(t, bus.Config{}, time.Hour)
	first := g.start(g.options())
	p := g.call(first)
	require.NoError(t, stop(first))
	second := g.node(g.options())
	list, err := second.HeldCalls(t.Context(), "default")
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, []any{p.ID(), "x", "gate", `{"may":"I?"}`},
		[]any{list[0].Call, list[0].Tool, list[0].Stage, string(list[0].Question)})
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

// The time of a question ends, whether a process is there or not; a decision after it comes too late.
func TestAHeldCallExpiresAlsoWhileNobodyIsThere(t *testing.T) {
	t.Parallel()
	g := newGates(t, bus.Config{}, 3*time.Second)
	n := g.start(g.options())
	p := g.call(n)
	_, e := g.record(p.ID())
	require.NoError(t, stop(n))
	reach(t.Context(), e.Created().Add(3200*time.Millisecond)) // simulated: nobody is there when the time ends
	n = g.node(g.options())
	c := g.result(n, p.ID())
	require.Equal(t, messages.Blocked, c.Fault.Code)
	require.Contains(t, c.Fault.Message, "nobody decided")
	require.Equal(t, "gate", c.Fault.Origin)
	require.Zero(t, g.runs.Load())
	_, err := n.Decide(t.Context(), "default", p.ID(), []byte(`"yes"`), "ann")
	require.Equal(t, messages.Conflict, code(t, err))
	require.ErrorContains(t, err, "by nobody at ")
	require.EqualValues(t, 1, g.asked.Load())
}

// A held call's clock stands still: a person may think longer than the call may take.
func TestAHeldCallsClockStandsStill(t *testing.T) {
	t.Parallel()
	g := newGates(t, bus.Config{}, time.Hour)
	n := g.node(g.options())
	deadline := time.Now().Add(5 * time.Second)
	p := g.call(n, func(r *pipeline.Request) { r.Deadline = deadline })
	reach(t.Context(), deadline.Add(300*time.Millisecond)) // simulated: a person thinks
	_, err := n.Result(t.Context(), "default", p.ID())
	require.ErrorIs(t, err, pipeline.ErrHeld)
	require.NoError(t, n.Answer(t.Context(), "default", p.ID(), []byte(`"yes"`)))
	require.Nil(t, g.result(n, p.ID()).Fault)
	require.EqualValues(t, 1, g.runs.Load())
}

// The same idempotency key finds the held call, in any process, and its result later. The key does not end before.
func TestAHeldCallIsFoundByItsKey(t *testing.T) {
	t.Parallel()
	g := newGates(t, bus.Config{ResultTTL: 5 * time.Second}, time.Hour)
	a, b := g.node(g.options()), g.node(g.options())
	key := func(r *pipeline.Request) { r.IdempotencyKey = "k" }
	p := g.call(a, key)
	for _, n := range []*bus.Node{a, b} {
		require.Equal(t, p.ID(), g.call(n, key).ID())
	}
	reach(t.Context(), time.Now().Add(6*time.Second)) // simulated: a person thinks, longer than results are kept
	require.Equal(t, p.ID(), g.call(b, key).ID())
	require.EqualValues(t, 1, g.asked.Load())
	require.NoError(t, b.Answer(t.Context(), "default", p.ID(), []byte(`"yes"`)))
	r := pipeline.Request{Kind: messages.Tool, Tool: "x", Body: []byte(`{"n":9007199254740993}`)}
	key(&r)
	again := accept(t, a, r)
	require.Equal(t, p.ID(), again.ID())
	require.Equal(t, `{"done":true}`, string(wait(t, again).Reply()))
	require.EqualValues(t, 1, g.runs.Load())
}

// Going away from a held call is no cancel; a cancel ends it, and no decision comes after that.
func TestAHeldCallIsCancelled(t *testing.T) {
	t.Parallel()
	g := newGates(t, bus.Config{}, time.Hour)
	n := g.node(g.options())
	p := g.call(n)
	p.Leave()
	_, err := n.Result(t.Context(), "default", p.ID())
	require.ErrorIs(t, err, pipeline.ErrHeld)
	n.Cancel(p.ID())
	require.Equal(t, messages.Cancelled, g.result(n, p.ID()).Fault.Code)
	_, err = n.Decide(t.Context(), "default", p.ID(), []byte(`"yes"`), "ann")
	require.Equal(t, messages.Conflict, code(t, err))
	require.Zero(t, g.runs.Load())
}

// The decision is written and the process dies before the call goes on: whoever comes next carries it out.
func TestADecisionOutlivesWhoTookIt(t *testing.T) {
	t.Parallel()
	g := newGates(t, bus.Config{}, time.Hour)
	n := g.start(g.options())
	p := g.call(n)
	require.NoError(t, stop(n))
	kv, e := g.record(p.ID())
	first, rest, _ := bytes.Cut(e.Value(), []byte("\n"))
	first = rawjson.SetField(first, "decided", []byte(`{"by":"ann","at":"2026-01-01T00:00:00Z","answer":"yes"}`))
	_, err := kv.Update(t.Context(), e.Key(), append(append(first, '\n'), rest...), e.Revision())
	require.NoError(t, err)
	n = g.node(g.options())
	require.Nil(t, g.result(n, p.ID()).Fault)
	require.EqualValues(t, 1, g.runs.Load())
}

// What put a held call into the queue comes again and again, before its answer and after it, when the server knows no
// duplicates any more: the call is asked about once and runs once.
func TestCopiesOfAHeldCallChangeNothing(t *testing.T) {
	t.Parallel()
	g := newGates(t, bus.Config{}, time.Hour)
	n := g.node(g.options())
	seen, err := g.conn().SubscribeSync(messages.Subjects{}.EntryAll())
	require.NoError(t, err)
	require.NoError(t, g.conns[len(g.conns)-1].Flush())
	p := g.call(n, func(r *pipeline.Request) { r.Keep = true })
	entry, err := seen.NextMsg(30 * time.Second)
	require.NoError(t, err)
	put := func(m *nats.Msg) {
		for range 3 {
			h := nats.Header{}
			for k, v := range m.Header {
				h[k] = v
			}
			h["Nats-Msg-Id"], h["Shallot-Again"] = []string{messages.NewID()}, []string{"1"}
			_, err := g.js.PublishMsg(t.Context(), &nats.Msg{Subject: m.Subject, Data: m.Data, Header: h})
			require.NoError(t, err)
		}
		g.settled()
	}
	_, before := g.record(p.ID())
	put(entry)
	_, after := g.record(p.ID())
	require.Equal(t, before.Revision(), after.Revision(), "the question is the one that is there")
	for range 3 {
		_, _ = seen.NextMsg(30 * time.Second)
	}
	require.NoError(t, n.Answer(t.Context(), "default", p.ID(), []byte(`"yes"`)))
	resumed, err := seen.NextMsg(30 * time.Second)
	require.NoError(t, err)
	require.Nil(t, g.result(n, p.ID()).Fault)
	put(resumed)
	put(entry)
	list, err := n.HeldCalls(t.Context(), "")
	require.NoError(t, err)
	require.Empty(t, list, "nobody is asked again")
	require.Equal(t, []int64{1, 1, 1}, []int64{g.asked.Load(), g.answered.Load(), g.runs.Load()})
}

// Large bodies of a held call outlast the object store that large bodies travel in.
func TestAHeldCallKeepsItsLargeBody(t *testing.T) {
	t.Parallel()
	g := newGates(t, bus.Config{ClaimCheck: 1024}, time.Hour)
	n := g.start(g.options())
	body := `{"text":"` + strings.Repeat("onion ", 200_000) + `"}`
	p := g.call(n, func(r *pipeline.Request) { r.Body = []byte(body) })
	require.NoError(t, stop(n))
	objects, err := g.js.ObjectStore(t.Context(), jet.BodiesObjects)
	require.NoError(t, err)
	list, err := objects.List(t.Context())
	require.NoError(t, err)
	for _, o := range list {
		require.NoError(t, objects.Delete(t.Context(), o.Name)) // as its time would
	}
	n = g.node(g.options())
	require.NoError(t, n.Answer(t.Context(), "default", p.ID(), []byte(`"yes"`)))
	require.Nil(t, g.result(n, p.ID()).Fault)
	got, _ := g.bodies.Load(p.ID())
	require.True(t, got == body)
	kv, err := g.js.KeyValue(t.Context(), jet.ApprovalsBucket)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := kv.Keys(t.Context())
		return errors.Is(err, jetstream.ErrNoKeysFound)
	}, 30*time.Second, 10*time.Millisecond, "nothing of it stays")
}

// An answer that is refused changes nothing; what the check returns is what the stage gets.
func TestAnAnswerToAHeldCallIsChecked(t *testing.T) {
	t.Parallel()
	g := newGates(t, bus.Config{}, time.Hour)
	o := g.options()
	o.Decide = func(_ context.Context, p bus.Parked, answer json.RawMessage, by string) (json.RawMessage, error) {
		if string(answer) != `"please"` {
			return nil, messages.NewFault(messages.InvalidRequest, "say please, %s, about %s", by, p.Question)
		}
		return []byte(`"yes"`), nil
	}
	n := g.node(o)
	p := g.call(n)
	_, err := n.Decide(t.Context(), "default", p.ID(), []byte(`"now"`), "ann")
	require.ErrorContains(t, err, `say please, ann, about {"may":"I?"}`)
	_, err = n.Result(t.Context(), "default", p.ID())
	require.ErrorIs(t, err, pipeline.ErrHeld)
	_, err = n.Decide(t.Context(), "default", p.ID(), []byte(`"please"`), "ann")
	require.NoError(t, err)
	require.Nil(t, g.result(n, p.ID()).Fault)
}

// reach returns at the time.
func reach(ctx context.Context, at time.Time) {
	ctx, cancel := context.WithDeadline(ctx, at)
	defer cancel()
	<-ctx.Done()
}
