package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/pipeline/toolbox/toolspec"
)

// tools is what this process knows of tools: their definitions, and how those that it runs are run.
type tools struct {
	registry *toolspec.Registry
	parser   *toolspec.Parser
	rules    toolspec.Rules
	options  toolspec.Options
	target   *toolbox.Target
	http     *toolbox.HTTPExecutor
	mcp      *toolbox.MCPClients // nil where no tools run, or no server is configured
	asked    gate                // what is asked of those servers beside tool calls
}

// tools builds the registry over the tools bucket and registers what the configuration defines.
func (h *Host) makeTools(ctx context.Context, o Options, stores map[string]pipeline.Store) error {
	c := h.Config.Tool
	t := &tools{parser: &toolspec.Parser{}, http: toolbox.NewHTTPExecutor()}
	t.rules = toolspec.Rules{
		Undeclared: c.Policy.Undeclared, Discovered: c.Policy.Discovered,
		Timeouts: toolspec.Timeouts{Default: c.Timeout.Default, Prefixes: c.Timeout.Prefixes},
	}
	t.options = toolspec.Options{Coercion: c.Arguments.Coercion, IntegerBits: c.Arguments.IntegerBits}
	t.registry = toolspec.NewRegistry(stores["tools"], t.parser, o.Log)
	demo, funcs := toolbox.DemoTools()
	t.target = &toolbox.Target{
		Tools: t.registry, Rules: t.rules, Log: o.Log,
		Executors: toolbox.Executors{"go": funcs, "http": t.http, "nats": &toolbox.RemoteExecutor{Remote: remote{nc: h.Conn, root: h.Config.Bus.Root}}},
		Pool:      toolbox.NewPool(toolbox.PoolConfig{CorePool: c.Executor.CorePool, MaxPool: c.Executor.MaxPool, QueueCapacity: c.Executor.QueueCapacity}),
		Intents:   &toolbox.Intents{Store: prefixed{stores["intents"], "tool."}},
	}
	if servers := mcpServers(c.MCPServers); len(servers) > 0 && o.Roles.Tool {
		t.mcp = toolbox.NewMCPClients(servers, t.registry, Version(), o.Log)
		t.target.Executors["mcp"] = t.mcp
	}
	h.tools = t
	defs := make([]toolspec.Definition, 0, len(c.Tools)+len(demo))
	for i, tool := range c.Tools {
		raw, err := json.Marshal(tool)
		if err != nil {
			return fmt.Errorf("tool.tools[%d] (%s): %w", i, tool.Name, err)
		}
		var d toolspec.Definition
		if err := json.Unmarshal(raw, &d); err != nil {
			return fmt.Errorf("tool.tools[%d] (%s): %w", i, tool.Name, err)
		}
		d.Source = toolspec.Operator
		defs = append(defs, d)
	}
	for _, d := range demo {
		if !slices.ContainsFunc(defs, func(o toolspec.Definition) bool { return o.Name == d.Name }) {
			d.Source = toolspec.Operator
			defs = append(defs, d)
		}
	}
	if err := t.registry.Refresh(ctx); err != nil {
		return fmt.Errorf("tools: %w", err)
	}
	for _, d := range defs {
		if _, err := t.registry.Register(ctx, d); err != nil {
			return fmt.Errorf("tool %s: %w", d.Name, err)
		}
	}
	return nil
}

// refreshTools reads the registry again from time to time, so that a tool that another process registered is known.
func (h *Host) refreshTools(ctx context.Context) {
	t := time.NewTicker(2 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if err := h.tools.registry.Refresh(ctx); err != nil && ctx.Err() == nil {
				h.log.Debug("the tool registry cannot be read", "err", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// remote sends tool requests over NATS. A call that is given up is cancelled by a message that names it.
type remote struct {
	nc   *nats.Conn
	root string
}

// Request implements toolbox.Remote.
func (r remote) Request(ctx context.Context, subject string, header map[string]string, body []byte) (toolbox.RemoteReply, error) {
	m := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{}}
	for k, v := range header {
		m.Header[k] = []string{v}
	}
	reply, err := r.nc.RequestMsgWithContext(ctx, m)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return toolbox.RemoteReply{}, toolbox.ErrNobody
	case err != nil:
		if id := header["Shallot-Call"]; id != "" && ctx.Err() != nil {
			_ = r.nc.Publish(messages.Subjects{Root: r.root}.Cancel(id), nil)
		}
		return toolbox.RemoteReply{}, err
	}
	return toolbox.RemoteReply{
		Body: reply.Data, ErrorCode: reply.Header.Get("Nats-Service-Error-Code"), ErrorText: reply.Header.Get("Nats-Service-Error"),
	}, nil
}

// prefixed is a store whose keys begin with a prefix, so that two users of one bucket cannot meet.
type prefixed struct {
	pipeline.Store
	prefix string
}

// Get implements pipeline.Store.
func (p prefixed) Get(ctx context.Context, key string) (pipeline.Entry, error) {
	return p.Store.Get(ctx, p.prefix+key)
}

// Put implements pipeline.Store.
func (p prefixed) Put(ctx context.Context, key string, value []byte, ttl time.Duration, when pipeline.Condition) (uint64, error) {
	return p.Store.Put(ctx, p.prefix+key, value, ttl, when)
}

// Delete implements pipeline.Store.
func (p prefixed) Delete(ctx context.Context, key string) error {
	return p.Store.Delete(ctx, p.prefix+key)
}

// Keys implements pipeline.Store.
func (p prefixed) Keys(ctx context.Context, prefix string) ([]string, error) {
	keys, err := p.Store.Keys(ctx, p.prefix+prefix)
	for i := range keys {
		keys[i] = keys[i][len(p.prefix):]
	}
	return keys, err
}
