package isolation

import (
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

// canary stands in whatever the first tenant has.
const canary = "canary-7f3a9c"

// config makes every store that is kept by tenant hold something.
const config = `
agent:
  agents: [{name: helper, model: demo/echo, instructions: Repeat.}]
  interceptor:
    model-cache: {enabled: true}
    large-result-eviction: {token-threshold: 50, preserve-sample-chars: 1}
    approval: {policies: [{name: big, tool: add, when: "args.a > 100"}]}
    budget: {tokens-per-day: 1000000}
tool:
  tools:
    - name: wait
      description: Waits
      executor: "go:slow"
      effect: read
      cache: off
      task: always
      timeout: 20m
      input-schema: {type: object, properties: {ms: {type: integer}}}
    - name: keep
      description: Gives back
      executor: "go:echo"
      effect: read
      input-schema: {type: object, properties: {message: {type: string}}}
`

// victim is what the first tenant has.
type victim struct {
	chat, tool string // calls that have ended
	running    string // a call that has not
	held       string // a call that waits for a person
	evicted    string // a path
	session    string // of MCP
	task       string // of MCP
	state      string // of a request over MCP whose call waits for a person
	list       string // the todo list
	run        string // of an agent
	vectors    string // the call of embeddings
	answer     string // the call of a response
	response   string // that has ended
	background string // a response too, streamed in the background
	item       string // of its output
	talk       string // a conversation
	line       string // an item of it
	streamed   string // a stored call whose stream is kept
}

const (
	promptBody = `{"model":"demo/echo","messages":[{"role":"user","content":"` + canary + `"}]}`
	// messagesBody asks the same over the Messages API.
	messagesBody = `{"model":"demo/echo","max_tokens":100,"messages":[{"role":"user","content":"` + canary + `"}]}`
	keepBody     = `{"message":"` + canary + `"}`
	// responsesBody asks the same over the Responses API.
	responsesBody = `{"model":"demo/echo","input":"` + canary + `"}`
	embedBody     = `{"model":"demo/embed","input":"` + canary + `"}`
	bigBody       = `{"a":1000,"b":1}`
)

func mcpHello(t *testing.T, base, key string) string {
	t.Helper()
	r := ask(
		t,
		base,
		key,
		"POST",
		"/mcp",
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18",`+
			`"capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`,
		"Accept: application/json, text/event-stream",
	)
	require.Equal(t, 200, r.status, r)
	require.NotEmpty(t, r.header("Mcp-Session-Id"))
	return r.header("Mcp-Session-Id")
}

func (i *installation) newVictim(t *testing.T) victim {
	t.Helper()
	call := func(path, body string, headers ...string) reply {
		r := ask(t, i.base, acme, "POST", path, body, headers...)
		require.Less(t, r.status, 300, r)
		return r
	}
	id := func(r reply) string { require.NotEmpty(t, r.header("Shallot-Call")); return r.header("Shallot-Call") }
	var v victim
	r := call("/v1/chat/completions", promptBody, "Idempotency-Key: key-1", "Shallot-Session: s1", "Shallot-Run: run-1")
	require.Contains(t, r.body, canary)
	v.chat = id(r)
	r = call("/v1/tools/keep/call", keepBody, "Idempotency-Key: key-2")
	require.Contains(t, r.body, canary)
	v.tool = id(r)
	v.streamed = id(call("/v1/chat/completions", strings.Replace(promptBody, "{", `{"stream":true,`, 1),
		"Idempotency-Key: key-4", "Shallot-Cache: off"))
	v.running = id(call("/v1/tools/wait/call", `{"ms":600000}`, "Prefer: respond-async", "Shallot-Timeout: 20m"))
	v.held = id(call("/v1/tools/add/call", bigBody, "Idempotency-Key: key-3"))
	r = call("/v1/tools/keep/call", `{"message":"`+strings.Repeat(canary+" ", 100)+`"}`)
	v.evicted = regexp.MustCompile(`shallot-evicted/\S+\.txt`).FindString(r.body)
	require.Equal(t, 200, ask(t, i.base, acme, "GET", "/v1/evicted/"+v.evicted, "").status, v.evicted)
	r = ask(t, i.base, acme, "PUT", "/v1/todo/s1", `{"items":[{"title":"`+canary+`"}]}`)
	require.Equal(t, 200, r.status, r)
	v.list = r.body
	v.run = id(call("/v1/agents/helper/runs", `{"input":"`+canary+`"}`, "Shallot-Session: s1"))
	v.vectors = id(call("/v1/embeddings", embedBody, "Idempotency-Key: key-embed"))
	v.answer = id(call("/v1/responses", responsesBody, "Idempotency-Key: key-responses"))
	r = call("/v1/responses", strings.Replace(responsesBody, "}", `,"instructions":"nobody else says this"}`, 1))
	v.response, v.item = gjson.Get(r.body, "id").Str, gjson.Get(r.body, "output.0.id").Str
	r = call("/v1/responses", strings.Replace(responsesBody, "}", `,"background":true}`, 1))
	v.background = gjson.Get(r.body, "id").Str
	r = call("/v1/conversations", `{"metadata":{"a":"`+canary+`"},"items":[{"role":"user","content":"`+canary+`"}]}`)
	v.talk = gjson.Get(r.body, "id").Str
	r = ask(t, i.base, acme, "GET", "/v1/conversations/"+v.talk+"/items", "")
	v.line = gjson.Get(r.body, "data.0.id").Str
	v.session = mcpHello(t, i.base, acme)
	v.task = apitest.TaskClient{URL: i.base, Key: "key-acme"}.Ready(t, "wait").Task(t, "wait", `{"ms":600000}`)
	asked := apitest.TaskClient{URL: i.base, Key: "key-acme", Without: true, Caps: apitest.WithForms}
	v.state = asked.Call(t, "add", bigBody).Get("requestState").Str
	require.NotEmpty(t, v.state)
	return v
}

// unharmed requires that all is as it was.
func (i *installation) unharmed(t *testing.T, v victim) {
	t.Helper()
	result := func(call string) reply { return ask(t, i.base, acme, "GET", "/v1/results/"+call, "") }
	require.Equal(t, 202, result(v.held).status)
	require.Contains(t, result(v.held).body, "approval_pending")
	require.Contains(t, result(v.running).body, "running")
	for _, call := range []string{v.tool} {
		require.Contains(t, result(call).body, canary)
	}
	run := ask(t, i.base, acme, "GET", "/v1/agents/helper/runs/"+v.run, "")
	said, _, _ := strings.Cut(gjson.Get(run.body, "output").Str, "\n\n") // before the list of the session, echoed too
	require.Equal(t, canary, said, run)
	require.Equal(t, v.list, ask(t, i.base, acme, "GET", "/v1/todo/s1", "").body)
	require.Contains(t, ask(t, i.base, acme, "GET", "/v1/evicted/"+v.evicted, "").body, canary)
	for _, path := range []string{"/v1/results/" + v.streamed + "/events", "/v1/responses/" + v.response,
		"/v1/responses/" + v.response + "/input_items",
		"/v1/responses/" + v.background + "/input_items", "/v1/conversations/" + v.talk,
		"/v1/conversations/" + v.talk + "/items/" + v.line} {
		require.Contains(t, ask(t, i.base, acme, "GET", path, "").body, canary, path)
	}
	require.Equal(t, "working", apitest.TaskClient{URL: i.base, Key: "key-acme"}.Get(t, v.task).Get("status").Str)
	r := ask(t, i.base, acme, "POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"ping"}`,
		"Accept: application/json, text/event-stream", "Mcp-Session-Id: "+v.session)
	require.Equal(t, 200, r.status, r)
	r = ask(t, i.base, "op", "GET", "/v1/tools", "")
	require.True(t, gjson.Get(r.body, `data.#(function.name=="keep")`).Exists())
	require.False(t, gjson.Get(r.body, `data.#(function.name=="forged")`).Exists())
	stats := ask(t, i.base, "op", "GET", "/api/debug/interceptor-stats", "").body
	for _, row := range gjson.Get(stats, "interceptors").Array() {
		if row.Get("stage").Str == "logging" || row.Get("stage").Str == "audit" {
			require.True(t, row.Get("enabled").Bool(), row.Raw)
		}
	}
}

// spellings are other ways to name a thing of another tenant, for paths.
func spellings(id string) []string {
	return []string{id, url.PathEscape(id), strings.ToUpper(id), acme + "." + id, "..%2f" + acme + "%2f" + id, id + "%00"}
}

// nothing requires that an answer tells nothing of the victim, and that it is no success where only nothing is allowed.
func nothing(t *testing.T, r reply, want ...int) {
	t.Helper()
	require.NotContains(t, r.body, canary)
	require.Contains(t, want, r.status, r)
}
