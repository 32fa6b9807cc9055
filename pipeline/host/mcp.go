package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/pipeline/toolbox/toolspec"
)

// mcpServers are the configured MCP servers as the tool box takes them.
func mcpServers(servers []config.MCPServer) []toolbox.MCPServer {
	reveal := func(in map[string]config.Secret) map[string]string {
		out := map[string]string{}
		for k, v := range in {
			out[k] = v.Reveal()
		}
		return out
	}
	out := make([]toolbox.MCPServer, 0, len(servers))
	for _, s := range servers {
		out = append(out, toolbox.MCPServer{
			Name: s.Name, Command: s.Command, Env: reveal(s.Env), URL: s.URL.Reveal(), Headers: reveal(s.Headers),
			Tools: s.Tools, Prefix: mcpPrefix(s), Timeout: s.Timeout, OnCancel: s.OnCancel,
		})
	}
	return out
}

func mcpPrefix(s config.MCPServer) string {
	if s.Prefix != nil {
		return *s.Prefix
	}
	return s.Name + "_"
}

// startMCP connects the MCP servers of a process that runs tools, and answers what other processes ask of them beside
// tool calls.
func (h *Host) startMCP() error {
	m := h.tools.mcp
	if m == nil {
		return nil
	}
	subjects := messages.Subjects{Root: h.Config.Bus.Root}
	m.Changed = func(server, what, uri string) {
		note := MCPChange{Server: server, What: what, URI: uri}
		_ = h.Conn.Publish(subjects.Control("event", "mcp", messages.Token(server)), messages.Encode(note))
	}
	m.Start()
	for _, s := range h.Config.Tool.MCPServers {
		subject := subjects.Control("mcp", messages.Token(s.Name))
		_, err := h.Conn.QueueSubscribe(subject, "mcp", h.Node.Answering(func(msg *nats.Msg) {
			h.tools.asked.do(func() { h.answerMCP(s.Name, msg) }) // one slow server must not hold up the others
		}))
		if err != nil {
			return fmt.Errorf("subscribe to %s: %w", subject, err)
		}
	}
	return nil
}

// gate runs work at once until it is closed, which waits for what runs.
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
	Result json.RawMessage    `json:"result,omitempty"`
	Error  *toolspec.MCPError `json:"error,omitempty"`
}

func (h *Host) answerMCP(server string, msg *nats.Msg) {
	var q mcpQuestion
	var a mcpAnswer
	err := json.Unmarshal(msg.Data, &q)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		a.Result, err = h.tools.mcp.Do(ctx, server, q.Method, q.Params)
		cancel()
	}
	var wire *jsonrpc.Error
	switch {
	case errors.As(err, &wire):
		a.Error = &toolspec.MCPError{Code: wire.Code, Message: wire.Message, Data: wire.Data}
	case err != nil:
		a.Error = &toolspec.MCPError{Code: jsonrpc.CodeInternalError, Message: err.Error()}
	}
	if err := msg.Respond(messages.Encode(a)); err != nil {
		h.log.Debug("an answer about an MCP server was not sent", "mcp_server", server, "err", err)
	}
}

// MCPNames are the configured MCP servers and the prefixes of their tools and prompts, in order.
func (h *Host) MCPNames() (names, prefixes []string) {
	for _, s := range h.Config.Tool.MCPServers {
		names, prefixes = append(names, s.Name), append(prefixes, mcpPrefix(s))
	}
	return names, prefixes
}

// AskMCP asks an MCP server, wherever it is connected, for something that is no tool call: see toolbox.MCPClients.Do.
// These requests do not pass the chain. The server's own error is a *jsonrpc.Error.
func (h *Host) AskMCP(ctx context.Context, server, method string, params any) (json.RawMessage, error) {
	raw, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	subject := messages.Subjects{Root: h.Config.Bus.Root}.Control("mcp", messages.Token(server))
	msg, err := h.Conn.RequestWithContext(ctx, subject, messages.Encode(mcpQuestion{Method: method, Params: raw}))
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

// MCPChange says that something at an MCP server changed: its prompts, its resources, or one resource.
type MCPChange struct {
	Server string `json:"server"`
	What   string `json:"what"` // tools | prompts | resources | resource
	URI    string `json:"uri,omitempty"`
}

// OnMCPChange calls f, from one goroutine, whenever an MCP server says that something changed. stop ends it.
func (h *Host) OnMCPChange(f func(MCPChange)) (stop func(), err error) {
	subject := messages.Subjects{Root: h.Config.Bus.Root}.Control("event", "mcp", "*")
	sub, err := h.Conn.Subscribe(subject, func(m *nats.Msg) {
		var c MCPChange
		if json.Unmarshal(m.Data, &c) == nil {
			f(c)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}

// Tools lists the newest version of each tool in order of name.
func (h *Host) Tools(ctx context.Context) ([]*toolspec.Definition, error) {
	return h.tools.registry.List(ctx)
}
