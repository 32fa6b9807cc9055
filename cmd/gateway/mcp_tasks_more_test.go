package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/toolbox/toolspec"
)

// TestMain lets this test binary be the gateways that a test kills.
func TestMain(m *testing.M) {
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
	os.Exit(m.Run())
}

// process is a gateway of its own on somebody's NATS server.
type process struct {
	cmd  *exec.Cmd
	url  string
	stop io.Closer // as SIGTERM
}

func gatewayProcess(t *testing.T, natsURL, config string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), "SHALLOT_TEST_GATEWAY="+strings.Join([]string{"--http", "127.0.0.1:0", "--admin", "none", "--nats", natsURL, "--config", config}, "\n"))
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

// Nothing of a task is in a gateway's memory: killed between the handle and tasks/get, between two answers, and before a
// cancel, the others go on with it.
func TestMCPTaskOutlivesItsGateway(t *testing.T) {
	t.Parallel()
	x := newTaskTools(t, "")
	workerURL, natsURL := command(t, "--config", x.config) // runs the tools, and has the server
	one, two := gatewayProcess(t, natsURL, x.config), gatewayProcess(t, natsURL, x.config)
	a, b := taskClient{url: one.url, caps: withForms}.ready(t, "ask"), taskClient{url: two.url, caps: withForms}.ready(t, "ask")

	slow, stop, asks := a.task(t, "slow", `{"n":1}`), a.task(t, "slow", `{"n":2}`), a.task(t, "ask", `{"file":"f"}`)
	began := []string{x.began(t), x.began(t)}
	require.ElementsMatch(t, []string{`{"n":1}`, `{"n":2}`}, began)
	a.until(t, asks, "input_required")
	require.Equal(t, "working", b.get(t, slow).Get("status").Str, "any gateway answers")
	a.ack(t, "tasks/update", `{"taskId":"`+asks+`","inputResponses":{"1.a":{"action":"accept","content":{"v":"A"}}}}`)
	one.kill()

	require.Equal(t, "working", b.get(t, slow).Get("status").Str)
	require.Len(t, b.get(t, asks).Get("inputRequests").Map(), 1, "the first answer is kept")
	b.ack(t, "tasks/update", `{"taskId":"`+asks+`","inputResponses":{"1.b":{"action":"accept","content":{"v":"B"}}}}`)
	b.until(t, asks, "input_required")
	two.kill()

	c := taskClient{url: gatewayProcess(t, natsURL, x.config).url, caps: withForms} // begun after the tasks
	require.Equal(t, "really?", c.get(t, asks).Get(`inputRequests.2\.a.params.message`).Str)
	c.ack(t, "tasks/update", `{"taskId":"`+asks+`","inputResponses":{"2.a":{"action":"accept"}}}`)
	require.Equal(t, `done {"file":"f"}`, c.until(t, asks, "completed").Get("result.content.0.text").Str)
	c.ack(t, "tasks/cancel", `{"taskId":"`+stop+`"}`)
	receive(t, x.stopped)
	c.until(t, stop, "cancelled")
	x.end(t, `{"ok":true}`)
	require.True(t, c.until(t, slow, "completed").Get("result.structuredContent.ok").Bool())
	require.Empty(t, x.begun, "nothing ran twice")
	require.Len(t, x.asked, 3)
	require.True(t, taskClient{url: workerURL}.get(t, slow).Get("result").Exists())
}

// A gateway that stops gives those who wait for a result a handle, with which they go on elsewhere.
func TestMCPTaskOfAGatewayThatStops(t *testing.T) {
	t.Parallel()
	x := newTaskTools(t, "")
	workerURL, natsURL := command(t, "--config", x.config)
	p := gatewayProcess(t, natsURL, x.config)
	c := taskClient{url: p.url}.ready(t, "lazy")
	got := make(chan taskAnswer, 1)
	go func() {
		a, err := c.ask(t.Context(), "tools/call", `{"name":"lazy","arguments":{}}`)
		if err == nil {
			got <- a
		}
	}()
	x.began(t)
	require.NoError(t, p.stop.Close())
	a := receive(t, got)
	id := a.Get("result.taskId").Str
	require.NotEmpty(t, id, a.Raw)
	x.end(t, `{"ok":true}`)
	require.True(t, taskClient{url: workerURL}.until(t, id, "completed").Get("result.structuredContent.ok").Bool())
}

// A call that waits for a person is a task that waits: who may decide is asked by tasks/get.
func TestMCPTaskHeld(t *testing.T) {
	t.Parallel()
	x := newTaskTools(t, "agent:\n  interceptor:\n    approval:\n      policies: [{tool: slow, decisions: [approve, edit, reject]}, {tool: lazy, decisions: [approve, reject]}]\n")
	url, _ := command(t, "--config", x.config)
	c := taskClient{url: url, caps: withForms}.ready(t, "slow") // loopback without keys: the operator
	say := func(id, name, content string) {
		c.ack(t, "tasks/update", `{"taskId":"`+id+`","inputResponses":{"`+name+`":{"action":"accept","content":`+content+`}}}`)
	}
	question := func(r gjson.Result) (name, text string) {
		require.Len(t, r.Get("inputRequests").Map(), 1, r.Raw)
		for k, v := range r.Get("inputRequests").Map() {
			name, text = k, v.Get("params.message").Str
			require.Equal(t, "elicitation/create", v.Get("method").Str)
		}
		return name, text
	}
	id := c.task(t, "slow", `{"n":1}`)
	r := c.until(t, id, "input_required")
	require.Equal(t, "approval_pending", r.Get("_meta.shallot/status").Str)
	first, text := question(r)
	require.Contains(t, text, `{"n":1}`)
	say(id, first, `{"decision":"edit","arguments":"{"}`)
	second, text := question(c.until(t, id, "input_required"))
	require.NotEqual(t, first, second, "another question has another name")
	require.Contains(t, text, "no JSON")
	say(id, first, `{"decision":"reject"}`)
	require.Equal(t, "input_required", c.get(t, id).Get("status").Str, "that question is no longer asked")
	say(id, second, `{"decision":"edit","arguments":"{\"n\":2}"}`)
	require.Equal(t, `{"n":2}`, x.began(t))
	require.Equal(t, "working", c.until(t, id, "working").Get("status").Str)
	x.end(t, `{"ok":true}`)
	require.True(t, c.until(t, id, "completed").Get("result.structuredContent.ok").Bool())

	// Who cannot show a form is told to wait; a call that nobody decides can be cancelled.
	id = c.task(t, "lazy", `{}`) // a call that is held is one that takes long
	blind := taskClient{url: url}
	r = blind.get(t, id)
	require.Equal(t, []string{"working", heldMessage}, []string{r.Get("status").Str, r.Get("statusMessage").Str})
	c.ack(t, "tasks/cancel", `{"taskId":"`+id+`"}`)
	c.until(t, id, "cancelled")
	require.Empty(t, x.begun)
}

// On stdio the extension is there only if a task outlives the process.
func TestMCPTaskStdio(t *testing.T) {
	t.Parallel()
	_, natsURL := command(t)
	for _, row := range []struct {
		name string
		args []string
		want bool
	}{{"alone", nil, false}, {"alone, with a directory", []string{"--nats-port", "-1", "--data", t.TempDir()}, true}, {"on a server", []string{"--nats", natsURL}, true}} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			inR, inW := io.Pipe()
			outR, outW := io.Pipe()
			done := make(chan error, 1)
			go func() { done <- runMCP(t.Context(), row.args, inR, outW, t.Output()) }()
			s := session(t, &mcp.IOTransport{Reader: outR, Writer: inW}, nil)
			_, got := s.InitializeResult().Capabilities.Extensions[tasksExtension]
			require.Equal(t, row.want, got, string(rawjson.Encode(s.InitializeResult())))
			_ = s.Close()
			select {
			case err := <-done:
				require.NoError(t, err)
			case <-time.After(20 * time.Second):
				t.Fatal("it did not end with its client")
			}
		})
	}
}

func TestTaskView(t *testing.T) {
	t.Parallel()
	made := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	x := &task{id: "x", ttl: time.Hour, written: made.Add(30 * time.Minute), taskRecord: taskRecord{Created: made, Changed: made.Add(time.Minute)}}
	v := x.view(statusWorking)
	require.Equal(t, []any{"2026-11-21T12:00:00.000Z", "2026-11-21T12:01:00.000Z"}, []any{v.CreatedAt, v.LastUpdatedAt})
	require.EqualValues(t, 90*60*1000, v.TTLMs, "from when it was made until the record goes")
	x.ended = made.Add(10 * time.Minute)
	v = x.view(statusCompleted)
	require.Equal(t, "2026-11-21T12:10:00.000Z", v.LastUpdatedAt)
	require.EqualValues(t, 70*60*1000, v.TTLMs, "the result goes before the record")
	require.Equal(t, []time.Duration{500 * time.Millisecond, time.Second, 5 * time.Second}, []time.Duration{pollEvery(0), pollEvery(10 * time.Second), pollEvery(time.Hour)})
}

// stillTasks has one store, and calls that never end.
type stillTasks struct{ pipeline.Memory }

func (*stillTasks) Peek(context.Context, string, string) (*messages.Call, time.Time, error) {
	return nil, time.Time{}, nil
}
func (*stillTasks) CancelCall(string)           {}
func (s *stillTasks) TaskStore() pipeline.Store { return &s.Memory }
func (*stillTasks) TaskTTL() time.Duration      { return time.Hour }

// The record of a task that is under way is written anew before it goes; the handle's time to live grows with it.
func TestMCPTaskRecordIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		still := &stillTasks{}
		f := &mcpFace{tasks: still, local: identity{Tenant: "default"}, log: testLog(t)}
		made, err := f.newTask(t.Context(), &mcp.CallToolRequest{}, pipeline.Request{Tenant: "default"}, tool("x", "go"), "call")
		require.NoError(t, err)
		ask := func() *taskView {
			res, err := f.getTask(t.Context(), nil, &taskParams{TaskID: rawjson.Encode(made.id)})
			require.NoError(t, err)
			return res.(*taskView)
		}
		written := func() uint64 {
			e, err := still.Get(t.Context(), taskKey("default", made.id))
			require.NoError(t, err)
			return e.Revision
		}
		require.Equal(t, time.Hour.Milliseconds(), ask().TTLMs)
		time.Sleep(20 * time.Minute)
		require.Equal(t, time.Hour.Milliseconds(), ask().TTLMs)
		require.EqualValues(t, 1, written())
		time.Sleep(20 * time.Minute)
		require.Equal(t, (100 * time.Minute).Milliseconds(), ask().TTLMs)
		require.EqualValues(t, 2, written())
	})
}

// brokenTasks is a registry whose store of tasks does not answer.
type brokenTasks struct {
	*fakeTools
	stillTasks
}

func (*brokenTasks) TaskStore() pipeline.Store { return refusingStore{} }

type refusingStore struct{ pipeline.Store }

func (refusingStore) Put(context.Context, string, []byte, time.Duration, pipeline.Condition) (uint64, error) {
	return 0, errors.New("no answer")
}

func (refusingStore) Get(context.Context, string) (pipeline.StoreEntry, error) {
	return pipeline.StoreEntry{}, errors.New("no answer")
}

// No handle goes out that is not stored: the caller gets the result instead. And a task that cannot be read is no
// unknown one.
func TestMCPTaskWithoutStore(t *testing.T) {
	t.Parallel()
	d := tool("slow", "go")
	d.Task = toolspec.TaskAlways
	door := &localEntry{target: replies(`{"ok":true}`)}
	c := taskClient{url: withMCP(t, door, &brokenTasks{fakeTools: &fakeTools{defs: []*toolspec.Definition{d}}}, nil).URL}
	r := c.call(t, "slow", `{}`)
	require.Equal(t, "complete", r.Get("resultType").Str, r.Raw)
	require.True(t, r.Get("structuredContent.ok").Bool())
	require.True(t, door.last(t).Keep)
	for _, method := range []string{"tasks/get", "tasks/cancel", "tasks/update"} {
		a := c.do(t, method, `{"taskId":"x","inputResponses":{}}`)
		require.EqualValues(t, -32603, a.Get("error.code").Int(), a.Raw)
		require.True(t, a.Get("error.data.shallot/retryable").Bool(), a.Raw)
	}
}
