package mcpapi

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Measure is told of each request: its method, the tool that it calls if there is such a tool, why it failed, and how
// long it took.
type Measure func(method, tool, fault string, took time.Duration)

// measured stands before the gate where somebody measures.
func (f *Server) measured(next mcp.MethodHandler) mcp.MethodHandler {
	if f.Measure == nil {
		return next
	}
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		begin := time.Now()
		res, err := next(ctx, method, req)
		f.Measure(method, toolOf(req, err), faultOf(res, err), time.Since(begin))
		return res, err
	}
}

// toolOf is the tool that a request called. One that failed as a request names none: callers may send any name.
func toolOf(req mcp.Request, err error) string {
	call, ok := req.(*mcp.CallToolRequest)
	if !ok || err != nil || call.Params == nil {
		return ""
	}
	return call.Params.Name
}

// faultOf is why a request failed, by the conventions: the code of the error, or tool_error.
func faultOf(res mcp.Result, err error) string {
	if err != nil {
		if wire, ok := errors.AsType[*jsonrpc.Error](err); ok {
			return strconv.FormatInt(wire.Code, 10)
		}
		return "internal"
	}
	if call, ok := res.(*mcp.CallToolResult); ok && call.IsError {
		return "tool_error"
	}
	return ""
}
