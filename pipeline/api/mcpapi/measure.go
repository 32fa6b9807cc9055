package mcpapi

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"reflect"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/shallot-nats/shallot/messages"
)

// Measure is told of each request before anything is done for it: its method, and the trace of its caller. What is done
// for it belongs below the trace that is returned. done is told of its end: the tool that it called if there is such a
// tool, and why it failed.
type Measure func(method string, caller messages.Trace) (below messages.Trace, done func(tool, fault string))

// measured stands before the gate where somebody measures.
func (f *Server) measured(next mcp.MethodHandler) mcp.MethodHandler {
	if f.Measure == nil {
		return next
	}
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		below, done := f.Measure(method, traceOf(req))
		putBelow(req, below)
		res, err := next(ctx, method, req)
		done(toolOf(req, err), faultOf(res, err))
		return res, err
	}
}

// The keys of _meta that the protocol reserves for traces.
const traceParent, traceState = "traceparent", "tracestate"

// traceOf is the trace of a request: that of its _meta, else that of the HTTP request that brought it.
func traceOf(req mcp.Request) (t messages.Trace) {
	// A request without params has a nil pointer in the interface.
	if p := req.GetParams(); p != nil && !reflect.ValueOf(p).IsNil() {
		t.Parent, _ = p.GetMeta()[traceParent].(string)
		t.State, _ = p.GetMeta()[traceState].(string)
	}
	if t.Parent != "" {
		return t
	}
	h := http.Header{}
	if x := req.GetExtra(); x != nil {
		h = x.Header
	}
	return messages.Trace{Parent: h.Get(traceParent), State: h.Get(traceState)}
}

// putBelow has the call of a request continue a trace. Other requests make no calls.
func putBelow(req mcp.Request, t messages.Trace) {
	call, ok := req.(*mcp.CallToolRequest)
	if !ok || call.Params == nil || t.Parent == "" {
		return
	}
	meta := maps.Clone(call.Params.Meta)
	if meta == nil {
		meta = mcp.Meta{}
	}
	meta[traceParent] = t.Parent
	delete(meta, traceState)
	if t.State != "" {
		meta[traceState] = t.State
	}
	call.Params.Meta = meta
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
