package agents

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline/api/httpapi"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// installation is a whole one as a user has it: a configuration, a gateway, a provider.
type installation struct {
	t   *testing.T
	url string
	nc  *nats.Conn
	// nats is where its server is.
	nats string

	file, dir string
	keys      *httpapi.KeyStore
	ran       *list
	// work, if not nil, is what tools do before they are noted.
	work   func(ctx context.Context, inv toolbox.Invocation) error
	serves atomic.Pointer[http.Handler]
	stop   func()
}

// dial connects the holder of a key to NATS.
func (i *installation) dial(id, key string) *nats.Conn {
	i.t.Helper()
	nc, err := nats.Connect(i.nats, nats.UserInfo(id, key), nats.CustomInboxPrefix(host.InboxOf(id)))
	require.NoError(i.t, err)
	i.t.Cleanup(nc.Close)
	return nc
}

const agentsConfig = `version: 1
agent:
  agents:
    - {name: clerk, description: pays, instructions: You pay., model: m1, tools: [pay, look, agent/finder],
        state: {log: append}}
    - {name: finder, model: m1, tools: [look], limits: {model-calls: 3}}
    - {name: judge, model: m1, output-schema: {type: object, required: [verdict]}}
  interceptor:
    approval: {policies: [{name: payments, tool: pay, when: args.amount > 10}]}
tool:
  tools:
    - {name: pay, executor: "go:note", effect: write, idempotent: false, input-schema: {type: object,
        properties: {amount: {type: integer}}}}
    - {name: look, executor: "go:note", effect: read}
`

// answers is what the provider of an installation says to a request.
type answers func(request []byte) (tools []map[string]any, text string)

// newInstallation starts one whose provider answers with the function.
func newInstallation(t *testing.T, model answers) (*installation, *list) {
	t.Helper()
	return install(t, agentsConfig, model)
}

// install is newInstallation with another configuration.
func install(t *testing.T, config string, model answers) (*installation, *list) {
	t.Helper()
	return installWithKeys(t, config, "", model)
}

// operatorKey is the key of the test itself in an installation with keys.
const operatorKey = "the-operator"

// keyRecord is an entry of a keys file; more are its other fields.
func keyRecord(id, key, more string) string {
	return fmt.Sprintf("  - {id: %s, hash: %q, tenant: acme, %s}\n", id, httpapi.HashKey(key, nil), more)
}

// installWithKeys is install for who has a key. keys are the records beside the operator's; empty: nobody needs one.
func installWithKeys(t *testing.T, config, keys string, model answers) (*installation, *list) {
	t.Helper()
	var store *httpapi.KeyStore
	if keys != "" {
		var err error
		store, err = httpapi.ParseKeys([]byte("keys:\n"+keyRecord("op", operatorKey, "role: operator")+keys), "")
		require.NoError(t, err)
	}
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !strings.HasSuffix(r.URL.Path, "/chat/completions") {
			_, _ = io.WriteString(w, `{"object":"list","data":[]}`)
			return
		}
		tools, text := model(body)
		message := map[string]any{"role": "assistant", "content": text}
		if len(tools) > 0 {
			message["tool_calls"] = tools
		}
		raw, _ := json.Marshal(map[string]any{"id": "x", "object": "chat.completion", "model": "m1",
			"choices": []any{map[string]any{"index": 0, "message": message, "finish_reason": "stop"}},
			"usage":   map[string]int{"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})
		if gjson.GetBytes(body, "stream").Bool() {
			w.Header().Set("Content-Type", "text/event-stream")
			if len(tools) == 0 {
				for _, word := range strings.SplitAfter(text, " ") {
					delta, _ := json.Marshal(map[string]string{"role": "assistant", "content": word})
					_, _ = fmt.Fprintf(w, "data: %s\n\n", chat.Chunk(raw, 0, delta, nil))
				}
				_, _ = fmt.Fprintf(w, "data: %s\n\n", chat.Chunk(raw, 0, []byte("{}"), []byte(`"stop"`)))
			} else {
				for _, chunk := range chat.Replay(raw, false) {
					_, _ = fmt.Fprintf(w, "data: %s\n\n", chunk)
				}
			}
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(raw)
	}))
	t.Cleanup(provider.Close)
	dir := t.TempDir()
	file := filepath.Join(dir, "shallot.yaml")
	config += "models: {providers: [{name: up, base-url: " + provider.URL + "/v1, models: [m1]}]}\n"
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	i := &installation{t: t, dir: dir, file: file, keys: store, ran: &list{}}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*i.serves.Load()).ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	i.url = front.URL
	i.boot()
	return i, i.ran
}

func (i *installation) do(method, path, body string, header ...string) (int, string) {
	i.t.Helper()
	req, err := http.NewRequestWithContext(i.t.Context(), method, i.url+path, strings.NewReader(body))
	require.NoError(i.t, err)
	req.Header.Set("Content-Type", "application/json")
	for k := 0; k+1 < len(header); k += 2 {
		req.Header.Set(header[k], header[k+1])
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(i.t, err)
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	require.NoError(i.t, err)
	return res.StatusCode, string(raw)
}

// list is what tools ran.
type list struct {
	mu    sync.Mutex
	items []string
}

func (l *list) add(item string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items = append(l.items, item)
}

func (l *list) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.items)
}

// last is the newest message of a request.
func last(request []byte) chat.Msg {
	msgs := chat.Messages(request)
	return msgs[len(msgs)-1]
}

// The tool calls of a run pass the tool chain, whose cache has what is read again (S3-INT-1).
func TestAnAgentOfTheConfigurationByEachFace(t *testing.T) {
	t.Parallel()
	i, ran := newInstallation(t, func(request []byte) ([]map[string]any, string) {
		if last(request).Role() == "tool" {
			return nil, "I have looked, and " + last(request).Text()
		}
		return []map[string]any{call("a", "look", `{}`)}, ""
	})
	const want = "I have looked, and look is done"
	status, body := i.do("POST", "/v1/agents/clerk/runs", `{"input":"go"}`)
	require.Equal(t, 200, status, body)
	require.Equal(t, want, gjson.Get(body, "output").String())
	status, body = i.do("POST", "/v1/chat/completions",
		`{"model":"agent/clerk","messages":[{"role":"user","content":"go"}]}`)
	require.Equal(t, 200, status, body)
	require.Equal(t, want, gjson.Get(body, "choices.0.message.content").String())
	require.EqualValues(t, 4, gjson.Get(body, "usage.total_tokens").Int())
	_, body = i.do("POST", "/v1/chat/completions",
		`{"model":"agent/clerk","stream":true,"messages":[{"role":"user","content":"go"}]}`)
	require.True(t, strings.HasSuffix(body, "data: [DONE]\n\n"), body)
	require.Greater(t, strings.Count(body, `"content"`), 2, "it comes in pieces")
	m, err := i.nc.Request("shallot.v1.agent.request", []byte(`{"model":"agent/clerk","input":"go"}`), time.Minute)
	require.NoError(t, err)
	require.Equal(t, want, gjson.GetBytes(m.Data, "choices.0.message.content").String(), string(m.Data))
	_, body = i.do("GET", "/v1/models", "")
	require.Contains(t, body, `"agent/clerk"`)
	require.Equal(t, []string{"look{}"}, ran.all(), "what is read again comes from the cache")
	status, body = i.do("POST", "/v1/chat/completions",
		`{"model":"agent/nobody","messages":[{"role":"user","content":"go"}]}`)
	require.Equal(t, 404, status, body)
}

func TestARunIsFollowedApprovedAndReadOverHTTP(t *testing.T) {
	t.Parallel()
	i, ran := newInstallation(t, func(request []byte) ([]map[string]any, string) {
		if last(request).Role() == "tool" {
			return nil, "paid"
		}
		return []map[string]any{call("a", "pay", `{"amount":"50"}`), call("b", "pay", `{"amount":5}`),
			call("c", "pay", `{"amount":70}`)}, ""
	})
	status, body := i.do("POST", "/v1/agents/clerk/runs", `{"input":"go","background":true}`)
	require.Equal(t, 202, status, body)
	path := gjson.Get(body, "location").String()
	run := gjson.Get(body, "id").String()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, i.url+path+"/events", nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	scan := bufio.NewScanner(res.Body)
	var seen []string
	until := func(event string) (data string) {
		for scan.Scan() {
			if name, ok := strings.CutPrefix(scan.Text(), "event: "); ok {
				seen = append(seen, name)
			}
			if d, ok := strings.CutPrefix(scan.Text(), "data: "); ok && seen[len(seen)-1] == event {
				return d
			}
		}
		t.Fatal("the stream ended before " + event)
		return ""
	}
	asked := until("approval.wanted")
	require.EqualValues(t, 50, gjson.Get(asked, "calls.0.arguments.amount").Int(), "as the tool gets it")
	require.True(t, gjson.Get(asked, "calls.1.auto_approved").Bool())
	require.Empty(t, ran.all())
	require.Eventually(t, func() bool {
		_, body = i.do("GET", path, "")
		return gjson.Get(body, "status").String() == "waiting"
	}, 30*time.Second, 20*time.Millisecond)
	status, body = i.do("POST", "/v1/approvals/"+run, `{"id":"a","decision":"approve"}`)
	require.Equal(t, 202, status, body)
	require.Contains(t, gjson.Get(body, "message").String(), "no decision yet about c")
	status, body = i.do("POST", "/v1/approvals/"+run, `{"id":"a","decision":"reject"}`)
	require.Equal(t, 409, status, body)
	status, body = i.do("POST", "/v1/approvals/"+run, `{"decision":"reject","reason":"no"}`)
	require.Equal(t, 200, status, body)
	require.Equal(t, "answered", gjson.Get(until("run.ended"), "reason").String())
	require.ElementsMatch(t, []string{`pay{"amount":50}`, `pay{"amount":5}`}, ran.all())
	_, body = i.do("GET", path, "")
	require.Equal(t, "completed", gjson.Get(body, "status").String(), body)
	require.Equal(t, "paid", gjson.Get(body, "output").String())
	_, body = i.do("GET", path+"/messages", "")
	require.Equal(t, []string{"user", "assistant", "tool", "tool", "tool", "assistant"}, roles(body))
	_, body = i.do("GET", path+"/events", "", "Last-Event-ID", "2.1")
	require.NotContains(t, body, "approval.wanted")
	require.Contains(t, body, "run.ended")
}

func roles(body string) (out []string) {
	for _, r := range gjson.Get(body, "data.#.role").Array() {
		out = append(out, r.String())
	}
	return out
}

func TestAgentsDelegateAndAnswerByTheirSchema(t *testing.T) {
	t.Parallel()
	tries := 0
	i, ran := newInstallation(t, func(request []byte) ([]map[string]any, string) {
		newest, system := last(request), chat.SystemText(request)
		schema := gjson.GetBytes(request, "response_format.json_schema.schema.required.0").String() == "verdict"
		switch {
		case schema && tries == 0:
			tries++
			return nil, `{"opinion":1}`
		case schema:
			return nil, `{"verdict":"good"}`
		case newest.Role() == "tool":
			return nil, "found: " + newest.Text()
		case system == "You pay.":
			return []map[string]any{call("a", "agent_finder", `{"task":"find it"}`)}, ""
		}
		return []map[string]any{call("a", "look", `{}`)}, ""
	})
	_, body := i.do("POST", "/v1/agents/clerk/runs", `{"input":"go"}`)
	require.Equal(t, "found: found: look is done", gjson.Get(body, "output").String(), body)
	require.EqualValues(t, 4, gjson.Get(body, "spent.models").Int(), "its sub-agent's too")
	require.Len(t, ran.all(), 1)
	_, body = i.do("POST", "/v1/agents/judge/runs", `{"input":"go"}`)
	require.JSONEq(t, `{"verdict":"good"}`, gjson.Get(body, "output").String(), body)
}
