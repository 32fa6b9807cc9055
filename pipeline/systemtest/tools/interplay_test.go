package tools_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// These tests are about features that meet: streams, approvals, remote stages, idempotency keys, caches.

func register(t *testing.T, h *host.Host, definition string) {
	t.Helper()
	_, err := h.Tools.RegisterTool(t.Context(), []byte(definition), "op")
	require.NoError(t, err)
}

func endOf(t *testing.T, h *host.Host, id string) *messages.Call { return (&till{Host: h}).end(t, id) }

// A streamed caller of a tool that needs an approval hears that the call waits, and the end of the stream; the result
// is where results are. Nobody reads pieces then. The same arguments again are asked about again, and not run again.
func TestStreamOfAHeldCall(t *testing.T) {
	t.Parallel()
	h := startStreams(t, "")
	register(t, h.Host, `{"name":"asked","executor":"go:feed","effect":"read","approval":"always"}`)
	f := feed{Text: "ab", N: 30, Step: 7}
	for i, face := range []string{"nats", "door"} {
		id, inbox := "", h.Conn.NewInbox()
		if face == "nats" {
			sub, err := h.Conn.SubscribeSync(inbox)
			require.NoError(t, err)
			require.NoError(t, h.Conn.PublishMsg(&nats.Msg{Subject: "shallot.v1.tool.request.asked", Reply: inbox,
				Data: []byte(f.args()), Header: nats.Header{"Shallot-Stream": {"on"}}}))
			for _, last := range []bool{false, true} {
				m, err := sub.NextMsg(20 * time.Second)
				require.NoError(t, err)
				require.Equal(t, "pending", m.Header.Get("Shallot-Status"))
				id = m.Header.Get("Shallot-Call")
				require.Equal(t, last, len(m.Data) == 0)
			}
			defer func() {
				_, err := sub.NextMsg(time.Millisecond)
				require.ErrorIs(t, err, nats.ErrTimeout, "nothing came after the end")
			}()
		} else {
			p, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "asked", Body: []byte(f.args()),
				Stream: true})
			require.NoError(t, err)
			_, err = p.Wait(t.Context(), func(d pipeline.Delta) { t.Errorf("a piece: %s", d.Chunk) })
			require.ErrorIs(t, err, pipeline.ErrHeld)
			p.Leave() // that is not a cancellation: the caller was told where the result will be
			id = p.ID()
		}
		_, err := h.Approvals.Approval(t.Context(), "default", id)
		require.NoError(t, err)
		require.NoError(t, h.Approvals.Decide(t.Context(), "default", id, json.RawMessage(`"approve"`), "ann"))
		c := endOf(t, h.Host, id)
		require.Nil(t, c.Fault)
		out, _, _ := c.ReplyPlain()
		require.Equal(t, f.all(), out)
		require.Equal(t, i == 1, c.Flag(messages.NoteCacheHit), "asked again, not run again")
	}
	list, err := h.Approvals.Approvals(t.Context(), "")
	require.NoError(t, err)
	require.Empty(t, list)
	// Whoever cancels a call that waits finds it gone from the list, and ended.
	p, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "asked", Body: []byte(`{}`),
		Stream: true})
	require.NoError(t, err)
	_, err = p.Wait(t.Context(), nil)
	require.ErrorIs(t, err, pipeline.ErrHeld)
	require.NoError(t, h.Conn.Publish("shallot.v1.cancel."+p.ID(), nil))
	c := endOf(t, h.Host, p.ID())
	require.Equal(t, messages.Cancelled, c.Fault.Code)
	require.Contains(t, c.Fault.Message, "it was not run")
	list, err = h.Approvals.Approvals(t.Context(), "")
	require.NoError(t, err)
	require.Empty(t, list)
	err = h.Approvals.Decide(t.Context(), "default", p.ID(), json.RawMessage(`"approve"`), "ann")
	require.ErrorContains(t, err, "by the caller")
}

// Callers that join a streamed call by its idempotency key, with a stream or without, take no piece away from the first
// one, and by leaving they stop nothing.
func TestJoiningAStreamedCall(t *testing.T) {
	t.Parallel()
	h := startStreams(t, "")
	f := feed{Gate: "1", Text: "0123456789", N: 300, Step: 5}
	accept := func(stream bool) pipeline.Pending {
		p, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "feed", Tenant: "default",
			Body: []byte(f.args()), Stream: stream, IdempotencyKey: "k"})
		require.NoError(t, err)
		return p
	}
	first := accept(true)
	var others sync.WaitGroup
	var pieces atomic.Int64
	before, whole, c, fault := follow(t, first, func() {
		left := accept(true)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := left.Wait(ctx, nil)
		require.ErrorIs(t, err, context.Canceled)
		left.Leave()
		waits := make(chan struct{}, 8)
		for i := range 8 {
			p := accept(i%2 == 0)
			require.Equal(t, first.ID(), p.ID())
			others.Go(func() {
				waits <- struct{}{}
				_, all, c, fault := follow(t, p, func() { pieces.Add(1) })
				if out, _, _ := c.ReplyPlain(); fault != nil || all != f.all() || out != f.all() {
					t.Errorf("%v %q", fault, all)
				}
			})
		}
		for range 8 {
			<-waits
		}
		close(h.gates["1"])
	})
	others.Wait()
	require.Nil(t, fault)
	require.Equal(t, f.all(), whole)
	require.Len(t, before, len(whole), "every piece came before the end")
	require.Equal(t, 1, c.Slip.Tries)

	// The reverse: the first one does not stream.
	f.Gate = "2"
	plain := func(stream bool) pipeline.Pending {
		p, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "worker", Tenant: "default",
			Body: []byte(f.args()), Stream: stream, IdempotencyKey: "k2"})
		require.NoError(t, err)
		return p
	}
	one := plain(false)
	two := plain(true)
	require.Equal(t, one.ID(), two.ID())
	close(h.gates["2"])
	_, whole, _, fault = follow(t, two, nil)
	require.Nil(t, fault)
	require.Equal(t, f.all(), whole)
	_, whole, _, _ = follow(t, one, nil)
	require.Equal(t, f.all(), whole)
}

const mixedStages = `
stages:
  - {name: guard, kind: tool, enabled: false, again: true, timeout: 5s, tries: 1, writes: [request.text]}
  - {name: gloss, kind: tool, enabled: false, timeout: 5s, tries: 1, writes: [reply]}
`

// A remote stage is a streaming tool's own mandatory stage, of a tool that was registered over the API: it holds,
// answers, stops, says again and holds from its after; what a caller has read is the beginning of the result, or the
// call ends in a fault, and a part that was shown is not run for again.
func TestRemoteStageRoundAStreamingTool(t *testing.T) {
	t.Parallel()
	for name, yaml := range map[string]string{"spread": "", "fused": "bus: {fusion: true}\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startStreams(t, yaml+mixedStages)
			register(t, h.Host,
				`{"name":"guarded","executor":"go:feed","effect":"read","cache":"off","stages":{"mandatory":["guard"]}}`)
			register(t, h.Host,
				`{"name":"glossed","executor":"go:feed","effect":"read","cache":"off","stages":{"optional":["gloss"]}}`)
			var answers atomic.Bool
			var say atomic.Pointer[func(phase string, answer json.RawMessage) string]
			program(t, h.Host, "shallot.v1.stage.tool.guard", func(q map[string]json.RawMessage) string {
				phase, _ := rawjson.IsString(q["phase"])
				var call struct {
					Notes map[string]json.RawMessage `json:"notes"`
				}
				_ = json.Unmarshal(q["call"], &call)
				return (*say.Load())(phase, call.Notes["hold.answer"])
			})
			program(t, h.Host, "shallot.v1.stage.tool.gloss", func(q map[string]json.RawMessage) string {
				if answers.Load() {
					return `{"verdict":"answer","reply":{"from":"gloss"}}`
				}
				if string(q["phase"]) == `"after"` {
					return `{"verdict":"continue","reply":"all else"}`
				}
				return `{"verdict":"continue"}`
			})
			f := feed{Text: "xy", N: 20, Step: 5}
			says := func(fn func(phase string, answer json.RawMessage) string) { say.Store(&fn) }

			says(func(string, json.RawMessage) string { return `{"verdict":"continue"}` })
			before, whole, _, fault := h.read(t, "guarded", f, nil)
			require.Nil(t, fault)
			require.Equal(t, []string{f.all(), f.all()}, []string{before, whole},
				"it does not write replies: the stream passes at once")
			before, whole, _, fault = h.read(t, "glossed", f, nil)
			require.Nil(t, fault)
			require.Equal(t, []string{"", "all else"}, []string{before, whole}, "it rewrites: nothing before the end")

			answers.Store(true)
			before, _, c, fault := h.read(t, "glossed", f, nil)
			require.Nil(t, fault)
			require.Equal(t, []any{"", `{"from":"gloss"}`, 0}, []any{before, string(c.Reply()), c.Slip.Tries})
			says(func(string, json.RawMessage) string { return `{"verdict":"stop"}` })
			_, whole, c, fault = h.read(t, "guarded", f, nil)
			require.NotNil(t, fault)
			require.Equal(t, []any{messages.Stopped, "", 0}, []any{fault.Code, whole, c.Slip.Tries})

			// Again: not for a result of which a part was shown; for one that nobody has seen it is.
			var afters atomic.Int64
			again := func(phase string, _ json.RawMessage) string {
				if phase == "after" && afters.Add(1)%2 == 1 {
					return `{"verdict":"again","set":{"request.text":"other"}}`
				}
				return `{"verdict":"continue"}`
			}
			says(again)
			_, whole, c, fault = h.read(t, "guarded", f, nil)
			require.Nil(t, fault, "%v", fault)
			require.Equal(t, []any{f.all(), 1}, []any{whole, c.Slip.Tries})
			afters.Store(0)
			c = call(t, h.Host, pipeline.Request{Tool: "guarded", Body: []byte(f.args())})
			out, _, _ := c.ReplyPlain()
			require.Equal(t, []any{strings.Repeat("other", 20), 2}, []any{out, c.Slip.Tries})

			// Hold, from each phase.
			for _, phase := range []string{"before", "after"} {
				says(func(at string, answer json.RawMessage) string {
					if at == phase && answer == nil {
						return `{"verdict":"hold","question":{"may":1}}`
					}
					return `{"verdict":"continue"}`
				})
				for _, answer := range []string{`true`, ``} {
					p, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "guarded",
						Body: []byte(f.args()), Stream: true})
					require.NoError(t, err)
					seen := ""
					_, err = p.Wait(t.Context(), func(d pipeline.Delta) { text, _ := chat.ToolChunkText(d.Chunk); seen += text })
					require.ErrorIs(t, err, pipeline.ErrHeld)
					if phase == "before" {
						require.Empty(t, seen)
					} else {
						require.Equal(t, f.all(), seen)
					}
					list, err := h.Approvals.Approvals(t.Context(), "")
					require.NoError(t, err)
					require.Len(t, list, 1)
					require.Equal(t, []string{"guard", `{"may":1}`}, []string{list[0].Stage, string(list[0].Question)})
					if answer == "" {
						h.Node.Cancel(p.ID())
						c := endOf(t, h.Host, p.ID())
						require.Equal(t, messages.Cancelled, c.Fault.Code)
						require.Equal(t, phase == "before", strings.Contains(c.Fault.Message, "it was not run"), c.Fault.Message)
						require.Equal(t, phase == "after", strings.Contains(c.Fault.Message, "the tool had run"), c.Fault.Message)
						continue
					}
					require.NoError(t, h.Approvals.Decide(t.Context(), "default", p.ID(), json.RawMessage(answer), "ann"))
					c := endOf(t, h.Host, p.ID())
					require.Nil(t, c.Fault, "%v", c.Fault)
					out, _, _ := c.ReplyPlain()
					require.Equal(t, f.all(), out)
					require.Equal(t, 1, c.Slip.Tries)
				}
			}
			stats, err := h.Node.Stats(t.Context())
			require.NoError(t, err)
			asked := 0.0
			for _, row := range stats.Interceptors {
				if row.Stage == "guard" {
					asked, _ = row.Details["asked"].(float64)
				}
			}
			require.Greater(t, asked, 10.0, fmt.Sprint(stats.Interceptors))
		})
	}
}

// A stage round a tool that may not run twice says again: with the same arguments the first run's result stands, with
// others it does not pass for theirs, though a person has approved them too.
func TestAgainRoundAToolThatRunsOnce(t *testing.T) {
	t.Parallel()
	b := startTill(t, `    tool-fallback: {enabled: true}
stages:
  - {name: restless, kind: tool, enabled: false, again: true, timeout: 5s, tries: 1, writes: [request.amount]}
`, "")
	register(t, b.Host,
		`{"name":"settle","executor":"go:pay","effect":"write","approval":"always","stages":{"mandatory":["restless"]}}`)
	var edits atomic.Pointer[string]
	program(t, b.Host, "shallot.v1.stage.tool.restless", func(q map[string]json.RawMessage) string {
		if edit := edits.Load(); string(q["phase"]) == `"after"` && edit != nil {
			edits.Store(nil)
			return `{"verdict":"again"` + *edit + `}`
		}
		return ""
	})
	same, other := ``, `,"set":{"request.amount":2}`
	edits.Store(&same)
	id := b.held(t, "settle", `{"amount":1}`)
	require.Nil(t, b.decide(t, id, `"approve"`))
	c := b.end(t, id)
	require.Nil(t, c.Fault, "%v", c.Fault)
	require.Equal(t, []any{2, `{"paid":true}`}, []any{c.Slip.Tries, string(c.Reply())})
	require.Equal(t, []string{`{"amount":1}`}, b.payments())

	edits.Store(&other)
	id = b.held(t, "settle", `{"amount":1}`)
	require.Nil(t, b.decide(t, id, `"approve"`))
	require.Eventually(t, func() bool { // the other arguments are a question of their own
		a, err := b.Approvals.Approval(t.Context(), "default", id)
		return err == nil && strings.Contains(string(a.Question), `{"amount":2}`)
	}, 30*time.Second, 10*time.Millisecond)
	require.Nil(t, b.decide(t, id, `"approve"`))
	c = b.end(t, id)
	require.NotNil(t, c.Fault, "%s", c.Reply())
	require.Equal(t, messages.OutcomeUnknown, c.Fault.Code, c.Fault.Message)
	require.Contains(t, c.Fault.Message, "with other arguments")
	require.Equal(t, []string{`{"amount":1}`, `{"amount":1}`}, b.payments())
}

// A stage that holds a call is switched off while the call waits: the call goes on where it was held, and others do not
// come there any more.
func TestSwitchedOffWhileItHolds(t *testing.T) {
	t.Parallel()
	b := startTill(t, `    tool-fallback: {enabled: true}
stages:
  - {name: desk, kind: tool, order: 12, timeout: 5s, tries: 1, phases: [before]}
`, "")
	program(t, b.Host, "shallot.v1.stage.tool.desk", func(q map[string]json.RawMessage) string {
		if strings.Contains(string(q["call"]), "hold.answer") {
			return ""
		}
		return `{"verdict":"hold","question":1}`
	})
	id := b.held(t, "free", `{}`)
	_, err := b.Control().Switch(t.Context(), "desk", false, "", "op")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		p, err := b.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "free", Body: []byte(`{}`)})
		require.NoError(t, err)
		c, err := p.Wait(t.Context(), nil)
		if err != nil {
			b.Node.Cancel(p.ID())
		}
		return c != nil && c.Fault == nil
	}, 30*time.Second, 20*time.Millisecond)
	require.Nil(t, b.decide(t, id, `true`))
	require.Nil(t, b.end(t, id).Fault)

	id = b.held(t, "shred", `{}`)
	_, err = b.Control().Switch(t.Context(), "approval", false, "approval", "op")
	require.NoError(t, err)
	n := len(b.payments())
	require.Nil(t, b.decide(t, id, `"approve"`))
	require.Nil(t, b.end(t, id).Fault, "a person has said yes")
	require.Len(t, b.payments(), n+1)
}

// What a person gave in the place of a result does not stand in for the tool later, when it fails.
func TestAPersonsAnswerIsNoStaleResult(t *testing.T) {
	t.Parallel()
	h := startStreams(t, "agent: {interceptor: {tool-retry: {enabled: false}}}\n")
	register(t, h.Host, `{"name":"asked","executor":"go:feed","effect":"read","approval":"always"}`)
	b := &till{Host: h.Host}
	args := feed{Fail: "the disk is gone"}.args()
	id := b.held(t, "asked", args)
	require.Nil(t, b.decide(t, id, `{"decision":"respond","content":{"said":"by ann"}}`))
	require.Equal(t, `{"said":"by ann"}`, string(b.end(t, id).Reply()))
	id = b.held(t, "asked", args)
	require.Nil(t, b.decide(t, id, `"approve"`))
	c := b.end(t, id)
	require.Equal(t, "graceful_error", fallback(c))
	require.NotContains(t, string(c.Reply()), "by ann")
}
