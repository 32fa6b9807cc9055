package tools_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline/api"
)

// Structured content of an MCP server that is not as the tool's own schema has it goes out as text in an error (TL-4).
func TestStructuredContentIsHeldToItsOwnSchema(t *testing.T) {
	t.Parallel()
	results := map[string]string{
		"good":  `{"content":[{"type":"text","text":"{\"n\":1}"}],"structuredContent":{"n":1}}`,
		"wrong": `{"content":[{"type":"text","text":"one"}],"structuredContent":{"n":"one"}}`,
		"bare":  `{"content":[],"structuredContent":{"m":1}}`,
		"none":  `{"content":[{"type":"text","text":"only"}]}`,
		"fails": `{"content":[{"type":"text","text":"no city"}],"isError":true}`,
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		id, result := gjson.GetBytes(body, "id").Raw, ""
		switch gjson.GetBytes(body, "method").Str {
		case "initialize":
			result = `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"b","version":"1"}}`
		case "tools/list":
			result = `{"tools":[`
			for name := range results {
				result += fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"},"outputSchema":{"type":"object",`+
					`"properties":{"n":{"type":"integer"}},"required":["n"]}},`, name)
			}
			result = result[:len(result)-1] + `]}`
		case "tools/call":
			result = results[gjson.GetBytes(body, "params.name").Str]
		}
		w.Header().Set("Content-Type", "application/json")
		switch {
		case id == "":
			w.WriteHeader(http.StatusAccepted)
		case result == "":
			_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, id)
		default:
			_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
		}
	}))
	t.Cleanup(srv.Close)
	h := toolHost(t, "tool:\n  mcp-servers:\n    - {name: up, url: \""+srv.URL+"\"}\n")
	url := faces(t, h, api.RoleCaller)
	for name := range results { // they are registered one after the other
		known := func() bool { _, err := h.Tools.GetTool(t.Context(), "up_"+name); return err == nil }
		require.Eventually(t, known, 30*time.Second, 10*time.Millisecond)
	}
	for name, want := range map[string]struct {
		text    string
		isError bool
		marked  bool
	}{
		"good": {`{"n":1}`, false, false}, "wrong": {"one", true, true}, "bare": {`{"m":1}`, true, true},
		"none": {"only", true, true}, "fails": {"no city", true, false},
	} {
		answer := callMCP(t, url, "up_"+name, `{}`)
		require.True(t, answer.Get("result").Exists(), "%s: %s", name, answer.Raw)
		r := answer.Get("result")
		require.Equal(t, want.isError, r.Get("isError").Bool(), r.Raw)
		require.Equal(t, want.text, r.Get("content.0.text").String(), r.Raw)
		require.Equal(t, name == "good", r.Get("structuredContent").Exists(), r.Raw)
		require.Equal(t, want.marked, r.Get("_meta.shallot/output-schema").Exists(), r.Raw)
	}
}
