package bus_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
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
		if _, ok := c.Notes[pipeline.NoteAnswer]; !ok {
			g.asked.Add(1)
			return pipeline.HoldFor([]byte(`{"may":"I?"}`), g.expires), nil
		}
		g.answered.Add(1)
		if c.Noted(pipeline.NoteAnswer, &answer); answer != "yes" {
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
	kv, err := g.js.KeyValue(g.t.Context(), bus.ApprovalsBucket)
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
	require.Equal(t, `{"done":true}`, string(c.ReplyBytes()))
	require.Equal(t, []string{"outer.beforeTool", "gate.beforeTool", "gate.beforeTool", "tool"}, c.Slip.Path)
	require.NotContains(t, c.Notes, pipeline.NoteAnswer)
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
	require.Equal(t, `{"done":true}`, string(wait(t, again).ReplyBytes()))
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

// Crash points: the decision is written and the process dies before the call goes on; the call goes on twice; the lease
// that was held comes again, before and after the answer. The call is asked about once and runs once.
func TestHeldCallCrashPoints(t *testing.T) {
	t.Parallel()
	t.Run("decided, not carried out", func(t *testing.T) {
		t.Parallel()
		g := newGates(t, bus.Config{}, 8*time.Second) // long enough for the stop
		n := g.start(g.options())
		p := g.call(n)
		require.NoError(t, stop(n))
		kv, e := g.record(p.ID())
		first, rest, _ := bytes.Cut(e.Value(), []byte("\n"))
		first = messages.SetField(first, "decided", []byte(`{"by":"ann","at":"2026-01-01T00:00:00Z","answer":"yes"}`))
		_, err := kv.Update(t.Context(), e.Key(), append(append(first, '\n'), rest...), e.Revision())
		require.NoError(t, err)
		n = g.node(g.options())
		require.Nil(t, g.result(n, p.ID()).Fault)
		require.EqualValues(t, 1, g.runs.Load())
	})
	t.Run("carried out twice", func(t *testing.T) {
		t.Parallel()
		g := newGates(t, bus.Config{}, time.Hour)
		n := g.node(g.options())
		p := g.call(n)
		_, e := g.record(p.ID())
		_, wire, _ := bytes.Cut(e.Value(), []byte("\n"))
		require.NoError(t, n.Answer(t.Context(), "default", p.ID(), []byte(`"yes"`)))
		require.Nil(t, g.result(n, p.ID()).Fault)
		c, err := messages.Unmarshal(wire)
		require.NoError(t, err)
		generation := c.Generation
		c.Generation++
		c.Note("hold.resumed", generation)
		c.Note(pipeline.NoteAnswer, "yes")
		again, err := c.Marshal()
		require.NoError(t, err)
		for range 3 { // after the time in which the server knows duplicates
			_, err = g.js.PublishMsg(t.Context(), &nats.Msg{Subject: messages.Subjects{}.Route(messages.Tool), Data: again})
			require.NoError(t, err)
		}
		g.settled()
		require.Equal(t, []int64{1, 1}, []int64{g.answered.Load(), g.runs.Load()}, "the other copies are not claimed")
	})
	t.Run("lease comes again", func(t *testing.T) {
		t.Parallel()
		g := newGates(t, bus.Config{}, time.Hour)
		n := g.node(g.options())
		var entry []byte
		sub, err := n.JetStream().Conn().SubscribeSync(messages.Subjects{}.EntryAll())
		require.NoError(t, err)
		p := g.call(n)
		m, err := sub.NextMsg(5 * time.Second)
		require.NoError(t, err)
		entry = m.Data
		again := func() {
			_, err := g.js.PublishMsg(t.Context(), &nats.Msg{Subject: messages.Subjects{}.Entry(messages.Tool, false), Data: entry})
			require.NoError(t, err)
			asked := g.asked.Load()
			require.Eventually(t, func() bool { return g.asked.Load() > asked || g.messages(bus.CallsStream) == 0 }, 10*time.Second, 5*time.Millisecond)
			require.Eventually(t, func() bool { return g.messages(bus.CallsStream) == 0 }, 10*time.Second, 5*time.Millisecond)
		}
		_, before := g.record(p.ID())
		again()
		_, after := g.record(p.ID())
		require.Equal(t, before.Revision(), after.Revision(), "the question is the one that is there")
		require.NoError(t, n.Answer(t.Context(), "default", p.ID(), []byte(`"yes"`)))
		require.Nil(t, g.result(n, p.ID()).Fault)
		again()
		list, err := n.HeldCalls(t.Context(), "")
		require.NoError(t, err)
		require.Empty(t, list, "nobody is asked again")
		require.EqualValues(t, 1, g.runs.Load())
	})
}

// Large bodies of a held call outlast the object store that large bodies travel in.
func TestHeldCallWithALargeBody(t *testing.T) {
	t.Parallel()
	g := newGates(t, bus.Config{ClaimCheck: 1024}, time.Hour)
	n := g.start(g.options())
	body := `{"text":"` + strings.Repeat("onion ", 200_000) + `"}`
	p := g.call(n, func(r *pipeline.Request) { r.Body = []byte(body) })
	require.NoError(t, stop(n))
	objects, err := g.js.ObjectStore(t.Context(), bus.BodiesObjects)
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
	kv, err := g.js.KeyValue(t.Context(), bus.ApprovalsBucket)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := kv.ListKeys(t.Context())
		keys, _ := kv.Keys(t.Context())
		return err == nil && len(keys) == 0
	}, 5*time.Second, 10*time.Millisecond, "nothing of it stays")
}

// An answer that is refused changes nothing; what the check returns is what the stage gets.
func TestHeldCallAnswerIsChecked(t *testing.T) {
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

// The NATS face: who asks is told that the call waits; list and answer are there for each tenant, and tell nothing of
// another one's.
func TestHeldCallsOverNATS(t *testing.T) {
	t.Parallel()
	g := newGates(t, bus.Config{}, time.Hour)
	g.node(g.options())
	nc := g.conn()
	ask := func(subject, body string) *nats.Msg {
		t.Helper()
		m := nats.NewMsg(subject)
		m.Data = []byte(body)
		m.Header.Set("Shallot-User", "ann")
		out, err := nc.RequestMsg(m, 10*time.Second)
		require.NoError(t, err)
		return out
	}
	events, err := nc.SubscribeSync("shallot.v1.event.answered.>")
	require.NoError(t, err)
	m := ask("shallot.v1.tenant.acme.tool.request.x", `{}`)
	require.Equal(t, "pending", m.Header.Get("Shallot-Status"))
	id := m.Header.Get("Shallot-Call")
	require.Equal(t, id, gjson.GetBytes(m.Data, "call").Str)
	require.Empty(t, gjson.ParseBytes(ask("shallot.v1.approval.list", "").Data).Array())
	list := ask("shallot.v1.tenant.acme.approval.list", "")
	require.Equal(t, id, gjson.GetBytes(list.Data, "0.call").Str)
	require.Equal(t, "I?", gjson.GetBytes(list.Data, "0.question.may").Str)
	require.Equal(t, "404", ask("shallot.v1.approval.answer", `{"call":"`+id+`","answer":"yes"}`).Header.Get("Nats-Service-Error-Code"))
	for _, bad := range []string{``, `{}`, `[]`, `{"call":""}`, `{"call":"` + id + `"}`} {
		require.Equal(t, "400", ask("shallot.v1.tenant.acme.approval.answer", bad).Header.Get("Nats-Service-Error-Code"), bad)
	}
	require.Equal(t, "pending", ask("shallot.v1.tenant.acme.approval.answer", `{"call":"`+id+`","answer":null}`).Header.Get("Shallot-Status"))
	m = ask("shallot.v1.tenant.acme.approval.answer", `{"call":"`+id+`","answer":"yes"}`)
	require.Equal(t, "answered", gjson.GetBytes(m.Data, "status").Str)
	require.Equal(t, "409", ask("shallot.v1.tenant.acme.approval.answer", `{"call":"`+id+`","answer":"yes"}`).Header.Get("Nats-Service-Error-Code"))
	e, err := events.NextMsg(5 * time.Second)
	require.NoError(t, err)
	require.Equal(t, []string{id, "nats/ann"}, []string{gjson.GetBytes(e.Data, "call").Str, gjson.GetBytes(e.Data, "by").Str})
	require.NotContains(t, string(e.Data), "I?", "events hold no arguments")
	require.Eventually(t, func() bool {
		m := ask("shallot.v1.tenant.acme.result."+id, "")
		return string(m.Data) == `{"done":true}`
	}, 10*time.Second, 20*time.Millisecond)
}
