//go:build unix

package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/pipeline/toolbox/mcp"
)

// TestMain lets this test binary be an MCP server with bad manners.
func TestMain(m *testing.M) {
	if dir := os.Getenv("SHALLOT_TEST_MCP"); dir != "" {
		rude(dir)
		os.Exit(0)
	}
	pipelinetest.Main(m)
}

// rude is a program whose tools do what programs in the field do. It tells what it does in files of dir.
func rude(dir string) {
	file := func(name string) string { return filepath.Join(dir, name) }
	note := func(name, text string) { _ = os.WriteFile(file(name), []byte(text), 0o600) }
	pid := strconv.Itoa(os.Getpid())
	switch os.Getenv("SHALLOT_TEST_MANNERS") {
	case "mute":
		note("mute", pid)
		<-time.After(time.Hour) // simulated: a server that never answers
	case "broken":
		broken()
		return
	case "parent":
		child := exec.Command("sleep", "1000")
		_ = child.Start()
		note("child", strconv.Itoa(child.Process.Pid))
	}
	fmt.Print("Starting the server...\n[INFO] it listens\n{\"level\":\"info\",\"msg\":\"hello\"}\n{\n[\n\n")
	s := sdk.NewServer(&sdk.Implementation{Name: "rude", Version: "1"}, nil)
	add := func(name string, h func(context.Context) string) {
		s.AddTool(&sdk.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				fmt.Println("a tool is called") // on stdout, where it does not belong
				return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: h(ctx)}}}, nil
			})
	}
	add("pid", func(context.Context) string { return pid })
	add("die", func(context.Context) string { os.Exit(3); return "" })
	add("stop", func(context.Context) string { _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP); select {} })
	add("deaf", func(context.Context) string { // it works on, whoever has left
		for i := 0; ; i++ {
			note("beat", strconv.Itoa(i))
			<-time.After(time.Millisecond) // simulated: work
		}
	})
	add("wait", func(context.Context) string {
		note("waiting", "")
		for {
			if _, err := os.Stat(file("go")); err == nil {
				return pid
			}
			<-time.After(time.Millisecond) // simulated: work
		}
	})
	_ = s.Run(context.Background(), &sdk.StdioTransport{})
}

func rudeServer(dir, manners string) mcp.Server {
	return mcp.Server{Name: "rude", Command: []string{os.Args[0]}, Timeout: 20 * time.Second,
		Env: map[string]string{"SHALLOT_TEST_MCP": dir, "SHALLOT_TEST_MANNERS": manners, "PATH": os.Getenv("PATH")}}
}

// alive reports whether a process runs; one that is dead and not yet buried does not.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !strings.Contains(string(raw), ") Z ")
}

func number(t *testing.T, file string) int {
	t.Helper()
	var n int
	require.Eventually(t, func() bool {
		raw, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		n, err = strconv.Atoi(string(raw))
		return err == nil
	}, 30*time.Second, time.Millisecond)
	return n
}

func appears(t *testing.T, file string) {
	t.Helper()
	require.Eventually(t, func() bool { _, err := os.Stat(file); return err == nil }, 30*time.Second, time.Millisecond)
}

func TestMCPProgramThatTalks(t *testing.T) {
	t.Parallel()
	m, reg := connected(t, rudeServer(t.TempDir(), ""))
	for range 3 {
		require.NotEmpty(t, string(run(t, m, reg, "pid", `{}`).Content), "what is no message on stdout is left out")
	}
}

func TestMCPProgramDiesInMidCall(t *testing.T) {
	t.Parallel()
	m, reg := connected(t, rudeServer(t.TempDir(), ""))
	first := string(run(t, m, reg, "pid", `{}`).Content)
	d, err := reg.Get(t.Context(), "die")
	require.NoError(t, err)
	target := &toolbox.Target{Tools: reg, Rules: tool.DefaultRules(), Executors: toolbox.Executors{"mcp": m},
		Pool: toolbox.NewPool(toolbox.DefaultPool())}
	c := call(d.Name, `{}`)
	for range 2 { // delivered twice
		require.Equal(t, messages.OutcomeUnknown, faultOf(t, target.Do(t.Context(), c.Clone(), noEmit)).Code,
			"it may have run")
	}
	require.Eventually(t, func() bool {
		d, err := reg.Get(t.Context(), "pid")
		if err != nil {
			return false
		}
		r, err := m.Execute(t.Context(), toolbox.Invocation{Tool: d, Arguments: []byte(`{}`)})
		return err == nil && string(r.Content) != first
	}, 30*time.Second, 10*time.Millisecond, "it is started again")
}

func TestMCPProgramEndsWithItsChildren(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, reg := connected(t, rudeServer(dir, "parent"))
	server, err := strconv.Atoi(string(run(t, m, reg, "pid", `{}`).Content))
	require.NoError(t, err)
	child := number(t, filepath.Join(dir, "child"))
	require.True(t, alive(child) && alive(server))
	m.Close()
	require.False(t, alive(server))
	require.Eventually(t, func() bool { return !alive(child) }, 30*time.Second, time.Millisecond,
		"npx and shells leave their children behind")
}

func TestMCPProgramThatNeverAnswers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := rudeServer(dir, "mute")
	s.Timeout = 300 * time.Millisecond
	m := mcp.NewClients([]mcp.Server{s}, tool.NewRegistry(&pipeline.Memory{}, &args.Parser{}, nil), "test", nil)
	m.Start()
	defer m.Close()
	first := number(t, filepath.Join(dir, "mute"))
	require.Eventually(t, func() bool { return !alive(first) }, 30*time.Second, time.Millisecond, "it is ended")
	require.Eventually(t, func() bool { return number(t, filepath.Join(dir, "mute")) != first }, 30*time.Second,
		time.Millisecond, "and tried again")
}

// A server that does not even read what it is sent costs its callers their time limit and nothing else.
func TestMCPProgramThatHangs(t *testing.T) {
	t.Parallel()
	m, reg := connected(t, rudeServer(t.TempDir(), ""))
	for _, name := range []string{"stop", "pid"} {
		d, err := reg.Get(t.Context(), name)
		require.NoError(t, err)
		d.Timeout = tool.Duration(100 * time.Millisecond)
	}
	pool := toolbox.NewPool(toolbox.PoolConfig{MaxPool: 8, QueueCapacity: 400})
	target := &toolbox.Target{Tools: reg, Rules: tool.DefaultRules(), Executors: toolbox.Executors{"mcp": m}, Pool: pool}
	pid, err := strconv.Atoi(string(run(t, m, reg, "pid", `{}`).Content))
	require.NoError(t, err)
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	limited := func(name, args string) error {
		c := call(name, args)
		c.Note(messages.NoteToolTimeout, 100)
		return target.Do(t.Context(), c, noEmit)
	}
	require.Error(t, limited("stop", `{}`))
	var wg sync.WaitGroup
	for range 64 { // far more than a pipe holds
		wg.Go(func() {
			if err := limited("pid", `{"x":"`+strings.Repeat("x", 64<<10)+`"}`); err == nil {
				t.Error("a stopped process answered")
			}
		})
	}
	wg.Wait()
	require.Eventually(t, func() bool { return pool.Running() == 0 }, 30*time.Second, time.Millisecond, "no slot is lost")
}

// on-cancel: restart is for programs that work on when their call is cancelled (S2-TIME-1). The restart waits for the
// other calls.
func TestMCPOnCancelRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := rudeServer(dir, "")
	s.OnCancel = mcp.CancelRestart
	m, reg := connected(t, s)
	first := string(run(t, m, reg, "pid", `{}`).Content)
	other := make(chan string, 1)
	go func() { other <- string(run(t, m, reg, "wait", `{}`).Content) }()
	appears(t, filepath.Join(dir, "waiting"))
	deaf, err := reg.Get(t.Context(), "deaf")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := m.Execute(ctx, toolbox.Invocation{Tool: deaf, Arguments: []byte(`{}`)})
		gone <- err
	}()
	beat := filepath.Join(dir, "beat")
	appears(t, beat)
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)
	require.Equal(t, first, string(run(t, m, reg, "pid", `{}`).Content), "another call runs: nothing is ended under it")
	was := number(t, beat)
	require.Eventually(t, func() bool { return number(t, beat) > was }, 30*time.Second, time.Millisecond,
		"the work nobody waits for goes on")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
	require.Equal(t, first, <-other, "the other call has its answer")
	require.NotEqual(t, first, string(run(t, m, reg, "pid", `{}`).Content), "the next call meets a new process")
	pid, err := strconv.Atoi(first)
	require.NoError(t, err)
	require.False(t, alive(pid), "the work has stopped")
}
