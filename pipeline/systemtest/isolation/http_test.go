package isolation

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

// attempts are what the second tenant tries on each route of the main listener and of that for operators. A route that
// is not here has not been thought about.
func attempts(i *installation, v victim) map[string]func(t *testing.T) {
	get := func(t *testing.T, path string, headers ...string) reply {
		return ask(t, i.base, "globex", "GET", path, "", headers...)
	}
	post := func(t *testing.T, path, body string, headers ...string) reply {
		return ask(t, i.base, "globex", "POST", path, body, headers...)
	}
	forbidden := func(method, path, body string) func(t *testing.T) {
		return func(t *testing.T) {
			for _, base := range []string{i.base, i.admin} {
				for _, headers := range [][]string{nil, {"Shallot-Tenant: acme"}, {"Shallot-User: op"}} {
					nothing(t, ask(t, base, "globex", method, path, body, headers...), 403)
				}
				nothing(t, ask(t, base, "nobody", method, path, body), 401)
			}
		}
	}
	chat := func(path, body, theirs, key string) func(t *testing.T) {
		return func(t *testing.T) { i.tryCalls(t, path, body, theirs, key) }
	}
	agent := func(t *testing.T) {
		r := post(t, "/v1/agents/helper/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"}]}`,
			"Shallot-Tenant: acme")
		nothing(t, r, 403)
	}
	models := func(t *testing.T) { nothing(t, get(t, "/v1/models", "Shallot-Tenant: acme"), 200) }
	model := func(t *testing.T) { nothing(t, get(t, "/v1/models/agent%2Fhelper", "Shallot-Tenant: acme"), 404) }
	gone := func(method, path string, ids ...string) func(t *testing.T) {
		return func(t *testing.T) {
			body := map[string]string{"POST": `{"items":[]}`}[method]
			for _, id := range ids {
				for _, name := range spellings(id) {
					path := fmt.Sprintf(path, name)
					for _, headers := range [][]string{nil, {"Shallot-Tenant: acme"}} {
						nothing(t, ask(t, i.base, "globex", method, path, body, headers...), 404)
					}
					nothing(t, ask(t, i.base, "op", method, path, body, "Shallot-Tenant: acme"), 404)
				}
				nothing(t, ask(t, i.base, "globex", method, fmt.Sprintf(path, id)+"?stream=true", body), 404)
			}
		}
	}
	health := func(t *testing.T) { nothing(t, get(t, "/readyz"), 200) }
	page := func(t *testing.T) { nothing(t, get(t, "/ui/"), 200) }
	todo := func(t *testing.T) {
		nothing(t, get(t, "/v1/todo/s1", "Shallot-Tenant: acme"), 200)
		for _, name := range []string{"acme.s1", "acme/s1", "../acme/s1", "acme%2Fs1"} {
			nothing(t, get(t, "/v1/todo", "Shallot-Session: "+name), 200)
		}
		r := ask(t, i.base, "globex", "PUT", "/v1/todo/s1", `{"items":[{"title":"mine"}],"replace":true}`,
			"Shallot-Tenant: acme")
		nothing(t, r, 200)
		nothing(t, ask(t, i.base, "globex", "PUT", "/v1/todo/s1", `{"items":[],"tenant":"acme"}`), 400)
	}
	run := func(t *testing.T, method, rest, body string) {
		for _, headers := range [][]string{nil, {"Shallot-Tenant: acme"}, {"Shallot-Session: s1"}, {"Last-Event-Id: 0.1"}} {
			nothing(t, ask(t, i.base, "globex", method, "/v1/agents/helper/runs/"+v.run+rest, body, headers...), 404)
		}
	}
	runs := map[string]func(t *testing.T){
		"GET /v1/agents": func(t *testing.T) { nothing(t, get(t, "/v1/agents", "Shallot-Tenant: acme"), 200) },
		"POST /v1/agents/{agent}/runs": func(t *testing.T) {
			nothing(t, post(t, "/v1/agents/helper/runs", `{"input":"x"}`, "Shallot-Tenant: acme"), 403)
			for _, header := range []string{"Shallot-Session: s1", "Shallot-Run: " + v.run} {
				r := post(t, "/v1/agents/helper/runs", `{"input":"x"}`, header)
				nothing(t, r, 200)
				nothing(t, get(t, gjson.Get(r.body, "location").Str+"/messages"), 200)
			}
		},
		"GET /v1/agents/{agent}/runs/{run}":          func(t *testing.T) { run(t, "GET", "", "") },
		"GET /v1/agents/{agent}/runs/{run}/messages": func(t *testing.T) { run(t, "GET", "/messages", "") },
		"GET /v1/agents/{agent}/runs/{run}/events":   func(t *testing.T) { run(t, "GET", "/events", "") },
		"POST /v1/agents/{agent}/runs/{run}/cancel":  func(t *testing.T) { run(t, "POST", "/cancel", "{}") },
	}
	all := map[string]func(t *testing.T){
		"POST /v1/chat/completions": chat("/v1/chat/completions", promptBody, v.chat, "key-1"),
		"POST /chat/completions":    chat("/chat/completions", promptBody, v.chat, "key-1"),
		"POST /v1/messages":         chat("/v1/messages", messagesBody, v.chat, "key-messages"),
		"POST /v1/embeddings":       chat("/v1/embeddings", embedBody, v.vectors, "key-embed"),
		"POST /v1/messages/count_tokens": func(t *testing.T) {
			nothing(t, post(t, "/v1/messages/count_tokens", messagesBody), 200)
		},
		"POST /v1/responses": func(t *testing.T) {
			i.tryCalls(t, "/v1/responses", responsesBody, v.answer, "key-responses")
			for _, more := range []string{`"previous_response_id":"` + v.response + `"`, `"conversation":"` + v.talk + `"`,
				`"conversation":{"id":"` + v.talk + `"}`, `"previous_response_id":"` + v.background + `"`} {
				nothing(t, post(t, "/v1/responses", `{"model":"demo/echo","input":"x",`+more+`}`), 404)
			}
			for _, held := range []string{v.held, v.running, v.chat} {
				nothing(t, post(t, "/v1/responses", `{"model":"demo/echo","input":[{"type":"mcp_approval_response",`+
					`"approval_request_id":"mcpr_`+held+`_0_0","approve":true}]}`), 404)
			}
			for _, item := range []string{v.item, v.line, "in_" + v.response + "_0"} {
				for _, kind := range []string{`"type":"item_reference",`, ""} {
					nothing(t, post(t, "/v1/responses", `{"model":"demo/echo","input":[{`+kind+`"id":"`+item+`"}]}`), 404)
				}
			}
		},
		"GET /v1/responses": func(t *testing.T) { nothing(t, get(t, "/v1/responses"), 405) },
		"POST /v1/responses/input_tokens": func(t *testing.T) {
			body := `{"model":"demo/echo","input":"x","previous_response_id":"` + v.response + `"}`
			nothing(t, post(t, "/v1/responses/input_tokens", body), 404)
		},
		"POST /v1/responses/compact": func(t *testing.T) {
			body := `{"model":"demo/echo","input":"x","previous_response_id":"` + v.response + `"}`
			nothing(t, post(t, "/v1/responses/compact", body), 404)
		},
		"GET /v1/responses/{response}":             gone("GET", "/v1/responses/%s", v.response, v.background),
		"DELETE /v1/responses/{response}":          gone("DELETE", "/v1/responses/%s", v.response, v.background),
		"POST /v1/responses/{response}/cancel":     gone("POST", "/v1/responses/%s/cancel", v.response, v.background),
		"GET /v1/responses/{response}/input_items": gone("GET", "/v1/responses/%s/input_items", v.response),
		"POST /v1/conversations": func(t *testing.T) {
			for _, item := range []string{v.item, v.line} {
				body := `{"items":[{"type":"item_reference","id":"` + item + `"}]}`
				nothing(t, post(t, "/v1/conversations", body), 404)
			}
		},
		"GET /v1/conversations/{conversation}":              gone("GET", "/v1/conversations/%s", v.talk),
		"POST /v1/conversations/{conversation}":             gone("POST", "/v1/conversations/%s", v.talk),
		"DELETE /v1/conversations/{conversation}":           gone("DELETE", "/v1/conversations/%s", v.talk),
		"GET /v1/conversations/{conversation}/items":        gone("GET", "/v1/conversations/%s/items", v.talk),
		"POST /v1/conversations/{conversation}/items":       gone("POST", "/v1/conversations/%s/items", v.talk),
		"GET /v1/conversations/{conversation}/items/{item}": gone("GET", "/v1/conversations/%s/items/"+v.line, v.talk),
		"DELETE /v1/conversations/{conversation}/items/{item}": gone("DELETE", "/v1/conversations/%s/items/"+v.line,
			v.talk),
		"POST /v1/agents/{agent}/chat/completions": agent,
		"GET /v1/models": models, "GET /models": models, "GET /v1/models/{id...}": model, "GET /models/{id...}": model,
		"GET /v1/results/{call}": func(t *testing.T) {
			for _, call := range []string{v.chat, v.tool, v.running, v.held} {
				for _, name := range spellings(call) {
					nothing(t, get(t, "/v1/results/"+name), 404)
					nothing(t, get(t, "/v1/results/"+name, "Shallot-Tenant: acme"), 404)
				}
			}
		},
		"GET /v1/results/{call}/events": gone("GET", "/v1/results/%s/events", v.streamed, v.chat),
		"GET /v1/todo/{session}":        todo, "PUT /v1/todo/{session}": todo, "GET /v1/todo": todo, "PUT /v1/todo": todo,
		"GET /v1/tools": func(t *testing.T) { nothing(t, get(t, "/v1/tools", "Shallot-Tenant: acme"), 200) },
		"GET /v1/tools/{name}": func(t *testing.T) {
			require.Empty(t, gjson.Get(get(t, "/v1/tools/keep").body, "executor").Str,
				"how a tool is run is the operator's to know")
		},
		"POST /v1/tools/{name}/call": func(t *testing.T) {
			i.tryCalls(t, "/v1/tools/keep/call", keepBody, v.tool, "key-2")
			i.tryCalls(t, "/v1/tools/add/call", bigBody, v.held, "key-3")
			r := post(t, "/v1/tools/readEvictedResult/call", `{"path":"`+v.evicted+`"}`)
			require.NotContains(t, r.body, canary)
		},
		"GET /v1/agents/{agent}": func(t *testing.T) {
			nothing(t, get(t, "/v1/agents/helper", "Shallot-Tenant: acme"), 200)
		},
		"PUT /v1/agents/{agent}":        forbidden("PUT", "/v1/agents/forged", `{}`),
		"DELETE /v1/agents/{agent}":     forbidden("DELETE", "/v1/agents/helper", ""),
		"POST /v1/tools":                forbidden("POST", "/v1/tools", `{"name":"forged","executor":"go:echo"}`),
		"DELETE /v1/tools/{name}":       forbidden("DELETE", "/v1/tools/keep", ""),
		"POST /v1/tools/{name}/approve": forbidden("POST", "/v1/tools/keep/approve", `{"hash":"x"}`),
		"GET /v1/evicted/{path...}": func(t *testing.T) {
			path := v.evicted
			name := path[strings.LastIndex(path, "/")+1:]
			encoded := strings.ReplaceAll(path, "/", "%2F")
			for _, p := range []string{path, name, acme + "/" + path, "../" + path, "..%2f" + path, "/" + path, encoded} {
				r := get(t, "/v1/evicted/"+p, "Shallot-Tenant: acme")
				nothing(t, r, 404, 400)
			}
		},
		"GET /v1/approvals":                         forbidden("GET", "/v1/approvals", ""),
		"GET /v1/approvals/{call}":                  forbidden("GET", "/v1/approvals/"+v.held, ""),
		"POST /v1/approvals/{call}":                 forbidden("POST", "/v1/approvals/"+v.held, `{"decision":"approve"}`),
		"GET /api/calls":                            forbidden("GET", "/api/calls?tenant=globex", ""),
		"GET /api/calls/{call}":                     forbidden("GET", "/api/calls/"+v.chat, ""),
		"GET /api/events":                           forbidden("GET", "/api/events?tenant=globex", ""),
		"* /metrics":                                forbidden("GET", "/metrics", ""),
		"GET /api/debug/interceptor-stats":          forbidden("GET", "/api/debug/interceptor-stats", ""),
		"GET /api/debug/interceptor/diagnostics":    forbidden("GET", "/api/debug/interceptor/diagnostics", ""),
		"POST /api/debug/interceptor/{name}/enable": forbidden("POST", "/api/debug/interceptor/logging/enable", ""),
		"POST /api/debug/interceptor/{name}/disable": forbidden("POST", "/api/debug/interceptor/logging/disable",
			`{"confirm":"logging"}`),
		"GET /api/dead":                     forbidden("GET", "/api/dead", ""),
		"DELETE /api/dead":                  forbidden("DELETE", "/api/dead?all=true", ""),
		"POST /api/dead/redrive":            forbidden("POST", "/api/dead/redrive?all=true", ""),
		"GET /api/dead/{sequence}":          forbidden("GET", "/api/dead/1", ""),
		"DELETE /api/dead/{sequence}":       forbidden("DELETE", "/api/dead/1", ""),
		"POST /api/dead/{sequence}/redrive": forbidden("POST", "/api/dead/1/redrive", ""),
		"GET /livez":                        health, "GET /readyz": health, "GET /healthz": health, "GET /health": health,
		"* /ui/": page, "* /{$}": page,
		"* /mcp": func(t *testing.T) { i.tryMCP(t, v) },
	}
	maps.Copy(all, runs)
	return all
}

// tryCalls tries to get another tenant's answer by asking the same: with its idempotency key, its session and run, and
// from the caches.
func (i *installation) tryCalls(t *testing.T, path, body, theirs, key string) {
	t.Helper()
	for _, headers := range [][]string{
		nil, {"Idempotency-Key: " + key}, {"Shallot-Cache: use"}, {"Shallot-Session: s1"}, {"Shallot-Run: run-1"},
		{"Shallot-Session: s1", "Shallot-Run: run-1", "Idempotency-Key: x" + key},
	} {
		r := ask(t, i.base, "globex", "POST", path, body, headers...)
		require.Less(t, r.status, 300, r)
		require.NotEqual(t, theirs, r.header("Shallot-Call"))
		if strings.Contains(strings.Join(headers, ""), "Idempotency-Key: "+key) {
			other := strings.Replace(body, "}", ` }`, 1)
			require.NotEqual(t, 422,
				ask(t, i.base, "globex", "POST", path, strings.Replace(other, canary, "other", 1), "Idempotency-Key: y"+key).status)
		}
	}
	nothing(t, ask(t, i.base, "globex", "POST", path, body, "Shallot-Tenant: acme"), 403)
	nothing(t, ask(t, i.base, "globex", "POST", path, body, "Shallot-Only: audit"), 403)
}

// tryMCP tries to use another tenant's session and task.
func (i *installation) tryMCP(t *testing.T, v victim) {
	t.Helper()
	const accept = "Accept: application/json, text/event-stream"
	const ping = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"keep","arguments":{"message":"x"}}}`
	own := mcpHello(t, i.base, "globex")
	require.NotEqual(t, v.session, own)
	for _, r := range []reply{
		ask(t, i.base, "globex", "POST", "/mcp", ping, accept, "Mcp-Session-Id: "+v.session),
		ask(t, i.base, "globex", "GET", "/mcp", "", "Accept: text/event-stream", "Mcp-Session-Id: "+v.session),
		ask(t, i.base, "globex", "DELETE", "/mcp", "", "Mcp-Session-Id: "+v.session),
		ask(t, i.base, "op", "DELETE", "/mcp", "", "Mcp-Session-Id: "+v.session),
	} {
		nothing(t, r, 403, 404)
	}
	c := apitest.TaskClient{URL: i.base, Key: "key-globex"}
	for _, id := range []string{v.task, v.running, v.chat} {
		for _, method := range []string{"tasks/get", "tasks/cancel", "tasks/update", "tasks/result"} {
			a := c.Do(t, method, `{"taskId":"`+id+`"}`)
			require.True(t, a.Get("error").Exists(), "%s %s", method, a.Raw)
			require.NotContains(t, a.Raw, canary)
		}
	}
	bearer := apitest.TaskClient{URL: i.base, Key: "key-globex", Without: true, Caps: apitest.WithForms}
	for _, more := range []string{"",
		`,"inputResponses":{"approval":{"action":"accept","content":{"decision":"approve"}}}`} {
		a := bearer.Do(t, "tools/call", `{"name":"add","arguments":`+bigBody+`,"requestState":"`+v.state+`"`+more+`}`)
		require.NotContains(t, a.Raw, "1001", "the other tenant's call was decided, or its result read")
		require.NotEqual(t, v.state, a.Get("result.requestState").Str)
	}
	r := c.Do(t, "tools/call", `{"name":"readEvictedResult","arguments":{"path":"`+v.evicted+`"}}`)
	require.NotContains(t, r.Raw, canary)
}

// tryCaches asks what the first tenant has asked: its answer is in caches, and for it alone.
func (i *installation) tryCaches(t *testing.T) {
	t.Helper()
	for path, body := range map[string]string{"/v1/chat/completions": promptBody, "/v1/tools/keep/call": keepBody} {
		require.Equal(t, 200, ask(t, i.base, acme, "POST", path, body).status)
		r := ask(t, i.base, "globex", "POST", path, body)
		require.Equal(t, 200, r.status, r)
		require.NotEqual(t, "hit", r.header("Shallot-Cache"), path)
		r = ask(t, i.base, acme, "POST", path, body)
		require.Equal(t, "hit", r.header("Shallot-Cache"), "%s: the attempt proves nothing", path)
	}
}

// No tenant reads, changes or ends what another one has, on any route there is.
func TestNoRouteCrossesTenants(t *testing.T) {
	t.Parallel()
	i := start(t, config)
	v := i.newVictim(t)
	i.tryCaches(t)
	rows := attempts(i, v)
	main, admin := i.http.Routes()
	served := map[string]bool{}
	for _, route := range append(main, admin...) {
		served[route] = true
		require.Contains(t, rows, route, "a route that nobody has tried to break")
	}
	for route, try := range rows {
		require.True(t, served[route], "%s is not served", route)
		t.Run(strings.ReplaceAll(route, "/", "|"), try)
	}
	i.unharmed(t, v)
}
