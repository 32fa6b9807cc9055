package tools_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/systemtest/pace"
)

// programProcess is the program of two remote stages as anybody would write one, in one micro service: an audit that
// writes a line for each question into a file, and a limit. A question of a call of user "hang" is never answered.
func programProcess(url, file string) error {
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	s, err := micro.AddService(nc, micro.Config{Name: "my-stages", Version: "1.0.0"})
	if err != nil {
		return err
	}
	type question struct {
		Phase string `json:"phase"`
		Key   string `json:"key"`
		Call  struct {
			User  string          `json:"user"`
			Notes map[string]bool `json:"notes"`
		} `json:"call"`
	}
	for _, name := range []string{"my-audit", "my-limit"} {
		if err := s.AddEndpoint(name, inGoroutine(func(r micro.Request) {
			var q question
			_ = json.Unmarshal(r.Data(), &q)
			_, _ = fmt.Fprintln(f, name, q.Phase, q.Key, os.Getpid(), q.Call.Notes["executorReached"])
			if q.Call.User == "slow" {
				<-time.After(10 * time.Millisecond) // simulated: work to be killed in
			}
			switch {
			case q.Call.User == "hang":
			case name == "my-limit" && q.Call.User == "greedy":
				_ = r.Respond([]byte(`{"error":{"code":"rate_limited","message":"not so fast","retry_after_ms":2000}}`))
			default:
				_ = r.Respond(nil)
			}
		}), micro.WithEndpointSubject("shallot.v1.stage.tool."+name)); err != nil {
			return err
		}
	}
	if err := nc.Flush(); err != nil {
		return err
	}
	fmt.Println("ready")
	return nil
}

func inGoroutine(f func(micro.Request)) micro.Handler {
	return micro.HandlerFunc(func(r micro.Request) { go f(r) })
}

// ownYAML has programs that are given so much time for a question.
func ownYAML(limit time.Duration) string {
	return strings.ReplaceAll(ownTools, "LIMIT", limit.String())
}

const ownTools = `
bus: {ack-wait: 1s}
agent: {interceptor: {tool-fallback: {enabled: false}, tool-retry: {enabled: false}}}
stages:
  - {name: my-audit, kind: tool, enabled: false, timeout: LIMIT, tries: 1, reads: [call]}
  - {name: my-limit, kind: tool, enabled: false, timeout: LIMIT, phases: [before], reads: [call]}
tool:
  tools:
    - {name: guarded, executor: "go:echo", effect: read, cache: on, stages: {mandatory: [my-audit],
        optional: [my-limit]}}
    - {name: plain, executor: "go:echo", effect: read, cache: on}
`

// install runs an installation in parts: an entry, a worker for each of the given lists of stages, and the rest.
func install(t *testing.T, url, yaml string, workers ...[]string) *host.Host {
	t.Helper()
	yaml = "nats: {url: \"" + url + "\"}\n" + yaml
	var theirs []string
	for _, names := range workers {
		theirs = append(theirs, names...)
		startRoles(t, yaml, host.Roles{Stages: names})
	}
	h := startRoles(t, yaml, host.Roles{Entry: true, Model: true, Tool: true})
	var rest []string
	for _, s := range h.Manager.Stages("") {
		if !slices.Contains(theirs, s.Name) {
			rest = append(rest, s.Name)
		}
	}
	startRoles(t, yaml, host.Roles{Stages: rest})
	return h
}

// S2-CHAIN-2, S2-CHAIN-4, S2-CHAIN-5, S2-DEF-1, CH-14, X-51: a tool's own mandatory and optional stages, whose
// programs are processes of their own: the audit sees every call, cache hits and failures among them; a hit takes
// nothing from the limit.
func TestOwnRemoteStages(t *testing.T) {
	if testing.Short() {
		t.Skip("starts and kills processes")
	}
	t.Parallel()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Port: -1, Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	log := filepath.Join(t.TempDir(), "log")
	p := &process{t: t, env: []string{"SHALLOT_TEST_PROCESS=program", "SHALLOT_TEST_FILE=" + log,
		"SHALLOT_TEST_NATS=" + srv.ClientURL()}}
	p.start()
	t.Cleanup(func() { p.kill() })
	h := install(t, srv.ClientURL(), ownYAML(5*time.Second), []string{"my-audit"}, []string{"my-limit"})

	seen := func() (lines []string) {
		raw, err := os.ReadFile(log)
		require.NoError(t, err)
		require.NoError(t, os.Truncate(log, 0))
		for line := range strings.Lines(string(raw)) {
			f := strings.Fields(line)
			require.Len(t, f, 5)
			lines = append(lines, f[0]+" "+f[1]+" "+f[4])
		}
		return lines
	}
	do := func(tool, user, args string) *messages.Call {
		return call(t, h, pipeline.Request{Tool: tool, User: user, Body: []byte(args),
			Deadline: time.Now().Add(55 * time.Second)})
	}
	require.Nil(t, do("plain", "", `{"n":0}`).Fault)
	require.Empty(t, seen(), "no tool but its own passes it")

	c := do("guarded", "", `{"n":1}`)
	require.Nil(t, c.Fault, "%v", c.Fault)
	require.Equal(t, []string{"my-audit before false", "my-limit before false", "my-audit after true"}, seen())
	require.Contains(t, strings.Join(c.Slip.Path, ","), "audit.beforeTool,my-audit.beforeTool,")
	c = do("guarded", "", `{"n":1}`)
	require.True(t, hit(c))
	require.Equal(t, []string{"my-audit before false", "my-audit after false"}, seen(),
		"a hit is seen, and takes nothing from the limit")
	require.False(t, c.Flag(messages.NoteExecutorReached))

	c = do("guarded", "greedy", `{"n":2}`)
	require.Equal(t, messages.RateLimited, c.Fault.Code)
	require.Equal(t, "my-limit", c.Fault.Origin)
	require.Equal(t, 2*time.Second, c.Fault.RetryAfter)
	require.Equal(t, []string{"my-audit before false", "my-limit before false", "my-audit after false"}, seen(),
		"and so is a refusal")

	// Killed in the middle of a question: the mandatory stage fails the call, because nobody may pass it unseen.
	pending, err := h.Entry().Accept(t.Context(),
		pipeline.Request{Kind: messages.Tool, Tool: "guarded", User: "hang", Body: []byte(`{"n":3}`)})
	require.NoError(t, err)
	require.Eventually(t, func() bool { raw, _ := os.ReadFile(log); return strings.Contains(string(raw), "my-audit") },
		30*time.Second, 5*time.Millisecond)
	p.kill()
	c, err = pending.Wait(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, messages.StageError, c.Fault.Code, c.Fault.Message)
	require.Equal(t, "my-audit", c.Fault.Origin)
	require.Zero(t, c.Slip.Tries)
	seen()

	// While nobody is there, calls wait, and go on when the program is back.
	pending, err = h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "guarded",
		Body: []byte(`{"n":4}`)})
	require.NoError(t, err)
	absent := func() float64 {
		n := 0.0
		stats, err := h.Node.Stats(t.Context())
		require.NoError(t, err)
		for _, row := range stats.Interceptors {
			if row.Stage == "my-audit" {
				n, _ = row.Details["absent"].(float64)
			}
		}
		return n
	}
	require.Eventually(t, func() bool { return absent() > 0 }, 30*time.Second, 20*time.Millisecond,
		"the statistics tell of it")
	p.start()
	c, err = pending.Wait(t.Context(), nil)
	require.NoError(t, err)
	require.Nil(t, c.Fault)
	require.Equal(t, []string{"my-audit before false", "my-limit before false", "my-audit after true"}, seen())
}

// A program killed again and again under load: every call ends once, with the tool's answer or the stage's fault, and a
// call that ended well was seen by the audit on both sides.
func TestRemoteProgramsUnderKills(t *testing.T) {
	if testing.Short() {
		t.Skip("starts and kills processes")
	}
	t.Parallel()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Port: -1, Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	log := filepath.Join(t.TempDir(), "log")
	var all []*process
	for range 2 {
		p := &process{t: t, env: []string{"SHALLOT_TEST_PROCESS=program", "SHALLOT_TEST_FILE=" + log,
			"SHALLOT_TEST_NATS=" + srv.ClientURL()}}
		p.start()
		t.Cleanup(func() { p.kill() })
		all = append(all, p)
	}
	h := install(t, srv.ClientURL(), ownYAML(time.Second), []string{"my-audit", "my-limit"})
	calls := 30 * (1 + pace.Rounds(4)) // each thirty of them, but the last, have their kill
	ends := make([]*messages.Call, calls)
	var callers sync.WaitGroup
	slots, done := make(chan struct{}, 16), make(chan struct{}, calls)
	callers.Go(func() {
		for i := range calls {
			slots <- struct{}{}
			callers.Go(func() {
				ends[i] = call(t, h, pipeline.Request{Tool: "guarded", User: "slow", Body: fmt.Appendf(nil, `{"n":%d}`, i)})
				<-slots
				done <- struct{}{}
			})
		}
	})
	for i := range calls {
		<-done
		if i%30 == 29 && i < calls-1 {
			p := all[(i/30)%2]
			p.kill()
			p.start()
		}
	}
	callers.Wait()
	raw, err := os.ReadFile(log)
	require.NoError(t, err)
	good := 0
	for i, c := range ends {
		require.NotNil(t, c, "call %d", i)
		if c.Fault != nil {
			require.Equal(t, messages.StageError, c.Fault.Code, c.Fault.Message)
			continue
		}
		good++
		for _, phase := range []string{"before", "after"} {
			require.Contains(t, string(raw), "my-audit "+phase+" "+c.ID+".my-audit."+phase+".", "call %d", i)
		}
	}
	require.Greater(t, good, calls/2)
	t.Logf("%d of %d calls ended well", good, calls)
}

// program answers on a subject of the host's server with what f says; it ends with the test.
func program(t testing.TB, h *host.Host, subject string, f func(q map[string]json.RawMessage) string) {
	t.Helper()
	_, err := h.Conn.QueueSubscribe(subject, "program", func(m *nats.Msg) {
		q := map[string]json.RawMessage{}
		_ = json.Unmarshal(m.Data, &q)
		_ = m.Respond([]byte(f(q)))
	})
	require.NoError(t, err)
	require.NoError(t, h.Conn.Flush())
}

// A remote model stage is a stage like any other: on the route, in the statistics and diagnostics, switched, and
// streams are held back behind its after, because no program filters chunks.
func TestRemoteModelStage(t *testing.T) {
	t.Parallel()
	h := startRoles(t, `
nats: {embedded: {port: 0, sync: 1m, data: `+t.TempDir()+`}}
stages:
  - {name: shout, kind: model, order: 40, subject: eu.shout, writes: [request.messages, reply.text]}
`, host.Everything())
	program(t, h, "eu.shout", func(q map[string]json.RawMessage) string {
		if string(q["phase"]) == `"before"` {
			return `{"verdict":"continue","set":{"request.messages.0.content":"quiet"}}`
		}
		return `{"verdict":"continue","set":{"reply.choices.0.message.content":"LOUD"},"notes":{"shout.was":true}}`
	})
	chat := func(stream bool) (*messages.Call, []pipeline.Delta) {
		body := fmt.Sprintf(`{"model":"demo/echo","stream":%v,"messages":[{"role":"user","content":"hello there"}]}`, stream)
		p, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Model, Stream: stream, Body: []byte(body)})
		require.NoError(t, err)
		var deltas []pipeline.Delta
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		c, err := p.Wait(ctx, func(d pipeline.Delta) { deltas = append(deltas, d) })
		require.NoError(t, err)
		return c, deltas
	}
	c, _ := chat(false)
	require.Nil(t, c.Fault, "%v", c.Fault)
	require.Contains(t, string(c.Request()), `"content":"quiet"`)
	require.Contains(t, string(c.Reply()), `"content":"LOUD"`)
	require.Contains(t, strings.Join(c.Slip.Path, ","), "shout.beforeModel,logging.beforeModel")
	c, deltas := chat(true)
	require.Nil(t, c.Fault)
	require.Empty(t, deltas, "what the caller sees is what the after made of it")
	require.Contains(t, string(c.Reply()), `"content":"LOUD"`)

	stats, err := h.Node.Stats(t.Context())
	require.NoError(t, err)
	found := false
	for _, row := range stats.Interceptors {
		if row.Stage == "shout" {
			found = true
			require.EqualValues(t, 2, row.Invocations)
			require.EqualValues(t, 4, row.Details["asked"])
			require.Equal(t, "eu.shout", row.Details["subject"])
		}
	}
	require.True(t, found)
	d, err := h.Node.Diagnostics(t.Context())
	require.NoError(t, err)
	raw, err := json.Marshal(d)
	require.NoError(t, err)
	require.Contains(t, string(raw), "no-chunk-filter")

	_, err = h.Node.Switch(t.Context(), "shout", false, "", "test")
	require.NoError(t, err)
	require.Eventually(t, func() bool { c, _ := chat(false); return strings.Contains(string(c.Reply()), "hello there") },
		30*time.Second, 20*time.Millisecond)
}

func TestRemoteStagesRefused(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ stages, has string }{
		"two writers": {`[{name: a, kind: model, order: 40, writes: [request.user]}, {name: b, kind: model, order: 40, ` +
			`writes: [request.user]}]`,
			"a (40) and b (40) share an order and both write request.user"},
		"built in": {`[{name: tool-cache, kind: tool}]`, "built-in tool stage"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "shallot.yaml")
			require.NoError(t,
				os.WriteFile(file,
					[]byte("version: 1\nnats: {embedded: {port: 0, sync: 1m, data: "+t.TempDir()+"}}\nstages: "+row.stages+"\n"),
					0o600))
			l, err := host.Load(file, nil, nil)
			if err == nil {
				checked := host.CheckConfig(t.Context(), host.Options{Config: l, Roles: host.Everything()})
				require.ErrorContains(t, checked, row.has, "gateway config check finds it without a start")
				require.ErrorContains(t, checked, file+":3:11: stages[0]", "and says where")
				_, err = host.Start(t.Context(), host.Options{Config: l, Roles: host.Everything(), Name: t.Name(),
					Drain: time.Second, Getenv: func(string) string { return "" }})
			}
			require.ErrorContains(t, err, row.has)
		})
	}
}
