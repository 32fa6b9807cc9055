package mcpapi

import (
	"errors"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
)

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
