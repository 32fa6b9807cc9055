package natstool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// MCP carries requests for MCP servers other than tool calls, and the news that something at a server changed, between
// the processes that hold the connections and those that answer callers. It is safe for concurrent use.
type MCP struct {
	Conn     *nats.Conn
	Subjects messages.Subjects
	Log      *slog.Logger

	asked gate
}

// Do asks a connected MCP server; mcp.Clients.Do is one.
type Do func(ctx context.Context, server, method string, params json.RawMessage) (json.RawMessage, error)

// Serve answers what other processes ask of the servers, with do. guard keeps answers from going anywhere but to
// inboxes. Close waits for the answers under way.
func (m *MCP) Serve(servers []string, do Do, guard func(nats.MsgHandler) nats.MsgHandler) error {
	for _, server := range servers {
		subject := m.subject(server)
		_, err := m.Conn.QueueSubscribe(subject, "mcp", guard(func(msg *nats.Msg) {
			m.asked.do(func() { m.answer(server, do, msg) }) // concurrently, so that a slow server does not delay the others
		}))
		if err != nil {
			return fmt.Errorf("subscribe to %s: %w", subject, err)
		}
	}
	return nil
}

// Close waits for the answers under way. Requests that come after it are not answered.
func (m *MCP) Close() { m.asked.close() }

func (m *MCP) subject(server string) string { return m.Subjects.Control("mcp", messages.Token(server)) }

// Publish tells all processes that something at a server changed.
func (m *MCP) Publish(c tool.MCPChange) error {
	return m.Conn.Publish(m.Subjects.Control("event", "mcp", messages.Token(c.Server)), rawjson.Encode(c))
}

// gate runs work concurrently until it is closed; close waits for what runs.
type gate struct {
	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup
}

func (g *gate) do(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.work.Go(f)
	}
}

func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.work.Wait()
}

type mcpQuestion struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

type mcpAnswer struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *tool.MCPError  `json:"error,omitempty"`
}

func (m *MCP) answer(server string, do Do, msg *nats.Msg) {
	var q mcpQuestion
	var a mcpAnswer
	err := json.Unmarshal(msg.Data, &q)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		a.Result, err = do(ctx, server, q.Method, q.Params)
		cancel()
	}
	var wire *jsonrpc.Error
	switch {
	case errors.As(err, &wire):
		a.Error = &tool.MCPError{Code: wire.Code, Message: wire.Message, Data: wire.Data}
	case err != nil:
		a.Error = &tool.MCPError{Code: jsonrpc.CodeInternalError, Message: err.Error()}
	}
	if err := msg.Respond(rawjson.Encode(a)); err != nil {
		m.Log.Debug("an answer about an MCP server was not sent", "mcp_server", server, "err", err)
	}
}

// Ask asks an MCP server, whichever process is connected to it, for something other than a tool call: see Do. These
// requests do not pass the chain. The server's own error is a *jsonrpc.Error.
func (m *MCP) Ask(ctx context.Context, server, method string, params any) (json.RawMessage, error) {
	raw, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	msg, err := m.Conn.RequestWithContext(ctx, m.subject(server), rawjson.Encode(mcpQuestion{Method: method, Params: raw}))
	if err != nil {
		return nil, fmt.Errorf("MCP server %s: %w", server, err)
	}
	var a mcpAnswer
	if err := json.Unmarshal(msg.Data, &a); err != nil {
		return nil, fmt.Errorf("MCP server %s: %w", server, err)
	}
	if a.Error != nil {
		return nil, &jsonrpc.Error{Code: a.Error.Code, Message: a.Error.Message, Data: a.Error.Data}
	}
	return a.Result, nil
}

// OnChange calls f, from one goroutine, whenever an MCP server reports a change. stop ends the subscription.
func (m *MCP) OnChange(f func(tool.MCPChange)) (stop func(), err error) {
	subject := m.Subjects.Control("event", "mcp", "*")
	sub, err := m.Conn.Subscribe(subject, func(msg *nats.Msg) {
		var c tool.MCPChange
		if json.Unmarshal(msg.Data, &c) == nil {
			f(c)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}
