package tools_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/systemtest/pace"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// The points at which a worker kills itself.
const (
	dieAfterIntent = "between intent and execution"
	dieAfterRun    = "after the execution, before its record"
	dieAfterRecord = "after the record, before the reply"
)

// die is SIGKILL, and nothing after it.
func die() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	select {}
}

// crashProcess is a worker, or with the role entry an accepting process, whose Go tool writes a line to a file for each
// run, and which dies where SHALLOT_TEST_DIE says.
func crashProcess(file string) error {
	at, effects := os.Getenv("SHALLOT_TEST_DIE"), os.Getenv("SHALLOT_TEST_EFFECTS")
	roles := host.Roles{Tool: true}
	if os.Getenv("SHALLOT_TEST_ROLE") == "entry" {
		roles = host.Roles{All: true, Entry: true}
	}
	l, err := host.Load(file, nil, nil)
	if err != nil {
		return err
	}
	h, err := host.Start(context.Background(), host.Options{Config: l, Roles: roles, Name: "crash", Drain: time.Second,
		Getenv: func(string) string { return "" },
		Funcs: toolbox.GoFuncs{"effect": func(ctx context.Context, inv toolbox.Invocation) (toolbox.Result, error) {
			if at == dieAfterIntent {
				die()
			}
			f, err := os.OpenFile(effects, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
			if err != nil {
				return toolbox.Result{}, err
			}
			_, _ = fmt.Fprintln(f, inv.CallID)
			_ = f.Close()
			switch at {
			case dieAfterRun:
				die()
			case "never": // somebody else kills it, or the server
				<-time.After(300 * time.Millisecond) // simulated: work
			}
			return toolbox.Result{Content: []byte(`{"ok":true}`)}, nil
		}},
	})
	if err != nil {
		return err
	}
	if at == dieAfterRecord {
		js, err := jetstream.New(h.Conn)
		if err != nil {
			return err
		}
		kv, err := js.KeyValue(context.Background(), "shallot_begun")
		if err != nil {
			return err
		}
		w, err := kv.WatchAll(context.Background(), jetstream.UpdatesOnly())
		if err != nil {
			return err
		}
		go func() {
			for e := range w.Updates() {
				if e != nil && bytes.Contains(e.Value(), []byte(`"done"`)) {
					die()
				}
			}
		}()
	}
	fmt.Println("ready")
	return nil
}

// crashWorld is an installation of which each part can be killed.
type crashWorld struct {
	t       *testing.T
	url     string
	dir     string
	effects string
	file    string
}

func newCrashWorld(t *testing.T, url string) *crashWorld {
	t.Helper()
	if testing.Short() {
		t.Skip("starts and kills processes")
	}
	dir := t.TempDir()
	w := &crashWorld{t: t, url: url, dir: dir, effects: filepath.Join(dir, "effects"),
		file: filepath.Join(dir, "worker.yaml")}
	require.NoError(t, os.WriteFile(w.file, []byte("version: 1\ntexts: zh\n"+w.yaml()), 0o600))
	return w
}

func (w *crashWorld) yaml() string {
	return `
nats: {url: "` + w.url + `"}
bus: {ack-wait: 1s}
tool:
  tools:
    - {name: once, executor: "go:effect", effect: write, timeout: 20s, check: many}
    - {name: many, executor: "go:effect", effect: write, idempotent: true, timeout: 20s, cache: "off",
        retry: networkRetry}
`
}

func (w *crashWorld) process(role, at string) *process {
	w.t.Helper()
	p := &process{t: w.t, env: []string{"SHALLOT_TEST_PROCESS=crash", "SHALLOT_TEST_FILE=" + w.file,
		"SHALLOT_TEST_ROLE=" + role,
		"SHALLOT_TEST_EFFECTS=" + w.effects, "SHALLOT_TEST_DIE=" + at}}
	p.start()
	w.t.Cleanup(p.kill)
	return p
}

func (w *crashWorld) ran(id string) (n int) {
	w.t.Helper()
	raw, err := os.ReadFile(w.effects)
	if err != nil {
		return 0
	}
	for _, f := range strings.Fields(string(raw)) {
		if id == "" || f == id {
			n++
		}
	}
	return n
}

// dead waits until a process has died of itself.
func (p *process) dead() {
	p.t.Helper()
	done := make(chan struct{})
	go func() { _ = p.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		require.Fail(p.t, "it did not die")
	}
}

// dying is an installation whose worker dies at a step of each call.
type dying struct {
	*crashWorld
	entry *host.Host
	at    string
	tool  string
}

func newDying(t *testing.T, at, tool string) *dying {
	t.Helper()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Port: -1, Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	w := newCrashWorld(t, srv.ClientURL())
	return &dying{w, startRoles(t, w.yaml(), host.Roles{All: true, Entry: true}), at, tool}
}

// call has a worker die in a call.
func (d *dying) call(r pipeline.Request) pipeline.Pending {
	d.t.Helper()
	worker := d.process("", d.at)
	if !r.Deadline.IsZero() {
		r.Deadline = time.Now().Add(dyingTime)
	}
	r.Kind, r.Tool, r.Body = messages.Tool, d.tool, []byte(`{}`)
	p, err := d.entry.Entry().Accept(d.t.Context(), r)
	require.NoError(d.t, err)
	worker.dead()
	return p
}

func (d *dying) end(p pipeline.Pending) *messages.Call {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 2*time.Minute)
	defer cancel()
	c, err := p.Wait(ctx, nil)
	require.NoError(d.t, err)
	return c
}

// dyingTime is the time of a call that nobody takes up in time.
const dyingTime = 6 * time.Second

// A worker dies at each step of a tool call, and another one takes the call up: at once, or only when its time is over.
func TestWorkerDiesAtEachStep(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		at      string
		once    messages.Code // another worker is there
		onceRan int
		late    messages.Code // nobody is there until its time is over
		manyRan int
	}{
		{dieAfterIntent, messages.OutcomeUnknown, 0, messages.OutcomeUnknown, 1},
		{dieAfterRun, messages.OutcomeUnknown, 1, messages.OutcomeUnknown, 2},
		{dieAfterRecord, "", 1, "", 0}, // whoever looks finds the record
	} {
		for _, tool := range []string{"once", "many"} {
			if tool == "many" && x.at == dieAfterRecord {
				continue // it has no record of its own
			}
			want, ran := x.once, x.onceRan
			if tool == "many" {
				want, ran = "", x.manyRan
			}
			t.Run(x.at+"/"+tool+"/in time", func(t *testing.T) {
				t.Parallel()
				d := newDying(t, x.at, tool)
				p := d.call(pipeline.Request{})
				d.process("", "")
				c := d.end(p)
				if want == "" {
					require.Nil(t, c.Fault, "%v", c.Fault)
					require.Equal(t, `{"ok":true}`, string(c.Reply()))
				} else {
					require.NotNil(t, c.Fault)
					require.Equal(t, want, c.Fault.Code, c.Fault.Message)
					require.Contains(t, c.Fault.Message, "may have been carried out")
					require.Contains(t, c.Fault.Message, "'many'", "what to check with")
				}
				require.Equal(t, ran, d.ran(c.ID))
			})
			if tool == "many" && x.at != dieAfterRun {
				continue
			}
			for _, submit := range []bool{false, true} {
				name := map[bool]string{false: "too late", true: "submitted, too late"}[submit]
				t.Run(x.at+"/"+tool+"/"+name, func(t *testing.T) {
					t.Parallel()
					newDying(t, x.at, tool).tooLate(submit, x.late)
				})
			}
		}
	}
}

// tooLate has no worker there until the time of the call is over.
func (d *dying) tooLate(submit bool, want messages.Code) {
	p := d.call(pipeline.Request{Submit: submit, Deadline: time.Now()})
	if submit { // nobody waits: whoever takes it up, when its time is over, writes its end
		over := time.NewTimer(dyingTime)
		<-over.C // simulated: nobody is there
		d.process("", "")
	}
	c := d.end(p)
	if want == "" {
		require.Nil(d.t, c.Fault, "%v", c.Fault)
		require.Equal(d.t, 1, d.ran(c.ID))
		return
	}
	require.NotNil(d.t, c.Fault, "%s", c.Reply())
	if d.tool == "many" {
		want = messages.DeadlineExceeded
	}
	require.Equal(d.t, want, c.Fault.Code, c.Fault.Message)
	if d.tool == "once" {
		require.LessOrEqual(d.t, d.ran(c.ID), 1)
	}
}

// natsProcess is a NATS server that can be killed.
func natsProcess(dir, port string) error {
	n, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	if _, err := embed.Start(embed.Options{Dir: dir, Port: n}); err != nil {
		return err
	}
	fmt.Println("ready")
	return nil
}

// The process that accepted the call dies while its tool runs, then the NATS server does. The caller asks again with
// the idempotency key, and gets the end of the one run.
func TestEntryAndServerDieWhileAToolRuns(t *testing.T) {
	t.Parallel()
	port := pace.Port(t)
	w := newCrashWorld(t, "nats://127.0.0.1:"+port)
	server := &process{t: t, env: []string{"SHALLOT_TEST_PROCESS=nats",
		"SHALLOT_TEST_FILE=" + filepath.Join(w.dir, "nats"), "SHALLOT_TEST_PORT=" + port}}
	server.start()
	t.Cleanup(func() { server.kill() })
	w.process("", "never")
	entry := w.process("entry", "")
	nc, err := nats.Connect(w.url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	for i, who := range []string{"nobody", "entry", "server"} {
		for _, tool := range []string{"once", "many"} {
			t.Run(who+"/"+tool, func(t *testing.T) {
				before := w.ran("")
				key := fmt.Sprintf("key-%d-%s", i, tool)
				try := func(wait time.Duration) (*nats.Msg, error) {
					m := nats.NewMsg("shallot.v1.tool.request." + tool)
					m.Data, m.Header["Idempotency-Key"] = []byte(`{}`), []string{key}
					return nc.RequestMsg(m, wait)
				}
				var first sync.WaitGroup
				first.Go(func() { _, _ = try(time.Second) })
				require.Eventually(t, func() bool { return w.ran("") > before }, 30*time.Second, time.Millisecond, "it runs")
				switch who {
				case "entry":
					entry.kill()
					entry.start()
				case "server":
					server.kill()
					server.start()
				}
				first.Wait()
				var m *nats.Msg
				require.Eventually(t, func() bool {
					m, err = try(20 * time.Second)
					return err == nil && m.Header.Get("Shallot-Fault") != string(messages.Overloaded)
				}, 60*time.Second, 50*time.Millisecond)
				fault := m.Header.Get("Shallot-Fault")
				if tool == "many" || who == "nobody" {
					require.Equal(t, `{"ok":true}`, string(m.Data), fault)
				} else if fault != string(messages.OutcomeUnknown) {
					require.Equal(t, `{"ok":true}`, string(m.Data), fault)
				}
				if tool == "once" {
					require.Equal(t, before+1, w.ran(""), "it has run once")
				}
				t.Logf("%s %s: fault %q, %d runs", who, tool, fault, w.ran("")-before)
			})
		}
	}
}
