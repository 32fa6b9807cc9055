//go:build unix

package golden

import (
	"strings"
	"testing"
)

const (
	config = `
version: 1
http: {body-limit: 1MiB}
agent:
  interceptor:
    approval:
      policies:
        - {name: notes, tool: sendNote}
`
	kind  = "Content-Type: application/json\n"
	hello = `{"model":"demo/echo","messages":[{"role":"user","content":"hello"}]}`
	flow  = `{"model":"demo/echo","stream":true,"messages":[{"role":"user","content":"one two three"}]}`
	note  = `{"to":"ann","text":"hi"}`
	pick  = `{"model":"demo/tools","messages":[{"role":"user","content":"Paris"}],` +
		`"tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object",` +
		`"properties":{"city":{"type":"string"}},"required":["city"]}}}]}`
)

func chat(body string, headers ...string) string {
	return post("/v1/chat/completions", body, headers...)
}

func post(path, body string, headers ...string) string { return send("POST", path, body, headers...) }

func send(method, path, body string, headers ...string) string {
	for i := range headers {
		headers[i] += "\n"
	}
	return method + " " + path + "\n" + kind + strings.Join(headers, "") + "\n" + body
}

func fails(how string) string {
	return chat(`{"model":"demo/fail","messages":[{"role":"user","content":"fail ` + how + `"}]}`)
}

func one(name, exchange string) row { return row{name, []string{exchange}} }

var modelRows = []row{
	one("chat", chat(hello)),
	one("chat-without-v1", post("/chat/completions", hello)),
	one("chat-streamed", chat(flow)),
	one("chat-streamed-usage",
		chat(strings.Replace(flow, `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1))),
	// the answer says what was edited (CX-3)
	one("chat-session", chat(hello, "Shallot-Session: s1", "Shallot-User: ann", "X-Request-Id: mine")),
	{"chat-session-any-text", []string{
		chat(hello, "Shallot-Session: Müller & Söhne / 会话 7"),
		"GET /v1/todo\nShallot-Session: Müller & Söhne / 会话 7\n\n",
	}},
	one("chat-session-streamed", chat(flow, "Shallot-Session: s2")),
	one("chat-session-in-body", chat(strings.Replace(hello, `{"model"`, `{"metadata":{"session_id":"a b"},"model"`, 1))),
	one("chat-calls-tool", chat(pick)),
	one("chat-calls-tool-streamed", chat(strings.Replace(pick, `{"model"`, `{"stream":true,"model"`, 1))),
	one("chat-unknown-fields",
		chat(strings.Replace(hello, `"model"`, `"temperature":0,"big":9007199254740993,"x":{"b":1,"a":2},"model"`, 1))),
	one("chat-no-json", chat(`{"model":`)),
	one("chat-no-object", chat(`[1]`)),
	one("chat-no-body", chat("")),
	one("chat-no-model", chat(`{"messages":[{"role":"user","content":"hi"}]}`)),
	one("chat-no-messages", chat(`{"model":"demo/echo"}`)),
	one("chat-model-number", chat(`{"model":3,"messages":[]}`)),
	one("chat-two-models",
		chat(`{"model":"demo/echo","model":"demo/slow","messages":[{"role":"user","content":"hi"}]}`)),
	one("chat-unknown-model", chat(strings.Replace(hello, "demo/echo", "nobody/knows", 1))),
	one("chat-unknown-agent", post("/v1/agents/nobody/chat/completions", hello)),
	one("chat-text-plain", "POST /v1/chat/completions\nContent-Type: text/plain\n\n"+hello),
	one("chat-coded", chat(hello, "Content-Encoding: br")),
	one("chat-too-large", chat(strings.Replace(hello, "hello", "{long}", 1))),
	one("chat-deep",
		chat(`{"model":"demo/echo","messages":`+strings.Repeat("[", 200)+strings.Repeat("]", 200)+`}`)),
	one("chat-bad-timeout", chat(hello, "Shallot-Timeout: soon")),
	one("chat-bad-deadline", chat(hello, "Shallot-Deadline: tomorrow")),
	one("chat-bad-cache", chat(hello, "Shallot-Cache: maybe")),
	one("chat-misspelled-header", chat(hello, "Shallot-Sesion: s1")),
	one("tool-misspelled-header", "POST /v1/tools/add/call\nShallot-Tiemout: 1s\n\n"+`{"a":1,"b":2}`),
	one("chat-bad-only", chat(hello, "Shallot-Only: nothing-known")),
	one("chat-only", chat(hello, "Shallot-Only: logging")),
	one("chat-two-sessions", chat(hello, "Shallot-Session: a", "Shallot-Session: b")),
	one("chat-empty-session", chat(hello, "Shallot-Session: ")),
	one("chat-long-session", chat(hello, "Shallot-Session: "+strings.Repeat("s", 257))),
	one("chat-get", send("GET", "/v1/chat/completions", "")),
	one("chat-options", "OPTIONS /v1/chat/completions\n\n"),
	one("chat-foreign-origin", chat(hello, "Origin: https://evil.example", "Sec-Fetch-Site: cross-site")),
	one("chat-foreign-host", chat(hello, "Host: evil.example")),
	one("chat-fails-400", fails("400")), one("chat-fails-401", fails("401")), one("chat-fails-404", fails("404")),
	one("chat-fails-429", fails("429")), one("chat-fails-500", fails("500")),
	one("chat-fails-quota", fails("quota")),
	one("chat-fails-context", fails("context")), one("chat-fails-html", fails("html")),
	one("chat-fails-malformed", fails("malformed")),
	one("chat-fails-empty", fails("empty")), one("chat-fails-refused", fails("refused")),
	one("chat-fails-cut", fails("cut 3")),
	one("chat-fails-cut-streamed",
		chat(`{"model":"demo/fail","stream":true,"messages":[{"role":"user","content":"fail cut 3"}]}`)),
	one("chat-fails-500-streamed",
		chat(`{"model":"demo/fail","stream":true,"messages":[{"role":"user","content":"fail 500"}]}`)),
	{"chat-idempotency", []string{
		chat(hello, "Idempotency-Key: k1"), chat(hello, "Idempotency-Key: k1"),
		chat(strings.Replace(hello, "hello", "other", 1), "Idempotency-Key: k1"),
	}},
	{"chat-submitted", []string{
		chat(hello, "Prefer: respond-async"), "GET /v1/results/$call\nPrefer: wait=20\n\n",
		"GET /v1/results/$call\n\n",
	}},
	one("models", "GET /v1/models\n\n"),
	one("models-without-v1", "GET /models\n\n"),
	one("model", "GET /v1/models/demo%2Fecho\n\n"),
	one("model-unknown", "GET /v1/models/nobody\n\n"),
	one("models-delete", "DELETE /v1/models\n\n"),
	one("result-unknown", "GET /v1/results/01a201e6-54b9-7d9c-9c8c-6230f84b6237\n\n"),
	one("result-no-id", "GET /v1/results/x\n\n"),
}

var otherRows = []row{
	one("tools", "GET /v1/tools\n\n"),
	one("tools-head", "HEAD /v1/tools\n\n"),
	one("tool", "GET /v1/tools/add\n\n"),
	one("tool-unknown", "GET /v1/tools/nobody\n\n"),
	one("tool-call", post("/v1/tools/add/call", `{"a":1,"b":2}`)),
	one("tool-call-converts", post("/v1/tools/add/call", `{"a":5,"b":"6"}`)),
	one("tool-call-bad-arguments", post("/v1/tools/add/call", `{"a":"x"}`)),
	one("tool-call-no-json", post("/v1/tools/add/call", `{`)),
	one("tool-call-array", post("/v1/tools/add/call", `[1,2]`)),
	one("tool-call-unknown", post("/v1/tools/nobody/call", `{}`)),
	one("tool-call-fails", post("/v1/tools/failing/call", `{"how":"error"}`)),
	one("tool-call-panics", post("/v1/tools/failing/call", `{"how":"panic"}`)),
	one("tool-call-streamed", post("/v1/tools/echo/call",
		`{"message":"as a stream"}`, "Accept: text/event-stream")),
	one("tool-call-evicted", post("/v1/tools/largeText/call", `{"lines":5000}`)),
	one("tool-call-too-large", post("/v1/tools/echo/call", `{"message":"{long}"}`)),
	one("tool-call-bad-zone", post("/v1/tools/getCurrentTime/call", `{"timezone":"Mars"}`)),
	one("tool-register-wrong", post("/v1/tools", `{"name":"x","executr":"go:add"}`)),
	one("tool-remove-unknown", "DELETE /v1/tools/nobody\n\n"),
	one("tool-remove-configured", "DELETE /v1/tools/add\n\n"),
	one("tool-approve-unknown", post("/v1/tools/nobody/approve", `{"hash":"x"}`)),
	one("evicted-unknown", "GET /v1/evicted/nothing/here.txt\n\n"),
	{"approval", []string{
		post("/v1/tools/sendNote/call", note), "GET /v1/approvals/$call\n\n", "GET /v1/results/$call\n\n",
		post("/v1/approvals/$call", `{"decision":"perhaps"}`), post("/v1/approvals/$call",
			`{"decision":"reject","reason":"no"}`),
		post("/v1/approvals/$call", `{"decision":"approve"}`), "GET /v1/results/$call\nPrefer: wait=20\n\n",
	}},
	one("approval-unknown", "GET /v1/approvals/nobody\n\n"),
	one("approval-unknown-answer", post("/v1/approvals/nobody", `{"decision":"approve"}`)),
	one("approvals-post", post("/v1/approvals", `{}`)),
	{"todo", []string{
		"GET /v1/todo/g1\n\n", send("PUT", "/v1/todo/g1", `{"items":[{"title":"write"}]}`),
		"GET /v1/todo/g1\n\n", "GET /v1/todo\nShallot-Session: g1\n\n", send("PUT", "/v1/todo/g1", `{`),
		"GET /v1/todo\n\n",
	}},
	one("live", "GET /livez\n\n"), one("ready", "GET /readyz\n\n"), one("health-post", post("/readyz", "{}")),
	one("page", "GET /\n\n"),
	one("path-unknown", "GET /v1/nothing\n\n"), one("path-dots", "GET /v1/../v1/models\n\n"),
	one("path-slashes", "GET //v1/models\n\n"), one("path-encoded", "GET /v1%2Fmodels\n\n"),
	one("switch-unknown", post("/api/debug/interceptor/nobody/disable", "")),
	one("switch-mandatory", post("/api/debug/interceptor/audit/disable", "")),
	one("switch-get", "GET /api/debug/interceptor/audit/disable\n\n"),
	one("preflight", "OPTIONS /v1/chat/completions\n"+
		"Origin: https://evil.example\nAccess-Control-Request-Method: POST\n\n"),
}

const (
	initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
		`"capabilities":{},"clientInfo":{"name":"golden","version":"1"}}}`
	accepts = "Accept: application/json, text/event-stream"
	old     = "Mcp-Session-Id: $session"
)

func mcp(body string, headers ...string) string {
	return post("/mcp", body, append(headers, accepts)...)
}

var mcpRows = []row{
	{"mcp", []string{
		mcp(initialize), mcp(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, old),
		mcp(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`, old),
		mcp(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"add","arguments":{"a":10,"b":"20"}}}`, old),
		mcp(`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"nobody","arguments":{}}}`, old),
		mcp(`{"jsonrpc":"2.0","id":5,"method":"nothing/known"}`, old),
		mcp(`{"jsonrpc":"2.0","id":6,"method":"ping"}`, old),
		"DELETE /mcp\n" + old + "\n\n", mcp(`{"jsonrpc":"2.0","id":7,"method":"ping"}`, old),
	}},
	{"mcp-without-session", []string{
		mcp(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"a":30,"b":40},"_meta":{`+
			`"io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
			`"io.modelcontextprotocol/clientInfo":{"name":"g","version":"1"},`+
			`"io.modelcontextprotocol/clientCapabilities":{}}}}`, "MCP-Protocol-Version: 2026-07-28",
			"Mcp-Method: tools/call", "Mcp-Name: add"),
	}},
	one("mcp-no-json", mcp(`{`)), one("mcp-no-session", mcp(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)),
	one("mcp-wrong-session", mcp(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`, "Mcp-Session-Id: nobody")),
	one("mcp-get", "GET /mcp\n\n"), one("mcp-put", send("PUT", "/mcp", "{}")),
	one("mcp-text", "POST /mcp\nContent-Type: text/plain\n\n"+initialize),
}

// TestWhatACallerSeesOfAGatewayStaysAsItIs plays all rows against one gateway with an embedded server.
func TestWhatACallerSeesOfAGatewayStaysAsItIs(t *testing.T) {
	g := start(t, build(t), config)
	for _, rows := range [][]row{modelRows, otherRows, mcpRows, natsRows} {
		g.run(t, rows)
	}
}
