package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// Execute calls the tool. Arguments and result keep their bytes. If ctx ends, the call is cancelled at the server.
func (m *Clients) Execute(ctx context.Context, inv toolbox.Invocation) (toolbox.Result, error) {
	x, name := inv.Tool.Executor, inv.Tool.Name
	s := m.servers[x.Name]
	if s == nil {
		return toolbox.Result{}, messages.NewFault(messages.TargetAbsent,
			"tool '%s': no MCP server %q is configured in this process; see tool.mcp-servers", name, x.Name)
	}
	patience := 5 * time.Second
	if s.OnCancel == CancelRestart { // this process may just be starting it again
		patience = 20 * time.Second
	}
	wait, cancel := context.WithTimeout(ctx, min(s.Timeout, patience))
	l, err := s.enter(wait)
	cancel()
	if err != nil {
		if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return toolbox.Result{}, ctx.Err()
		}
		f := messages.NewFault(messages.TargetAbsent,
			"tool '%s': the MCP server %s is not connected; it is tried again", name, x.Name)
		f.Unsent = true
		return toolbox.Result{}, f
	}
	givenUp := false
	defer func() { s.leave(l, givenUp) }()
	tool := x.Tool
	if tool == "" {
		tool = name
	}
	mark := messages.NewID()
	params := &mcp.CallToolParams{Name: tool, Arguments: inv.Arguments, Meta: mcp.Meta{
		metaRequest: mark, "shallot/call": inv.CallID, "shallot/idempotency-key": inv.IdempotencyKey,
	}}
	if inv.Trace.Parent != "" {
		params.Meta["traceparent"] = inv.Trace.Parent
	}
	if err := callerSays(params, inv.MCP); err != nil {
		return toolbox.Result{}, messages.NewFault(messages.InvalidRequest, "tool '%s': %v", name, err)
	}
	if inv.MCP != nil && inv.MCP.Progress {
		params.Meta["progressToken"] = mark
		s.listen(mark, inv.Progress)
		defer s.listen(mark, nil)
	}
	defer s.askLogs(params, mark, inv)()
	s.seen.expect(mark, inv.Once)
	defer s.seen.take(mark)
	calling, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	s.seen.watch(mark, stop)
	res, err := l.session.CallTool(calling, params)
	if err != nil && errors.Is(context.Cause(calling), errUnreadable) {
		return toolbox.Result{}, messages.NewFault(messages.ToolError,
			"tool '%s': the MCP server %s failed: %v", name, x.Name, errUnreadable)
	}
	if err != nil {
		givenUp = ctx.Err() != nil
		return toolbox.Result{}, s.failed(ctx, l, inv.Tool, err)
	}
	raw := s.seen.take(mark)
	if raw == nil {
		if raw, err = json.Marshal(res); err != nil {
			return toolbox.Result{}, err
		}
	}
	return resultOf(raw), nil
}

// callerSays passes on what the caller sent beside the arguments. Of their capabilities only those are passed on that a
// result can ask for, because this bridge supports no others, such as tasks.
func callerSays(params *mcp.CallToolParams, c *tool.MCPCall) error {
	if c == nil {
		return nil
	}
	if caps := inputCapabilities(c.Capabilities); len(caps) > 0 {
		params.Meta[mcp.MetaKeyClientCapabilities] = caps
	}
	params.RequestState = c.RequestState
	if len(c.InputResponses) > 0 {
		if err := json.Unmarshal(c.InputResponses, &params.InputResponses); err != nil {
			return fmt.Errorf("inputResponses: %w", err)
		}
	}
	return nil
}

func inputCapabilities(raw json.RawMessage) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for _, k := range []string{"elicitation", "sampling", "roots"} {
		if v, ok := rawjson.Field(raw, k); ok {
			out[k] = json.RawMessage(v)
		}
	}
	return out
}

// failed makes a fault of the error of a call.
func (s *server) failed(ctx context.Context, l *link, d *tool.Definition, err error) error {
	name := d.Name
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var wire *jsonrpc.Error
	if errors.As(err, &wire) {
		f := messages.NewFault(messages.ToolError, "tool '%s': the MCP server %s failed: %s", name, s.Name, wire.Message)
		switch code := wire.Code; {
		case code == connectionClosed || code == requestTimeout:
			// A server that passes calls on reports the one behind it: the tool may have run there.
			f.Code = messages.ToolNetwork
		case code != jsonrpc.CodeInternalError && code <= -32000 && code >= -32768:
			// The protocol's own errors: no attempt follows, and no other result replaces them.
			f.Code, f.Unsent = messages.InvalidRequest, slices.Contains(refusals, code)
			f.Message = fmt.Sprintf("tool '%s': the MCP server %s refused the call: %s", name, s.Name, wire.Message)
		}
		f.Unsent = f.Unsent || slices.Contains(d.NotExecuted, int(wire.Code))
		said := tool.MCPError{Code: wire.Code, Message: wire.Message, Data: wire.Data}
		f.Headers = map[string]string{tool.HeaderMCPError: string(rawjson.Encode(said))}
		return f
	}
	f := messages.NewFault(messages.ToolNetwork, "tool '%s': the connection to the MCP server %s broke", name, s.Name)
	var op *net.OpError
	f.Unsent = errors.As(err, &op) && op.Op == "dial"
	s.log.Warn("a call to an MCP server failed", "tool", name, "err", err)
	if errors.Is(err, mcp.ErrSessionMissing) {
		f.Unsent = true
		_ = l.session.Close()
	}
	return f
}

// refusals are the codes with which a server refuses a call before a tool runs.
var refusals = []int64{
	jsonrpc.CodeParseError, jsonrpc.CodeInvalidRequest, jsonrpc.CodeMethodNotFound, jsonrpc.CodeInvalidParams,
	mcp.CodeHeaderMismatch, mcp.CodeMissingRequiredClientCapabilities, mcp.CodeUnsupportedProtocolVersion,
	mcp.CodeURLElicitationRequired,
}

// Codes that the client of the TypeScript SDK makes itself.
const (
	connectionClosed = -32000
	requestTimeout   = -32001
)

func (s *server) listen(token string, f func(json.RawMessage)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f == nil {
		delete(s.progress, token)
		return
	}
	s.progress[token] = f
}

func (s *server) heardProgress(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
	token, _ := r.Params.ProgressToken.(string)
	s.mu.Lock()
	f := s.progress[token]
	s.mu.Unlock()
	if f == nil {
		return
	}
	p := map[string]any{"progress": r.Params.Progress}
	if r.Params.Total != 0 {
		p["total"] = r.Params.Total
	}
	if r.Params.Message != "" {
		p["message"] = r.Params.Message
	}
	f(rawjson.Encode(p))
}
