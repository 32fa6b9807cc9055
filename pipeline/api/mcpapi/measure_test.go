package mcpapi

import (
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// What a request does belongs below the trace that whoever measures has made for it, wherever the caller's came from.
func TestTheCallOfARequestIsBelowTheTraceOfWhoMeasures(t *testing.T) {
	t.Parallel()
	const (
		callers = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		ours    = "00-0af7651916cd43dd8448eb211c80319c-1111111111111111-01"
	)
	entry := &apitest.Entry{Target: apitest.Replies(`{"ok":true}`)}
	var mu sync.Mutex
	told := map[string][]string{} // by method: the trace of the caller, the tool, the fault
	server, err := New(Options{
		Entry: entry, Tools: &fakeTools{defs: []*tool.Definition{toolDef("add", "go")}}, Upstreams: &fakeTools{},
		Local: api.Identity{Tenant: "default", Role: api.RoleCaller}, Log: apitest.Log(t),
		Measure: func(method string, caller messages.Trace) (messages.Trace, func(tool, fault string)) {
			return messages.Trace{Parent: ours, State: "x=y"}, func(tool, fault string) {
				mu.Lock()
				defer mu.Unlock()
				told[method] = []string{caller.Parent, tool, fault}
			}
		},
	})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	g := serveMCP(t, entry, server, nil)
	s := apitest.DialMCP(t, g.URL, "", "2025-11-25", nil)
	for _, meta := range []mcp.Meta{{"traceparent": callers, "tracestate": "a=b"}, nil} {
		_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "add", Arguments: map[string]any{"n": 1}, Meta: meta})
		require.NoError(t, err)
		require.Equal(t, messages.Trace{Parent: ours, State: "x=y"}, entry.Last(t).Trace)
		want, _ := meta["traceparent"].(string)
		mu.Lock()
		require.Equal(t, []string{want, "add", ""}, told["tools/call"])
		mu.Unlock()
	}
}
