package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/api/mcpapi"
	"github.com/shallot-nats/shallot/pipeline/cli"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
)

// TestMain lets this test binary be the gateways that a test kills.
func TestMain(m *testing.M) {
	_ = os.Setenv("SHALLOT_BUS__LAME_DUCK", "0s") // no balancer asks for readiness here
	if args := os.Getenv("SHALLOT_TEST_GATEWAY"); args != "" {
		ctx, cancel := context.WithCancel(context.Background())
		go func() { // it ends with the test, however the test ends
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
		if err := run(ctx, strings.Split(args, "\n"), os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	pipelinetest.MainOfProcesses(m)
}

// process is a gateway in a process of its own, on the given NATS server.
type process struct {
	cmd  *exec.Cmd
	url  string
	stop io.Closer // as SIGTERM
}

func gatewayProcess(t *testing.T, natsURL, config string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), "SHALLOT_TEST_GATEWAY="+strings.Join([]string{"--http", "127.0.0.1:0", "--admin",
		"none", "--nats", natsURL, "--config", config}, "\n"))
	var err error
	p.stop, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() { p.kill() })
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	var all string
	for !strings.Contains(all, "ready in") {
		line, ok := <-lines
		require.True(t, ok, "the gateway ended: %s", all)
		all += line + "\n"
	}
	go func() {
		for range lines { // nothing else is read
		}
	}()
	p.url = regexp.MustCompile(`http://[0-9.:]+`).FindString(all)
	return p
}

func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// Nothing of a task is in a gateway's memory: killed between the handle and tasks/get, between two answers, and before
// a cancel, the others go on with it.
func TestMCPTaskOutlivesItsGateway(t *testing.T) {
	t.Parallel()
	x := apitest.NewTaskTools(t, "")
	workerURL, natsURL := command(t, "--config", x.Config) // runs the tools, and has the server
	one, two := gatewayProcess(t, natsURL, x.Config), gatewayProcess(t, natsURL, x.Config)
	a, b := apitest.TaskClient{URL: one.url, Caps: apitest.WithForms}.Ready(t, "ask"),
		apitest.TaskClient{URL: two.url, Caps: apitest.WithForms}.Ready(t, "ask")

	slow, stop, asks := a.Task(t, "slow", `{"n":1}`), a.Task(t, "slow", `{"n":2}`), a.Task(t, "ask", `{"file":"f"}`)
	began := []string{x.Began(t), x.Began(t)}
	require.ElementsMatch(t, []string{`{"n":1}`, `{"n":2}`}, began)
	a.Until(t, asks, "input_required")
	require.Equal(t, "working", b.Get(t, slow).Get("status").Str, "any gateway answers")
	a.Ack(t, "tasks/update", `{"taskId":"`+asks+`","inputResponses":{"1.a":{"action":"accept","content":{"v":"A"}}}}`)
	one.kill()

	require.Equal(t, "working", b.Get(t, slow).Get("status").Str)
	require.Len(t, b.Get(t, asks).Get("inputRequests").Map(), 1, "the first answer is kept")
	b.Ack(t, "tasks/update", `{"taskId":"`+asks+`","inputResponses":{"1.b":{"action":"accept","content":{"v":"B"}}}}`)
	b.Until(t, asks, "input_required")
	two.kill()

	// begun after the tasks
	c := apitest.TaskClient{URL: gatewayProcess(t, natsURL, x.Config).url, Caps: apitest.WithForms}
	require.Equal(t, "really?", c.Get(t, asks).Get(`inputRequests.2\.a.params.message`).Str)
	c.Ack(t, "tasks/update", `{"taskId":"`+asks+`","inputResponses":{"2.a":{"action":"accept"}}}`)
	require.Equal(t, `done {"file":"f"}`, c.Until(t, asks, "completed").Get("result.content.0.text").Str)
	c.Ack(t, "tasks/cancel", `{"taskId":"`+stop+`"}`)
	apitest.Receive(t, x.Stopped)
	c.Until(t, stop, "cancelled")
	x.End(t, `{"ok":true}`)
	require.True(t, c.Until(t, slow, "completed").Get("result.structuredContent.ok").Bool())
	require.Empty(t, x.Begun, "nothing ran twice")
	require.Len(t, x.Asked, 3)
	require.True(t, apitest.TaskClient{URL: workerURL}.Get(t, slow).Get("result").Exists())
}

// A gateway that stops gives those who wait for a result a handle, with which they go on elsewhere.
func TestMCPTaskOfAGatewayThatStops(t *testing.T) {
	t.Parallel()
	x := apitest.NewTaskTools(t, "")
	workerURL, natsURL := command(t, "--config", x.Config)
	p := gatewayProcess(t, natsURL, x.Config)
	c := apitest.TaskClient{URL: p.url}.Ready(t, "lazy")
	got := make(chan apitest.TaskAnswer, 1)
	go func() {
		a, err := c.Ask(t.Context(), "tools/call", `{"name":"lazy","arguments":{}}`)
		if err == nil {
			got <- a
		}
	}()
	x.Began(t)
	require.NoError(t, p.stop.Close())
	a := apitest.Receive(t, got)
	id := a.Get("result.taskId").Str
	require.NotEmpty(t, id, a.Raw)
	x.End(t, `{"ok":true}`)
	require.True(t, apitest.TaskClient{URL: workerURL}.Until(t, id,
		"completed").Get("result.structuredContent.ok").Bool())
}

// A call that waits for a person is a task that waits: who may decide is asked by tasks/get.
func TestMCPTaskHeld(t *testing.T) {
	t.Parallel()
	x := apitest.NewTaskTools(t, "agent:\n  interceptor:\n    approval:\n      policies: [{tool: slow, "+
		"decisions: [approve, edit, reject]}, {tool: lazy, decisions: [approve, reject]}]\n")
	url, _ := command(t, "--config", x.Config)
	c := apitest.TaskClient{URL: url, Caps: apitest.WithForms}.Ready(t, "slow") // loopback without keys: the operator
	say := func(id, name, content string) {
		c.Ack(t, "tasks/update", `{"taskId":"`+id+`","inputResponses":{"`+name+`":{"action":"accept","content":`+
			content+`}}}`)
	}
	question := func(r gjson.Result) (name, text string) {
		require.Len(t, r.Get("inputRequests").Map(), 1, r.Raw)
		for k, v := range r.Get("inputRequests").Map() {
			name, text = k, v.Get("params.message").Str
			require.Equal(t, "elicitation/create", v.Get("method").Str)
		}
		return name, text
	}
	id := c.Task(t, "slow", `{"n":1}`)
	r := c.Until(t, id, "input_required")
	require.Equal(t, "approval_pending", r.Get("_meta.shallot/status").Str)
	first, text := question(r)
	require.Contains(t, text, `{"n":1}`)
	say(id, first, `{"decision":"edit","arguments":"{"}`)
	second, text := question(c.Until(t, id, "input_required"))
	require.NotEqual(t, first, second, "another question has another name")
	require.Contains(t, text, "not JSON")
	say(id, first, `{"decision":"reject"}`)
	require.Equal(t, "input_required", c.Get(t, id).Get("status").Str, "that question is no longer asked")
	say(id, second, `{"decision":"edit","arguments":"{\"n\":2}"}`)
	require.Equal(t, `{"n":2}`, x.Began(t))
	require.Equal(t, "working", c.Until(t, id, "working").Get("status").Str)
	x.End(t, `{"ok":true}`)
	require.True(t, c.Until(t, id, "completed").Get("result.structuredContent.ok").Bool())

	// A client that cannot show a form is told to wait; an undecided call can be cancelled.
	id = c.Task(t, "lazy", `{}`) // a call that is held is one that takes long
	blind := apitest.TaskClient{URL: url}
	r = blind.Get(t, id)
	require.Equal(t, []string{"working", "the call waits for a person's approval"},
		[]string{r.Get("status").Str, r.Get("statusMessage").Str})
	c.Ack(t, "tasks/cancel", `{"taskId":"`+id+`"}`)
	c.Until(t, id, "cancelled")
	require.Empty(t, x.Begun)
}

// On stdio the extension is there only if a task outlives the process.
func TestMCPTaskStdio(t *testing.T) {
	t.Parallel()
	_, natsURL := command(t)
	for _, row := range []struct {
		name string
		args []string
		want bool
	}{{"alone", nil, false}, {"alone, with a directory", []string{"--nats-port", "-1", "--data", t.TempDir()}, true},
		{"on a server", []string{"--nats", natsURL}, true}} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			inR, inW := io.Pipe()
			outR, outW := io.Pipe()
			done := make(chan error, 1)
			go func() {
				done <- cli.Run(t.Context(), gateway(inR), append([]string{"mcp"}, row.args...), outW, t.Output())
			}()
			s := apitest.Connect(t, &mcp.IOTransport{Reader: outR, Writer: inW}, nil)
			_, got := s.InitializeResult().Capabilities.Extensions[mcpapi.TasksExtension]
			require.Equal(t, row.want, got, string(rawjson.Encode(s.InitializeResult())))
			_ = s.Close()
			select {
			case err := <-done:
				require.NoError(t, err)
			case <-time.After(time.Minute):
				t.Fatal("it did not end with its client")
			}
		})
	}
}
