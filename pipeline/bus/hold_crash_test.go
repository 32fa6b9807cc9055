package bus_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

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
		first = rawjson.SetField(first, "decided", []byte(`{"by":"ann","at":"2026-01-01T00:00:00Z","answer":"yes"}`))
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
		c.Note(messages.NoteAnswer, "yes")
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
			require.Eventually(t, func() bool { return g.asked.Load() > asked || g.messages(jet.CallsStream) == 0 }, 10*time.Second, 5*time.Millisecond)
			require.Eventually(t, func() bool { return g.messages(jet.CallsStream) == 0 }, 10*time.Second, 5*time.Millisecond)
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
	events, err := nc.SubscribeSync("shallot.v1.event.decided.>")
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
	require.Equal(t, "decided", gjson.GetBytes(m.Data, "status").Str)
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
