package apitest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// taskTools are tools over HTTP and on an MCP server that wait until the test lets them end.
type taskTools struct {
	Config  string        // configuration file
	Until   chan string   // the deadline that the tool was told
	Begun   chan string   // a call of the tool "slow" began; its arguments
	Release chan string   // what the next one answers
	Stopped chan struct{} // a call was cancelled
	Asked   chan string   // a round of the MCP tool "ask": its input responses
}

// taskTool writes one entry of tool.tools.
func taskTool(name, url, more string) string {
	return fmt.Sprintf("    - {name: %s, description: d, executor: {kind: http, url: %q}, idempotent: false, %s}\n",
		name, url, more)
}

// NewTaskTools starts the tools, which end with the test.
func NewTaskTools(t *testing.T, more string) *taskTools {
	t.Helper()
	x := &taskTools{
		Begun: make(chan string, 64), Release: make(chan string), Until: make(chan string, 1),
		Stopped: make(chan struct{}, 64), Asked: make(chan string, 64),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		select {
		case x.Until <- r.Header.Get("Shallot-Deadline"):
		default:
		}
		x.Begun <- string(body)
		select {
		case <-r.Context().Done():
			x.Stopped <- struct{}{}
		case reply := <-x.Release:
			_, _ = io.WriteString(w, reply)
		}
	})
	mux.HandleFunc("/quick", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"n":9007199254740993}`)
	})
	up := mcp.NewServer(&mcp.Implementation{Name: "up", Version: "1"}, nil)
	schema := json.RawMessage(`{"type":"object","properties":{"file":{"type":"string"}}}`)
	up.AddTool(&mcp.Tool{Name: "ask", InputSchema: schema},
		func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			told, _ := json.Marshal(r.Params.InputResponses)
			x.Asked <- string(told) + r.Params.RequestState
			form := func(text string) *mcp.ElicitParams {
				fields := json.RawMessage(`{"type":"object","properties":{"v":{"type":"string"}}}`)
				return &mcp.ElicitParams{Message: text, RequestedSchema: fields}
			}
			switch r.Params.RequestState {
			case "":
				forms := mcp.InputRequestMap{"a": form("a?"), "b": form("b?")}
				return &mcp.CallToolResult{RequestState: "one", InputRequests: forms}, nil
			case "one": // the same name again, for another question
				forms := mcp.InputRequestMap{"a": form("really?")}
				return &mcp.CallToolResult{RequestState: "two", InputRequests: forms}, nil
			}
			done := &mcp.TextContent{Text: "done " + string(r.Params.Arguments)}
			return &mcp.CallToolResult{Content: []mcp.Content{done}}, nil
		})
	serve := func(*http.Request) *mcp.Server { return up }
	mux.Handle("/mcp", mcp.NewStreamableHTTPHandler(serve, &mcp.StreamableHTTPOptions{Stateless: true}))
	web := httptest.NewServer(mux)
	t.Cleanup(web.Close)
	x.Config = filepath.Join(t.TempDir(), "shallot.yaml")
	slow, quick := web.URL+"/slow", web.URL+"/quick"
	text := "version: 1\ntool:\n  mcp-servers: [{name: up, url: \"" + web.URL + "/mcp\", prefix: \"\"}]\n  tools:\n" +
		taskTool("slow", slow, "task: always, timeout: 5m") + taskTool("lazy", slow, "timeout: 5m") +
		taskTool("must", slow, "task: required") + taskTool("quick", quick, "task: auto") +
		taskTool("at_once", quick, "task: always") + taskTool("never", slow, "task: never") +
		taskTool("broken", web.URL+"/nix", "task: always") +
		"    - {name: ask, description: d, executor: \"mcp:up\", task: always}\n" + more
	require.NoError(t, os.WriteFile(x.Config, []byte(text), 0o600))
	return x
}

func (x *taskTools) Began(t *testing.T) string { t.Helper(); return Receive(t, x.Begun) }

// Receive waits for a value.
func Receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(30 * time.Second):
		t.Fatal("it did not come")
		panic("not reached")
	}
}

func (x *taskTools) End(t *testing.T, reply string) {
	t.Helper()
	select {
	case x.Release <- reply:
	case <-time.After(30 * time.Second):
		t.Fatal("no call of the tool is waiting")
	}
}

// TaskClient is an MCP client of revision 2026-07-28 that sends single requests.
type TaskClient struct {
	URL, Key string
	Without  bool   // do not declare the extension
	Session  string // of an older revision
	Caps     string // more capabilities
}

// WithForms is the capability to show forms.
const WithForms = `"elicitation":{"form":{}},`

// TaskAnswer is a response: the HTTP status, and the message.
type TaskAnswer struct {
	Status int
	gjson.Result
}

// Ask sends a request. headers replace those that it has by itself; an empty value removes one.
func (c TaskClient) Ask(ctx context.Context, method, params string, headers ...string) (TaskAnswer, error) {
	extensions := `"extensions":{"io.modelcontextprotocol/tasks":{}}`
	if c.Without {
		extensions = `"extensions":{}`
	}
	if c.Session == "" {
		meta := `{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
			`"io.modelcontextprotocol/clientCapabilities":{` + c.Caps + extensions + `}}`
		params = string(rawjson.SetField([]byte(params), "_meta", []byte(meta)))
	}
	body := `{"jsonrpc":"2.0","id":"q","method":"` + method + `","params":` + params + `}`
	r, err := http.NewRequestWithContext(ctx, "POST", c.URL+"/mcp", strings.NewReader(body))
	if err != nil {
		return TaskAnswer{}, err
	}
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Content-Type", "application/json")
	if c.Session != "" {
		r.Header.Set("Mcp-Session-Id", c.Session)
	} else {
		r.Header.Set("Mcp-Protocol-Version", "2026-07-28")
	}
	r.Header.Set("Mcp-Method", method)
	if name := gjson.Get(params, "taskId").Str + gjson.Get(params, "name").Str; name != "" {
		r.Header.Set("Mcp-Name", name)
	}
	if c.Key != "" {
		r.Header.Set("Authorization", "Bearer "+c.Key)
	}
	for _, h := range headers {
		k, v, _ := strings.Cut(h, ": ")
		if r.Header.Set(k, v); v == "" {
			r.Header.Del(k)
		}
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return TaskAnswer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	for line := range strings.SplitSeq(string(raw), "\n") {
		if data, ok := strings.CutPrefix(line, "data: "); ok && gjson.Get(data, "id").Exists() {
			raw = []byte(data)
		}
	}
	return TaskAnswer{resp.StatusCode, gjson.ParseBytes(raw)}, err
}

// Do is Ask for a request that must be answered.
func (c TaskClient) Do(t *testing.T, method, params string, headers ...string) TaskAnswer {
	t.Helper()
	a, err := c.Ask(t.Context(), method, params, headers...)
	require.NoError(t, err)
	return a
}

// Call is the result of a tool call.
func (c TaskClient) Call(t *testing.T, tool, args string) gjson.Result {
	t.Helper()
	a := c.Do(t, "tools/call", `{"name":"`+tool+`","arguments":`+args+`}`)
	require.True(t, a.Get("result").Exists(), a.Raw)
	return a.Get("result")
}

// Task calls a tool whose call is answered with a handle.
func (c TaskClient) Task(t *testing.T, tool, args string) string {
	t.Helper()
	r := c.Call(t, tool, args)
	require.Equal(t, "task", r.Get("resultType").Str, r.Raw)
	require.Equal(t, "working", r.Get("status").Str)
	return r.Get("taskId").Str
}

// Get is the state of a task.
func (c TaskClient) Get(t *testing.T, id string) gjson.Result {
	t.Helper()
	a := c.Do(t, "tasks/get", `{"taskId":"`+id+`"}`)
	require.Equal(t, "complete", a.Get("result.resultType").Str, a.Raw)
	require.Equal(t, id, a.Get("result.taskId").Str)
	return a.Get("result")
}

// Until polls a task until it has a status.
func (c TaskClient) Until(t *testing.T, id, status string) gjson.Result {
	t.Helper()
	var r gjson.Result
	require.Eventually(t, func() bool {
		a, err := c.Ask(t.Context(), "tasks/get", `{"taskId":"`+id+`"}`)
		r = a.Get("result")
		return err == nil && r.Get("status").Str == status
	}, 40*time.Second, 20*time.Millisecond, "%s: it is %s", status, &r)
	return r
}

// Ack sends a request that is answered with nothing.
func (c TaskClient) Ack(t *testing.T, method, params string) {
	t.Helper()
	a := c.Do(t, method, params)
	require.Equal(t, "complete", a.Get("result.resultType").Str, a.Raw)
	for _, field := range []string{"taskId", "status", "result", "error", "inputRequests"} {
		require.False(t, a.Get("result."+field).Exists(), "an acknowledgement is empty: %s", a.Raw)
	}
}

// Ready waits until a tool is listed.
func (c TaskClient) Ready(t *testing.T, tool string) TaskClient {
	t.Helper()
	require.Eventually(t, func() bool {
		a, err := c.Ask(t.Context(), "tools/list", `{}`)
		return err == nil && a.Get(`result.tools.#(name=="`+tool+`")`).Exists()
	}, 30*time.Second, 50*time.Millisecond, "%s is not listed", tool)
	return c
}
