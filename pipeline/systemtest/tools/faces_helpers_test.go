package tools_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/httpapi"
	"github.com/shallot-nats/shallot/pipeline/api/mcpapi"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// faces serves an installation over HTTP and MCP, as the gateway does, to callers of the role.
func faces(t testing.TB, h *host.Host, role string) string {
	t.Helper()
	srv, err := httpapi.New(httpapi.Config{Addr: "127.0.0.1:1", BodyLimit: 32 << 20, Embedded: role == api.RoleOperator},
		httpapi.Deps{Entry: h.Entry(), Control: h.Control(), Tools: h.Tools, Approvals: h.Approvals})
	require.NoError(t, err)
	m, err := mcpapi.New(mcpapi.Options{Entry: h.Entry(), Tools: h.Tools.Registry, Upstreams: h.MCP,
		Tasks: h.Node, Approvals: h.Approvals, GracefulIsError: true,
		Local: api.Identity{Tenant: "default", Role: role}, Version: "test", Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(m.Close)
	srv.Extra = append(srv.Extra, httpapi.Surface{Pattern: "/mcp", Handler: m.Handler(32 << 20)})
	at := httptest.NewServer(srv.Handler())
	t.Cleanup(at.Close)
	return at.URL
}

// post sends a body and reads the answer.
func post(t testing.TB, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(b)
}

// callMCP calls a tool over MCP without a session and returns the answer's result, or its error.
func callMCP(t testing.TB, url, name, args string) gjson.Result {
	t.Helper()
	const v = "2026-07-28"
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + name + `","arguments":` + args +
		`,"_meta":{"io.modelcontextprotocol/protocolVersion":"` + v + `","io.modelcontextprotocol/clientCapabilities":{}}}}`
	_, out := post(t, url+"/mcp", body, "Accept", "application/json, text/event-stream",
		"MCP-Protocol-Version", v, "Mcp-Method", "tools/call", "Mcp-Name", name)
	for line := range strings.SplitSeq(out, "\n") {
		if data, ok := strings.CutPrefix(line, "data:"); ok {
			out = data
		}
	}
	return gjson.Parse(out)
}
