package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

const maxPages = 1000

// list registers the server's tools and withdraws those that it no longer has.
func (s *server) list(ctx context.Context, session *mcp.ClientSession) error {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	if c := session.InitializeResult().Capabilities; c == nil || c.Tools == nil {
		return nil
	}
	tools, err := s.tools(ctx, session)
	if err != nil {
		return fmt.Errorf("list the tools of MCP server %s: %w", s.Name, err)
	}
	offered := map[string]string{} // the name here -> the server's name
	for _, t := range tools {
		theirs, _ := rawjson.FieldString(t, "name")
		if !s.offers(theirs) {
			continue
		}
		d := s.definition(theirs, t)
		if other, twice := offered[d.Name]; twice {
			s.log.Warn("two tools of an MCP server have one name here; the second is left out",
				"tool", theirs, "name", d.Name, "other", other)
			continue
		}
		offered[d.Name] = theirs
		if _, err := s.all.registry.Register(ctx, d); err != nil {
			var f *messages.Fault
			if errors.As(err, &f) && f.Code == messages.Conflict && !s.takenByAnother(ctx, d.Name) { // the operator's own wins
				s.log.Debug("a discovered tool is not registered", "tool", d.Name, "err", err)
				continue
			}
			s.log.Warn("a tool of an MCP server is left out", "tool", d.Name, "err", err)
		}
	}
	known, err := s.all.registry.List(ctx)
	if err != nil {
		return err
	}
	for _, d := range known {
		x := d.Executor
		if d.Source != tool.Discovered || x.Kind != tool.ExecMCP || x.Name != s.Name || offered[d.Name] != "" {
			continue
		}
		if err := s.all.registry.Withdraw(ctx, d.Name); err != nil {
			s.log.Warn("a tool that its MCP server no longer offers is still registered", "tool", d.Name, "err", err)
		}
	}
	s.all.changed(s.Name, "tools", "")
	return nil
}

// takenByAnother reports whether a tool of another server or service has the name, which nobody intended.
func (s *server) takenByAnother(ctx context.Context, name string) bool {
	known, _ := s.all.registry.List(ctx)
	return slices.ContainsFunc(known, func(d *tool.Definition) bool {
		return d.Name == name && d.Source == tool.Discovered
	})
}

// tools lists all pages, each tool as it was written.
func (s *server) tools(ctx context.Context, session *mcp.ClientSession) (out [][]byte, err error) {
	cursor := ""
	for range maxPages {
		mark := messages.NewID()
		s.seen.expect(mark, false)
		res, err := session.ListTools(ctx, &mcp.ListToolsParams{Cursor: cursor, Meta: mcp.Meta{metaRequest: mark}})
		raw := s.seen.take(mark)
		if err != nil {
			return nil, err
		}
		if raw == nil {
			if raw, err = json.Marshal(res); err != nil {
				return nil, err
			}
		}
		kept := map[string]bool{} // tools that the protocol lets clients call (with a valid x-mcp-header)
		for _, t := range res.Tools {
			kept[t.Name] = true
		}
		list, _ := rawjson.Field(raw, "tools")
		for _, t := range rawjson.Elements(list) {
			if name, _ := rawjson.FieldString(t, "name"); !kept[name] {
				s.log.Warn("a tool of an MCP server is left out: its schema breaks the protocol", "tool", name)
				continue
			}
			out = append(out, t)
		}
		if res.NextCursor == "" || res.NextCursor == cursor {
			return out, nil
		}
		cursor = res.NextCursor
	}
	return out, nil
}

func (s *server) offers(tool string) bool {
	return tool != "" && (len(s.Tools) == 0 ||
		slices.ContainsFunc(s.Tools, func(p string) bool { return messages.Glob(p, tool) }))
}

func (s *server) definition(theirs string, t []byte) tool.Definition {
	d := tool.Definition{
		Name: tool.MCPName(s.Prefix, theirs), Source: tool.Discovered,
		Executor: tool.Executor{Kind: tool.ExecMCP, Name: s.Name, Tool: theirs},
	}
	d.Description, _ = rawjson.FieldString(t, "description")
	if in, ok := rawjson.Field(t, "inputSchema"); ok && !rawjson.IsNull(in) {
		d.InputSchema = tool.JSON(in)
	}
	if out, ok := rawjson.Field(t, "outputSchema"); ok && !rawjson.IsNull(out) {
		d.OutputSchema = tool.JSON(out)
	}
	if a, ok := rawjson.Field(t, "annotations"); ok {
		var hints tool.Annotations
		if json.Unmarshal(a, &hints) == nil && hints != (tool.Annotations{}) {
			d.Annotations = &hints
		}
	}
	if title, ok := rawjson.FieldString(t, "title"); ok && title != "" {
		if d.Annotations == nil {
			d.Annotations = &tool.Annotations{}
		}
		d.Annotations.Title = title
	}
	return d
}

// Do asks a server for something other than a tool call: its prompts, its resources, a completion. Lists are returned
// whole, as an array of their elements; a list that the server does not offer is empty. The server's own error is a
// *jsonrpc.Error.
func (m *Clients) Do(ctx context.Context, server, method string, params json.RawMessage) (json.RawMessage, error) {
	s := m.servers[server]
	if s == nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "no such MCP server: " + server}
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	l, err := s.enter(ctx)
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the MCP server " + server + " is not connected"}
	}
	defer s.leave(l, false)
	session := l.session
	caps := session.InitializeResult().Capabilities
	if caps == nil {
		caps = &mcp.ServerCapabilities{}
	}
	switch method {
	case tool.MCPPrompts:
		return everything(caps.Prompts != nil, session.Prompts(ctx, nil))
	case tool.MCPResources:
		return everything(caps.Resources != nil, session.Resources(ctx, nil))
	case tool.MCPTemplates:
		return everything(caps.Resources != nil, session.ResourceTemplates(ctx, nil))
	case tool.MCPPrompt:
		return ask(ctx, params, session.GetPrompt)
	case tool.MCPRead:
		return ask(ctx, params, session.ReadResource)
	case tool.MCPComplete:
		return ask(ctx, params, session.Complete)
	case tool.MCPSubscribe:
		return ask(ctx, params, func(ctx context.Context, p *mcp.SubscribeParams) (struct{}, error) {
			return struct{}{}, session.Subscribe(ctx, p)
		})
	case tool.MCPUnsubscribe:
		return ask(ctx, params, func(ctx context.Context, p *mcp.UnsubscribeParams) (struct{}, error) {
			return struct{}{}, session.Unsubscribe(ctx, p)
		})
	}
	return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "method not passed on: " + method}
}

func everything[T any](has bool, all func(func(*T, error) bool)) (json.RawMessage, error) {
	out := []*T{}
	if has {
		for t, err := range all {
			var wire *jsonrpc.Error
			if errors.As(err, &wire) && wire.Code == jsonrpc.CodeMethodNotFound {
				break // it has resources, but no templates
			}
			if err != nil {
				return nil, err
			}
			out = append(out, t)
		}
	}
	return json.Marshal(out)
}

func ask[P, R any](
	ctx context.Context, params json.RawMessage, do func(context.Context, *P) (R, error),
) (json.RawMessage, error) {
	p := new(P)
	if err := json.Unmarshal(params, p); err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	r, err := do(ctx, p)
	if err != nil {
		return nil, err
	}
	return json.Marshal(r)
}

// lineLog writes what a program writes to stderr to the log, line by line.
type lineLog struct {
	mu   sync.Mutex
	log  *slog.Logger
	tail []byte
}

// Write implements io.Writer.
func (l *lineLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail = append(l.tail, p...)
	for {
		line, rest, ok := bytes.Cut(l.tail, []byte("\n"))
		if !ok {
			break
		}
		l.log.Debug("MCP server says", "line", toolbox.Short(string(line)))
		l.tail = rest
	}
	if len(l.tail) > 4096 {
		l.tail = nil
	}
	return len(p), nil
}
