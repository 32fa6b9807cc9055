package mcpapi

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/api/httpapi"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// withServer is a registry with one MCP server behind, "files", that has a prompt, a resource and a template.
type withServer struct{ *fakeTools }

func (withServer) Servers() (names, prefixes []string) { return []string{"files"}, []string{"files_"} }

func (withServer) Ask(_ context.Context, _, method string, _ any) (json.RawMessage, error) {
	switch method {
	case tool.MCPPrompts:
		return json.RawMessage(`[{"name":"sum"}]`), nil
	case tool.MCPResources:
		return json.RawMessage(`[{"uri":"file:///etc/secret","name":"s"}]`), nil
	case tool.MCPTemplates:
		return json.RawMessage(`[{"uriTemplate":"file:///tmp/{name}","name":"t"}]`), nil
	case tool.MCPRead:
		return json.RawMessage(`{"contents":[{"uri":"file:///etc/secret","text":"read"}]}`), nil
	case tool.MCPPrompt:
		return json.RawMessage(`{"messages":[]}`), nil
	}
	return json.RawMessage(`{}`), nil
}

// What a key's list of tools does not name is neither listed nor reachable over MCP, prompts and resources included.
func TestMCPKeyLimits(t *testing.T) {
	t.Parallel()
	entry := &apitest.Entry{Target: apitest.Replies(`{"ok":true}`)}
	source := withServer{&fakeTools{defs: []*tool.Definition{toolDef("add", "go"), toolDef("echo", "go"),
		toolDef("files_read", "go")}}}
	record := func(id, tools string) string {
		return fmt.Sprintf("  - {id: %s, hash: %q, tenant: t%s, tools: [%s]}\n", id, httpapi.HashKey("key-"+id, nil), id,
			tools)
	}
	keys := keysOf(t, "keys:\n"+record("one", "add")+record("part", `"files_r*"`)+record("files",
		`"files_*", add`)+record("all", ""))
	g := serveSource(t, entry, source, func(_ *httpapi.Config, p *httpapi.Deps) { p.Keys = keys })
	for key, want := range map[string]struct {
		tools             []string
		prompts, resource bool
	}{
		"one": {[]string{"add"}, false, false}, "part": {[]string{"files_read"}, false, false},
		"files": {[]string{"add", "files_read"}, true, true}, "all": {[]string{"add", "echo", "files_read"}, true, true},
	} {
		for _, revision := range []string{"2026-07-28", "2025-06-18"} {
			t.Run(key+" "+revision, func(t *testing.T) {
				t.Parallel()
				s := apitest.DialMCP(t, g.URL, "key-"+key, revision, nil)
				list, err := s.ListTools(t.Context(), nil)
				require.NoError(t, err)
				var names []string
				for _, x := range list.Tools {
					names = append(names, x.Name)
				}
				require.Equal(t, want.tools, names)
				for _, name := range []string{"add", "echo", "files_read", "none"} {
					_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name})
					if !strings.Contains(strings.Join(names, " "), name) {
						var wire *jsonrpc.Error
						require.ErrorAs(t, err, &wire, name)
						require.Contains(t, wire.Message, "tools/list", "the next step")
						continue
					}
					require.NoError(t, err, name)
				}
				prompts := func() int { l, err := s.ListPrompts(t.Context(), nil); require.NoError(t, err); return len(l.Prompts) }
				resources := func() int {
					l, err := s.ListResources(t.Context(), nil)
					require.NoError(t, err)
					return len(l.Resources)
				}
				if want.resource {
					require.Eventually(t, func() bool { return prompts() == 1 && resources() == 1 }, 30*time.Second,
						10*time.Millisecond)
				}
				templates, err := s.ListResourceTemplates(t.Context(), nil)
				require.NoError(t, err)
				_, promptErr := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "files_sum"})
				_, readErr := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "file:///etc/secret"})
				if want.resource {
					require.Len(t, templates.ResourceTemplates, 1)
					require.NoError(t, promptErr)
					require.NoError(t, readErr)
					return
				}
				require.Zero(t, prompts()+resources()+len(templates.ResourceTemplates))
				require.Error(t, promptErr)
				require.Error(t, readErr)
				_, err = s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "file:///tmp/x"})
				require.Error(t, err, "by a template")
				if revision == "2026-07-28" {
					return // its client does not wait for the answer
				}
				require.Error(t, s.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "file:///etc/secret"}))
			})
		}
	}
}

// An output schema that is listed is kept: clients refuse a result without structured content of that shape, but for an
// error, and older ones refuse the whole list if the schema is no object's.
func TestMCPOutputSchema(t *testing.T) {
	t.Parallel()
	note := func(c *messages.Call, mark, reply string) error {
		c.Note(messages.NoteDegraded, mark)
		c.SetReply([]byte(reply))
		return nil
	}
	entry := &apitest.Entry{Target: func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		switch n := gjson.GetBytes(c.Request(), "n").Int(); n {
		case 1:
			c.SetReply([]byte(`{"sum":9007199254740993}`))
		case 2:
			c.SetReply([]byte(`{"sum":"three"}`))
		case 3:
			c.SetReply([]byte("line 1 ... [saved]")) // as eviction leaves it
		case 4:
			return note(c, "graceful_error", `{"error":"timeout","_shallot":{"fallback":"graceful_error"}}`)
		case 5:
			return note(c, "stub_data", `{"sum":1,"_shallot":{"fallback":"stub_data"}}`)
		case 6:
			return note(c, "stale_cache", `{"old":1,"_shallot":{"fallback":"stale_cache"}}`)
		case 7:
			c.SetReply([]byte(`[1,9007199254740993]`))
		}
		return nil
	}}
	sum, list := toolDef("sum", "go"), toolDef("list", "go")
	sum.OutputSchema = tool.JSON(`{"type":"object","properties":{"sum":{"type":"integer"}},"required":["sum"],` +
		`"additionalProperties":false}`)
	sum.InputSchema = tool.JSON(`{"type":"object","properties":{"n":true,"never":false}}`)
	list.OutputSchema = tool.JSON(`{"type":"array","items":{"type":"integer"}}`)
	g := serveSource(t, entry, &fakeTools{defs: []*tool.Definition{sum, list}}, nil)
	for _, revision := range append(revisions, "2025-03-26", "2024-11-05") {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			s := apitest.DialMCP(t, g.URL, "", revision, nil)
			tools, err := s.ListTools(t.Context(), nil)
			require.NoError(t, err)
			require.Len(t, tools.Tools, 2)
			raw := rawjson.Encode(tools)
			modern := revision == "2026-07-28"
			require.Equal(t, modern, gjson.GetBytes(raw, "tools.0.outputSchema").Exists(),
				"an array's schema is not for older clients")
			require.True(t, gjson.GetBytes(raw, "tools.1.outputSchema").Exists())
			require.Equal(t, !modern, gjson.GetBytes(raw, "tools.1.inputSchema.properties.n").IsObject())
			require.Equal(t, !modern, gjson.GetBytes(raw, "tools.1.inputSchema.properties.never.not").IsObject())
			for n, want := range map[int]struct {
				structured, text string
				isError          bool
			}{
				1: {`{"sum":9007199254740993}`, `{"sum":9007199254740993}`, false},
				2: {``, "the tool ran", true}, 3: {``, "[saved]", true}, 4: {``, "timeout", true},
				5: {`{"sum":1}`, "stub_data", false}, 6: {``, "stale_cache", true},
			} {
				r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "sum", Arguments: map[string]int{"n": n}})
				require.NoError(t, err, n)
				require.Equal(t, want.isError, r.IsError, n)
				require.Contains(t, string(rawjson.Encode(r.Content)), strings.ReplaceAll(want.text, `"`, `\"`), n)
				require.Equal(t, want.structured == "", r.StructuredContent == nil, n)
				if n == 5 {
					require.JSONEq(t, want.structured, string(rawjson.Encode(r.StructuredContent)),
						"the mark is in _meta and the text")
				}
			}
			r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "list", Arguments: map[string]int{"n": 7}})
			require.NoError(t, err)
			require.False(t, r.IsError)
			require.Equal(t, modern, r.StructuredContent != nil)
			require.Equal(t, `[1,9007199254740993]`, apitest.TextOf(t, r))
		})
	}
}

func post(method, more string) string {
	return `{"jsonrpc":"2.0","id":"q7","method":"` + method + `","params":{` + more +
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
}

// Whatever is wrong with a POST, the answer is JSON-RPC that says what and what to do; nothing begins a session but
// initialize.
func TestMCPRefusalsAreJSONRPC(t *testing.T) {
	t.Parallel()
	g := serveSource(t, &apitest.Entry{Target: apitest.Replies(`{"ok":1}`)},
		&fakeTools{defs: []*tool.Definition{toolDef("add", "go")}}, nil)
	accept, now := "Accept: application/json, text/event-stream", "Mcp-Protocol-Version: 2026-07-28"
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, post("tools/list", ""))
	require.NoError(t, z.Close())
	list := "Mcp-Method: tools/list"
	hello := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",` +
		`"capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
	session := "Mcp-Session-Id: " + g.Do(t, "POST", "/mcp", hello, accept).Header.Get("Mcp-Session-Id")
	old := `{"jsonrpc":"2.0","id":"q7","method":"tools/list"}`
	for name, row := range map[string]struct {
		body    string
		headers []string
		status  int
		code    int64
		id      bool
		says    string
	}{
		"no JSON": {`{"jsonrpc`, []string{accept, now}, 400, -32700, false, "not valid JSON"},
		"deep": {`{"id":1,"method":"x","params":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`,
			[]string{accept, now}, 413, -32600, false, "nested"},
		"id above 2^53": {strings.Replace(post("tools/list", ""), `"q7"`, "9007199254740993", 1),
			[]string{accept, now, list}, 400, -32600, false, "2^53"},
		"broken id": {strings.Replace(post("tools/list", ""), `"q7"`, "1.5", 1), []string{accept, now, list}, 400,
			-32600, false, "string"},
		"nothing": {``, []string{accept, now}, 400, -32700, false, "empty"},
		"too large": {`"` + strings.Repeat("a", 1<<20) + `"`, []string{accept, now}, 413, -32600, false,
			"http.body-limit"},
		"form": {"a=1", []string{accept, now, "Content-Type: multipart/form-data; boundary=x"}, 415, -32600,
			false, "application/json"},
		"coding": {"x", []string{accept, now, "Content-Encoding: br"}, 415, -32600, false, "gzip"},
		"accepts JSON alone": {post("tools/list", ""), []string{"Accept: application/json", now, list}, 400, -32600, true,
			"send Accept"},
		"version twice": {post("tools/list", ""), []string{accept, now, "Mcp-Protocol-Version: 2025-06-18", list}, 400,
			-32020, true, "2 times"},
		"other name": {post("tools/call", `"name":"add",`),
			[]string{accept, now, "Mcp-Method: tools/call", "Mcp-Name: rm"}, 400, -32020, true, "Mcp-Name"},
		"no _meta": {old, []string{accept, now, list}, 400, -32602, true, "_meta"},
		"unknown revision": {strings.ReplaceAll(post("tools/list", ""), "2026-07-28", "2027-01-01"),
			[]string{accept, "Mcp-Protocol-Version: 2027-01-01", list}, 400, -32022, true, "version"},
		"unknown method": {post("nix", ""), []string{accept, now, "Mcp-Method: nix"}, 404, -32601, true, "nix"},
		"unknown tool": {post("tools/call", `"name":"nix",`),
			[]string{accept, now, "Mcp-Method: tools/call", "Mcp-Name: nix"}, 400, -32602, true, "tools/list"},
		"batch":        {"[" + post("tools/list", "") + "]", []string{accept, now}, 400, -32600, false, "batch"},
		"no session":   {old, []string{accept}, 400, -32600, true, "initialize"},
		"lost session": {old, []string{accept, "Mcp-Session-Id: gone"}, 404, -32001, true, "initialize"},
		"old unknown method": {strings.Replace(old, "tools/list", "nix", 1), []string{accept, session}, 200, -32601, true,
			"nix"},
		"old version": {old, []string{accept, session, "Mcp-Protocol-Version: 2020-01-01"}, 400, -32600, true,
			"supported versions"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := g.Do(t, "POST", "/mcp", row.body, append([]string{"Content-Type: application/json"}, row.headers...)...)
			if strings.HasPrefix(strings.Join(row.headers, "\n"), "Content-Type") {
				r = g.Do(t, "POST", "/mcp", row.body, row.headers...)
			}
			require.Equal(t, row.status, r.StatusCode, r.Body)
			require.Equal(t, "application/json", r.Header.Get("Content-Type"))
			require.Equal(t, row.code, gjson.Get(r.Body, "error.code").Int(), r.Body)
			require.Contains(t, gjson.Get(r.Body, "error.message").String(), row.says)
			require.Equal(t, row.id, gjson.Get(r.Body, "id").String() == "q7", r.Body)
		})
	}
	require.Equal(t, http.StatusOK, g.Do(t, "POST", "/mcp", packed.String(), accept, now, list, "Content-Encoding: gzip",
		"Content-Type: application/json").StatusCode)
	r := g.Do(t, "OPTIONS", "/mcp", "")
	require.Equal(t, []any{http.StatusNoContent, "DELETE, GET, OPTIONS, POST"}, []any{r.StatusCode, r.Header.Get("Allow")})
	r = g.Do(t, "POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/nix"}`, accept, session)
	require.Equal(t, http.StatusAccepted, r.StatusCode, "nothing is answered to a notification")
}

// What _meta says of a call is checked like the headers, under its own name.
func TestMCPMetaOfCalls(t *testing.T) {
	t.Parallel()
	entry := &apitest.Entry{Target: apitest.Replies(`{}`)}
	g := serveSource(t, entry, &fakeTools{defs: []*tool.Definition{toolDef("add", "go")}}, nil)
	s := apitest.DialMCP(t, g.URL, "", "2026-07-28", nil)
	for name, row := range map[string]struct {
		meta mcp.Meta
		says string
	}{
		"words":   {mcp.Meta{"shallot/timeout": "soon"}, `_meta "shallot/timeout" is "soon"`},
		"number":  {mcp.Meta{"shallot/timeout": 5}, `_meta "shallot/timeout" must be a string`},
		"blank":   {mcp.Meta{"shallot/idempotency-key": "a b"}, `_meta "shallot/idempotency-key" must be 1 to 256`},
		"empty":   {mcp.Meta{"shallot/session": ""}, `_meta "shallot/session"`},
		"past":    {mcp.Meta{"shallot/deadline": "2020-01-01T00:00:00Z"}, "was over"},
		"caching": {mcp.Meta{"shallot/cache": "maybe"}, "known: use, refresh, off"},
	} {
		_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "add", Meta: row.meta})
		var wire *jsonrpc.Error
		require.ErrorAs(t, err, &wire, name)
		require.EqualValues(t, jsonrpc.CodeInvalidParams, wire.Code, name)
		require.Contains(t, wire.Message, row.says, name)
	}
	_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "add",
		Meta: mcp.Meta{"shallot/cache": "off", "shallot/deadline": time.Now().Add(time.Hour).Format(time.RFC3339),
			"traceparent": 7}})
	require.NoError(t, err)
	require.Equal(t, "off", entry.Last(t).Cache)
	headers := []string{"Accept: application/json, text/event-stream", "Mcp-Protocol-Version: 2026-07-28",
		"Mcp-Method: tools/call", "Mcp-Name: add", "Idempotency-Key: k1"}
	body := strings.Replace(post("tools/call", `"name":"add",`), `"_meta":{`, `"_meta":{"shallot/idempotency-key":"k2",`,
		1)
	require.Contains(t, g.Do(t, "POST", "/mcp", body, headers...).Body, "say different things")
	require.NotContains(t, g.Do(t, "POST", "/mcp", strings.Replace(body, "k2", "k1", 1), headers...).Body, `"error"`)
}
