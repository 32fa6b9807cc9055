package tools_test

import (
	"context"
	"encoding/json"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/systemtest/pace"
)

// A NATS worker that dies in mid-stream, or says after a piece that it has done nothing: a tool that may not run twice
// ends as an unknown outcome, once, and never runs again; pieces that come later are nobody's.
func TestStreamingWorkerThatBreaksOff(t *testing.T) {
	t.Parallel()
	h := startRoles(t, `
nats: {embedded: {port: 0, sync: 1m, data: `+t.TempDir()+`}}
agent: {interceptor: {tool-retry: {base-delay: 1ms}}}
tool:
  tools:
    - {name: dies, executor: "nats:breaks.dies", effect: write, timeout: 3s}
    - {name: slow, executor: "nats:breaks.slow", effect: write, timeout: 30s}
    - {name: busy, executor: "nats:breaks.busy", effect: write, timeout: 30s}
    - {name: many, executor: "nats:breaks.many", effect: write, idempotent: true, timeout: 3s}
`, host.Everything())
	var runs, lasts sync.Map
	_, err := h.Conn.Subscribe("breaks.*", func(m *nats.Msg) {
		n, _ := runs.LoadOrStore(strings.TrimPrefix(m.Subject, "breaks."), new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
		for i, text := range []string{"one ", "two "} {
			_ = m.RespondMsg(&nats.Msg{Data: []byte(text), Header: nats.Header{"Shallot-Chunk": {strconv.Itoa(i + 1)}}})
		}
		lasts.Store(strings.TrimPrefix(m.Subject, "breaks."), m)
		if m.Subject == "breaks.busy" {
			_ = m.RespondMsg(&nats.Msg{Header: nats.Header{"Nats-Service-Error-Code": {"503"}, "Nats-Service-Error": {"no room"},
				"Retry-After": {"0"}}})
		}
	})
	require.NoError(t, err)
	require.NoError(t, h.Conn.Flush())
	for _, row := range []struct {
		tool string
		code messages.Code
		runs int64
	}{{"dies", messages.OutcomeUnknown, 1}, {"slow", messages.OutcomeUnknown, 1}, {"busy", messages.OutcomeUnknown, 1},
		{"many", messages.StreamCut, 1}} {
		t.Run(row.tool, func(t *testing.T) {
			t.Parallel()
			for _, stream := range []bool{true, false} {
				if row.tool == "many" && !stream {
					continue // of which nobody has seen anything: it is tried again
				}
				key := row.tool + strconv.FormatBool(stream)
				runs.Delete(row.tool)
				r := pipeline.Request{Kind: messages.Tool, Tool: row.tool, Body: []byte(`{}`), Stream: stream, IdempotencyKey: key}
				if row.tool == "slow" {
					r.Deadline = time.Now().Add(4 * time.Second)
				}
				p, err := h.Entry().Accept(t.Context(), r)
				require.NoError(t, err)
				_, seen, c, fault := follow(t, p, nil)
				if stream {
					require.Equal(t, "one two ", seen, key)
				}
				require.NotNil(t, fault, key)
				require.Equal(t, row.code, fault.Code, "%s: %s", key, fault.Message)
				v, _ := lasts.Load(row.tool)
				last := v.(*nats.Msg)
				_ = last.RespondMsg(&nats.Msg{Data: []byte("three"), Header: nats.Header{"Shallot-Chunk": {"3"}}})
				_ = last.RespondMsg(&nats.Msg{Header: nats.Header{"Shallot-Chunks": {"3"}}})
				r.Deadline = time.Time{}
				p, err = h.Entry().Accept(t.Context(), r)
				require.NoError(t, err)
				require.Equal(t, c.ID, p.ID())
				again, err := p.Wait(t.Context(), nil)
				require.NoError(t, err)
				require.NotNil(t, again.Fault, key)
				require.Equal(t, c.Fault.Code, again.Fault.Code, "the same end, by its key")
				n, _ := runs.Load(row.tool)
				require.Equal(t, row.runs, n.(*atomic.Int64).Load(), key)
			}
		})
	}
}

// Equal calls at one time run the tool once, whoever of them streams; if the one that runs it leaves, the others do.
func TestEqualCallsOfWhichSomeStream(t *testing.T) {
	t.Parallel()
	h := startStreams(t, "")
	for i, leads := range []string{"streams", "does not stream", "leaves"} {
		gate := strconv.Itoa(i + 1)
		f := feed{Gate: gate, Text: "0123456789", N: 50, Step: 20}
		accept := func(stream bool, cache string) pipeline.Pending {
			p, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "feed", Body: []byte(f.args()),
				Stream: stream, Cache: cache})
			require.NoError(t, err)
			return p
		}
		watched(t, h.Host)
		running, err := h.Conn.SubscribeSync("shallot.v1.event.hop.tool.before.timeout")
		require.NoError(t, err)
		require.NoError(t, h.Conn.Flush())
		first := accept(leads != "does not stream", "")
		_, err = running.NextMsg(time.Minute)
		require.NoError(t, err)
		require.NoError(t, running.Unsubscribe())
		waits, err := h.Conn.SubscribeSync("shallot.v1.event.hop.tool.before.tool-arguments")
		require.NoError(t, err)
		require.NoError(t, h.Conn.Flush())
		var all sync.WaitGroup
		var tries atomic.Int64
		for k := range 6 {
			p := accept(k%2 == 0, "")
			all.Go(func() {
				_, whole, c, fault := follow(t, p, nil)
				out, _, _ := c.ReplyPlain()
				tries.Add(int64(c.Slip.Tries))
				if fault != nil || out != f.all() || k%2 == 0 && whole != out {
					t.Errorf("%v %q", fault, out)
				}
			})
			_, err := waits.NextMsg(time.Minute)
			require.NoError(t, err)
		}
		if leads == "leaves" {
			first.Leave()
			require.ErrorIs(t, <-h.left, pipeline.ErrCancelled)
		}
		close(h.gates[gate])
		all.Wait()
		c, err := first.Wait(t.Context(), nil)
		require.NoError(t, err)
		if leads == "leaves" {
			require.Equal(t, messages.Cancelled, c.Fault.Code)
			require.Positive(t, tries.Load(), "nobody waits twice: the others run it")
			continue
		}
		require.Nil(t, c.Fault)
		require.Zero(t, tries.Load(), leads)
		// The caller's wish holds for streams too.
		for cache, ran := range map[string]int{"use": 0, "refresh": 1, "off": 1} {
			before, whole, c, fault := follow(t, accept(true, cache), nil)
			require.Nil(t, fault)
			require.Equal(t, f.all(), whole)
			require.Equal(t, ran, c.Slip.Tries, cache)
			require.Equal(t, ran == 1, before == whole, cache)
		}
	}
}

// watched has the events of hops go out, as they do while somebody looks on.
func watched(t *testing.T, h *host.Host) {
	t.Helper()
	seen, err := h.Conn.SubscribeSync("shallot.v1.event.hop.>")
	require.NoError(t, err)
	defer func() { _ = seen.Unsubscribe() }()
	require.Eventually(t, func() bool {
		require.NoError(t, h.Conn.Publish("shallot.v1.control.watch", nil))
		call(t, h, pipeline.Request{Tool: "getCurrentTime", Body: []byte(`{}`)})
		_, err := seen.NextMsg(50 * time.Millisecond)
		return err == nil
	}, time.Minute, time.Millisecond)
}

// A call goes on after its hold while the program of a tool's own remote stage is not there: it waits for it with the
// time that it had, and the tool runs once. If the program does not come, a tool that may not run twice has an
// unknown outcome.
func TestResumedCallWithoutItsProgram(t *testing.T) {
	t.Parallel()
	b := startTill(t, `    tool-fallback: {enabled: true}
stages:
  - {name: keeper, kind: tool, enabled: false, timeout: 5s, tries: 1}
  - {name: inner, kind: tool, enabled: false, timeout: 5s, tries: 1, phases: [before]}
`, "")
	register(t, b.Host,
		`{"name":"kept","executor":"go:pay","effect":"write","approval":"always","stages":{"mandatory":["keeper"],`+
			`"optional":["inner"]}}`)
	serve := func(name string) (stop func()) {
		sub, err := b.Conn.Subscribe("shallot.v1.stage.tool."+name, func(m *nats.Msg) { _ = m.Respond(nil) })
		require.NoError(t, err)
		require.NoError(t, b.Conn.Flush())
		return func() { require.NoError(t, sub.Unsubscribe()); require.NoError(t, b.Conn.Flush()) }
	}
	absent := func(name string, more float64) {
		t.Helper()
		require.Eventually(t, func() bool {
			stats, err := b.Node.Stats(t.Context())
			require.NoError(t, err)
			for _, row := range stats.Interceptors {
				if n, _ := row.Details["absent"].(float64); row.Stage == name && n > more {
					return true
				}
			}
			return false
		}, 30*time.Second, 20*time.Millisecond)
	}
	stop := serve("keeper")
	id := b.held(t, "kept", `{"n":1}`)
	require.Nil(t, b.decide(t, id, `"approve"`))
	absent("inner", 0)
	require.Empty(t, b.payments())
	stopInner := serve("inner")
	c := b.end(t, id)
	require.Nil(t, c.Fault, "%v", c.Fault)
	require.Len(t, b.payments(), 1)

	id = b.held(t, "kept", `{"n":2}`)
	stop()
	require.Nil(t, b.decide(t, id, `"approve"`))
	absent("keeper", 0)
	require.Len(t, b.payments(), 2, "it ran, and its result waits for the keeper")
	stop = serve("keeper")
	require.Nil(t, b.end(t, id).Fault)

	id = b.held(t, "kept", `{"n":3}`, func(r *pipeline.Request) { r.Deadline = time.Now().Add(8 * time.Second) })
	stop()
	require.Nil(t, b.decide(t, id, `"approve"`))
	c = b.end(t, id)
	require.NotNil(t, c.Fault)
	require.Equal(t, messages.OutcomeUnknown, c.Fault.Code, c.Fault.Message)
	require.Len(t, b.payments(), 3)
	stopInner()
}

// A worker dies after the yes of a person, when the tool had begun: what is recorded stands, else nobody knows, and
// nothing runs again. Nobody is asked a second time.
func TestWorkerDiesAfterTheYes(t *testing.T) {
	t.Parallel()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Port: -1, Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	w := newCrashWorld(t, srv.ClientURL())
	yaml := strings.Replace(w.yaml(), "effect: write, timeout", "effect: write, approval: always, timeout", 1)
	require.NoError(t, os.WriteFile(w.file, []byte("version: 1\ntexts: zh\n"+yaml), 0o600))
	b := &till{Host: startRoles(t, yaml, host.Roles{All: true, Entry: true})}
	for at, want := range map[string]struct {
		code messages.Code
		ran  int
	}{dieAfterIntent: {messages.OutcomeUnknown, 0}, dieAfterRun: {messages.OutcomeUnknown, 1},
		dieAfterRecord: {"", 1}} {
		t.Run(at, func(t *testing.T) {
			dying := w.process("", at)
			id := b.held(t, "once", `{}`, func(r *pipeline.Request) { r.Stream = true })
			require.Nil(t, b.decide(t, id, `{"decision":"edit","arguments":{"edited":true}}`))
			dying.dead()
			next := w.process("", "")
			defer next.kill()
			c := b.end(t, id)
			if want.code == "" {
				require.Nil(t, c.Fault, "%v", c.Fault)
			} else {
				require.NotNil(t, c.Fault)
				require.Equal(t, want.code, c.Fault.Code, c.Fault.Message)
			}
			require.Equal(t, `{"edited":true}`, string(c.Request()))
			require.Equal(t, want.ran, w.ran(id))
			list, err := b.Approvals.Approvals(t.Context(), "")
			require.NoError(t, err)
			require.Empty(t, list)
		})
	}
}

// A question whose time ends while the whole installation is down has ended when it comes up.
func TestApprovalExpiresWhileAllIsDown(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	first := startTill(t, "", data)
	register(t, first.Host, `{"name":"brief","executor":"go:pay","effect":"write","approval":"quick"}`)
	id := first.held(t, "brief", `{}`, func(r *pipeline.Request) { r.Stream = true })
	a, err := first.Approvals.Approval(t.Context(), "default", id)
	if err == nil { // a slow machine may have ended it already
		first.stop(t)
		<-time.After(time.Until(a.Expires)) // simulated: the installation is down
	} else {
		first.stop(t)
	}
	second := startTill(t, "", data)
	c := second.end(t, id)
	require.Equal(t, messages.Blocked, c.Fault.Code)
	require.Contains(t, c.Fault.Message, "nobody decided")
	require.Equal(t, messages.Conflict, second.decide(t, id, `"approve"`).Code)
	require.Empty(t, append(first.payments(), second.payments()...))
}

// Callers who leave their streams, calls that wait and are cancelled, and questions to programs that give no answer
// leave no goroutine and no subscription behind.
func TestInterplayLeavesNothing(t *testing.T) {
	h := startStreams(t, `
stages:
  - {name: mute, kind: tool, enabled: false, timeout: 100ms, tries: 1, phases: [before]}
`)
	register(t, h.Host, `{"name":"asked","executor":"go:feed","effect":"read","approval":"always","cache":"off"}`)
	register(t, h.Host,
		`{"name":"muted","executor":"go:feed","effect":"read","cache":"off","stages":{"mandatory":["mute"]}}`)
	_, err := h.Conn.Subscribe("shallot.v1.stage.tool.mute", func(*nats.Msg) {})
	require.NoError(t, err)
	require.NoError(t, h.Conn.Flush())
	go func() {
		for range h.left { // every run that is given up says so
		}
	}()
	b := &till{Host: h.Host}
	many := func(n int, do func(i int)) {
		var all sync.WaitGroup
		slots := make(chan struct{}, 20)
		for i := range n {
			slots <- struct{}{}
			all.Go(func() { do(i); <-slots })
		}
		all.Wait()
	}
	leaving := func(i int) {
		f := feed{Gate: "5", Text: strconv.Itoa(i), N: 30, Step: 4}
		p, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "feed", Body: []byte(f.args()),
			Stream: true})
		if err != nil {
			t.Error(err)
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		_, _ = p.Wait(ctx, func(d pipeline.Delta) {
			if _, ok := chat.ToolChunkText(d.Chunk); ok {
				p.Leave()
				cancel()
			}
		})
	}
	waiting := func(i int) {
		p, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "asked",
			Body: []byte(`{"n":` + strconv.Itoa(i) + `}`), Stream: i%2 == 0})
		if err != nil {
			t.Error(err)
			return
		}
		if _, err = p.Wait(t.Context(), nil); err != pipeline.ErrHeld {
			t.Error(err)
		}
		if i%2 == 0 {
			h.Node.Cancel(p.ID())
		} else if err := h.Approvals.Decide(t.Context(), "default", p.ID(), json.RawMessage(`"approve"`), "ann"); err != nil {
			t.Error(err)
		}
		b.end(t, p.ID())
	}
	mute := func(int) {
		if c := call(t, h.Host, pipeline.Request{Tool: "muted", Body: []byte(`{}`)}); c.Fault == nil ||
			c.Fault.Code != messages.StageError {
			t.Errorf("%v", c.Fault)
		}
	}
	calls := 200
	if pace.Race {
		calls = 100
	}
	for name, do := range map[string]func(int){"leaving": leaving, "waiting": waiting, "mute": mute} {
		many(calls, do) // what is made once, goroutines that are kept for more work among it
		quiet := func() (int, int) { return runtime.NumGoroutine(), h.Conn.NumSubscriptions() }
		var goroutines, subs int
		require.Eventually(t, func() bool {
			g, s := quiet()
			steady := g == goroutines && s == subs
			goroutines, subs = g, s
			return steady
		}, 30*time.Second, 200*time.Millisecond)
		many(calls, do)
		ok := false
		var g, s int
		for until := time.Now().Add(time.Minute); !ok && time.Now().Before(until); {
			<-time.After(50 * time.Millisecond) // simulated: they end
			g, s = quiet()
			ok = g <= goroutines+calls/2 && s <= subs+2 // less than one left over for each call
		}
		require.True(t, ok, "%s: goroutines %d then %d, subscriptions %d then %d", name, goroutines, g, subs, s)
	}
	list, err := h.Approvals.Approvals(t.Context(), "")
	require.NoError(t, err)
	require.Empty(t, list)
}
