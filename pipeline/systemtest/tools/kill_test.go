package tools_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/systemtest/pace"
)

// sideBySide is how many tests run at once: most of their time they wait for leases, deadlines and restarts.
const sideBySide = 10

// TestMain lets this test binary be the processes that the kill test kills.
func TestMain(m *testing.M) {
	var err error
	switch os.Getenv("SHALLOT_TEST_PROCESS") {
	case "":
		pace.Parallel(sideBySide)
		os.Exit(m.Run())
	case "tool":
		err = toolProcess(os.Getenv("SHALLOT_TEST_NATS"), os.Getenv("SHALLOT_TEST_FILE"))
	case "crash":
		err = crashProcess(os.Getenv("SHALLOT_TEST_FILE"))
	case "nats":
		err = natsProcess(os.Getenv("SHALLOT_TEST_FILE"), os.Getenv("SHALLOT_TEST_PORT"))
	case "host":
		err = hostProcess(os.Getenv("SHALLOT_TEST_FILE"), host.Roles{Tool: true})
	case "everything":
		err = hostProcess(os.Getenv("SHALLOT_TEST_FILE"), host.Everything())
	case "program":
		err = programProcess(os.Getenv("SHALLOT_TEST_NATS"), os.Getenv("SHALLOT_TEST_FILE"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the test, however the test ends
}

// effectsIn counts the effects that tools wrote into a file, by call.
func effectsIn(t *testing.T, file string) map[string]int {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	ran := map[string]int{}
	for _, id := range strings.Fields(string(raw)) {
		ran[id]++
	}
	return ran
}

// toolProcess is a tool worker as anybody would write one: a micro service whose side effect is a line in a file.
func toolProcess(url, file string) error {
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	s, err := micro.AddService(nc, micro.Config{Name: "worker", Version: "1.0.0"})
	if err != nil {
		return err
	}
	for _, name := range []string{"once", "many"} {
		if err := s.AddEndpoint(name, micro.HandlerFunc(func(r micro.Request) {
			go func() {
				<-time.After(20 * time.Millisecond) // simulated: work to be killed in
				_, _ = fmt.Fprintln(f, r.Headers().Get("Shallot-Call"))
				<-time.After(20 * time.Millisecond) // simulated: work to be killed in
				_ = r.Respond([]byte(`{"ok":true}`))
			}()
		}), micro.WithEndpointSubject("work."+name)); err != nil {
			return err
		}
	}
	if err := nc.Flush(); err != nil {
		return err
	}
	fmt.Println("ready")
	return nil
}

// hostProcess is a Shallot process.
func hostProcess(file string, roles host.Roles) error {
	l, err := host.Load(file, nil, nil)
	if err != nil {
		return err
	}
	if _, err := host.Start(context.Background(),
		host.Options{Config: l, Roles: roles, Name: "killed", Getenv: func(string) string { return "" }}); err != nil {
		return err
	}
	fmt.Println("ready")
	return nil
}

// process is this binary once more, as something that can be killed.
type process struct {
	t    *testing.T
	env  []string
	node string // a script that runs instead
	cmd  *exec.Cmd
	hold io.Closer
}

func (p *process) start() {
	p.cmd = exec.Command(os.Args[0])
	if p.node != "" {
		p.cmd = exec.Command("node", p.node)
	}
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), p.env...), os.Stderr
	in, err := p.cmd.StdinPipe()
	require.NoError(p.t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(p.t, err)
	require.NoError(p.t, p.cmd.Start())
	p.hold = in
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(p.t, err)
	require.Equal(p.t, "ready\n", line)
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // SIGKILL: no last words
	_ = p.cmd.Wait()
	_ = p.hold.Close()
}

// Tool workers and Shallot workers are killed while they work. A tool that may not run twice runs at most once for each
// call, whatever dies, and where it cannot be known the caller is told so; every call is answered exactly
// once. 200 calls; 1,000 with SHALLOT_LONG=1. The tool workers are Go processes, or what SHALLOT_TEST_NODE_TOOL names:
// .ci/clients does that.
func TestAtMostOnceUnderKills(t *testing.T) {
	kills, every := pace.Rounds(7), 25
	if os.Getenv("SHALLOT_LONG") != "" {
		kills, every = 19, 50
	}
	calls := every * (kills + 1)
	if testing.Short() {
		t.Skip("starts and kills processes")
	}
	t.Parallel()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Port: -1, Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	dir := t.TempDir()
	effects, file := filepath.Join(dir, "effects"), filepath.Join(dir, "worker.yaml")
	yaml := `
nats: {url: "` + srv.ClientURL() + `"}
bus: {ack-wait: 1s}
tool:
  tools:
    - {name: once, executor: "nats:work.once", effect: write, timeout: 2s}
    - {name: many, executor: "nats:work.many", effect: write, idempotent: true, timeout: 2s, cache: "off",
        retry: networkRetry}
`
	require.NoError(t, os.WriteFile(file, []byte("version: 1\ntexts: zh\n"+yaml), 0o600))
	h := startRoles(t, yaml, host.Roles{All: true, Entry: true})
	var all []*process
	for _, env := range [][]string{
		{"SHALLOT_TEST_PROCESS=tool", "SHALLOT_TEST_FILE=" + effects},
		{"SHALLOT_TEST_PROCESS=host", "SHALLOT_TEST_FILE=" + file},
		{"SHALLOT_TEST_PROCESS=tool", "SHALLOT_TEST_FILE=" + effects},
		{"SHALLOT_TEST_PROCESS=host", "SHALLOT_TEST_FILE=" + file},
	} {
		p := &process{t: t, env: append(env, "SHALLOT_TEST_NATS="+srv.ClientURL())}
		if env[0] == "SHALLOT_TEST_PROCESS=tool" {
			p.node = os.Getenv("SHALLOT_TEST_NODE_TOOL")
		}
		p.start()
		t.Cleanup(p.kill)
		all = append(all, p)
	}

	nc, err := nats.Connect(srv.ClientURL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	answers, first := make([][]*nats.Msg, calls), make([]chan struct{}, calls)
	var mu sync.Mutex
	inbox := nc.NewInbox()
	for i := range calls {
		first[i] = make(chan struct{})
		_, err := nc.Subscribe(fmt.Sprintf("%s.%d", inbox, i), func(m *nats.Msg) {
			mu.Lock()
			defer mu.Unlock()
			if answers[i] = append(answers[i], m); len(answers[i]) == 1 {
				close(first[i])
			}
		})
		require.NoError(t, err)
	}
	tool := func(i int) string { return []string{"once", "many"}[i%2] }
	// Each part of the calls has its kill: when some of them are under way, and before the next part begins.
	begins, killed := make([]chan struct{}, kills), make([]chan struct{}, kills)
	for k := range kills {
		begins[k], killed[k] = make(chan struct{}), make(chan struct{})
	}
	var next atomic.Int64
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for i := int(next.Add(1)) - 1; i < calls; i = int(next.Add(1)) - 1 {
				if part := i / every; part > 0 && part <= kills {
					<-killed[part-1]
				}
				if i%every == every/2 && i/every < kills {
					close(begins[i/every])
				}
				_ = nc.PublishRequest("shallot.v1.tool.request."+tool(i), fmt.Sprintf("%s.%d", inbox, i), []byte(`{}`))
				select {
				case <-first[i]:
				case <-time.After(2 * time.Minute):
				}
			}
		})
	}
	for k := range kills {
		<-begins[k]
		all[k%len(all)].kill()
		all[k%len(all)].start()
		close(killed[k])
	}
	callers.Wait()

	ran := effectsIn(t, effects)
	_, retries := h.Manager.Get(messages.Tool, "tool-retry")
	count := map[string]int{}
	mu.Lock()
	defer mu.Unlock()
	for i, got := range answers {
		require.Len(t, got, 1, "call %d (%s) is answered exactly once", i, tool(i))
		m := got[0]
		id, fault := m.Header.Get("Shallot-Call"), m.Header.Get("Shallot-Fault")
		require.NotEmpty(t, id, string(m.Data))
		ok := string(m.Data) == `{"ok":true}`
		count[tool(i)+" "+fault]++
		switch {
		case tool(i) == "many":
			require.True(t, ok || !retries, "an idempotent tool completes elsewhere: %s", m.Data)
		case ok:
			require.Equal(t, 1, ran[id])
		case fault == string(messages.OutcomeUnknown):
			require.LessOrEqual(t, ran[id], 1, "call %s ran %d times", id, ran[id])
		default:
			require.Zero(t, ran[id], "%s says that it did not run: %s", fault, m.Data)
		}
	}
	t.Logf("%d calls, %d kills: %v", calls, kills, count)
}
