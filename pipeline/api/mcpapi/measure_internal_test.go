package mcpapi

import (
	"errors"
	"net/http"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
)

// A request has its trace in _meta, and may have no params, no _meta and no HTTP request around it.
func TestTheTraceOfARequestIsThatOfItsMeta(t *testing.T) {
	t.Parallel()
	header := &mcp.RequestExtra{Header: http.Header{"Traceparent": {"h"}, "Tracestate": {"s"}}}
	meta := &mcp.ListToolsParams{Meta: mcp.Meta{"traceparent": "m", "tracestate": 7}}
	for want, req := range map[messages.Trace]mcp.Request{
		{}:                        &mcp.ListToolsRequest{},
		{Parent: "h", State: "s"}: &mcp.ListToolsRequest{Params: &mcp.ListToolsParams{}, Extra: header},
		{Parent: "m"}:             &mcp.ListToolsRequest{Params: meta, Extra: header},
	} {
		require.Equal(t, want, traceOf(req))
		putBelow(req, messages.Trace{Parent: "p"})
	}
	require.Equal(t, messages.Trace{Parent: "h", State: "s"}, traceOf(&mcp.ListToolsRequest{Extra: header}))
	putBelow(&mcp.CallToolRequest{}, messages.Trace{Parent: "p"})
}

// What is told of a request says why it failed, and names no tool that nobody has.
func TestWhatIsToldOfARequestNamesNoToolThatNobodyHas(t *testing.T) {
	t.Parallel()
	call := &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: "read"}}
	refused := &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "unknown tool"}
	require.Equal(t, []string{"read", "", ""},
		[]string{toolOf(call, nil), toolOf(call, refused), toolOf(&mcp.ListToolsRequest{}, nil)})
	require.Equal(t, []string{"", "tool_error", "-32602", "internal", ""}, []string{
		faultOf(&mcp.CallToolResult{}, nil),
		faultOf(&mcp.CallToolResult{IsError: true}, nil),
		faultOf(nil, refused),
		faultOf(nil, errors.New("x")),
		faultOf(&mcp.ListToolsResult{}, nil),
	})
}
