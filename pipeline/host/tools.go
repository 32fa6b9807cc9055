package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/evicted"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/pipeline/toolbox/mcp"
	"github.com/shallot-nats/shallot/pipeline/toolbox/natstool"
	"github.com/shallot-nats/shallot/stages"
)

// Tools is what this process knows of tools: their definitions, and how those that it runs are run.
type Tools struct {
	Registry *tool.Registry
	parser   *args.Parser
	rules    tool.Rules
	options  args.Options
	target   *toolbox.Target
	funcs    toolbox.GoFuncs
	find     *stageTools // the registry and the tools of stages
	http     *toolbox.HTTPExecutor
	evicted  *jet.Objects // large results
	reader   evicted.Reader
	// configured are the tools of this process's own configuration; networks is tool.api-networks.
	configured map[string]bool
	networks   []netip.Prefix
	classes    []string // of tools; see toolClasses
	desk       *stages.ApprovalDesk
	manager    *pipeline.Manager
	subjects   messages.Subjects
	audit      *audit
	log        *slog.Logger
}

// makeTools builds the registry over the tools bucket and registers what the configuration defines.
func (h *Host) makeTools(ctx context.Context, o Options, stores map[string]pipeline.Store) error {
	c := h.Config.Tool
	networks, err := apiNetworks(c.APINetworks)
	if err != nil {
		return err
	}
	t := &Tools{parser: &args.Parser{}, http: toolbox.NewHTTPExecutor(networks...), networks: networks,
		configured: map[string]bool{}, classes: toolClasses(&h.Config), manager: h.Manager, subjects: h.audit.subjects,
		audit: h.audit, log: h.log}
	t.http.References = tool.References{Getenv: o.Getenv, Dir: c.SecretsDir}
	t.rules = tool.Rules{
		Undeclared: c.Policy.Undeclared, Discovered: c.Policy.Discovered,
		Timeouts: tool.Timeouts{Default: c.Timeout.Default, Prefixes: c.Timeout.Prefixes},
	}
	t.options = args.Options{
		Coercion: c.Arguments.Coercion, IntegerBits: c.Arguments.IntegerBits, WrapScalars: c.Arguments.WrapScalars,
		Undeclared: c.Arguments.Undeclared,
	}
	if o.Config.Explicit("tool.arguments.formats") {
		t.options.Formats = c.Arguments.Formats
	}
	t.Registry = tool.NewRegistry(stores["tools"], t.parser, o.Log)
	t.Registry.MaxDescription = int(c.MaxDescription)
	demo, funcs := toolbox.DemoTools()
	maps.Copy(funcs, o.Funcs)
	if h.audit.js != nil { // none in a check
		if t.evicted, err = jet.OpenObjects(ctx, h.audit.js, jet.EvictedObjects); err != nil {
			return err
		}
	}
	t.reader = evicted.Reader{Objects: t.evicted, Dir: evictedDir(o.Config.Sections)}
	reader := evicted.Tool()
	demo, funcs[reader.Name] = append(demo, reader), readEvicted(t.reader)
	t.funcs, t.find = funcs, &stageTools{registry: t.Registry, defs: map[string]*tool.Definition{},
		owners: map[string]string{}}
	if o.Resolve != nil {
		t.find.registry = o.Resolve(t.Registry)
	}
	if t.desk, err = stages.NewApprovalDesk(o.Config.Sections["approval"], stages.Deps{
		Tools: t.find, Parser: t.parser, Arguments: t.options, Rules: &t.rules}); err != nil {
		t.desk = &stages.ApprovalDesk{} // the stage says what is wrong with its section
	}
	h.MCP = &MCP{MCP: &natstool.MCP{Conn: h.Conn, Subjects: t.subjects, Log: h.log}, servers: c.MCPServers}
	t.target = &toolbox.Target{
		Approvals: t.desk.Policies, Tools: t.find, Rules: t.rules, Log: o.Log, Parser: t.parser,
		Filters: filtersOf(h.Manager, messages.Tool),
		Executors: toolbox.Executors{"go": funcs, "http": t.http,
			"nats": &toolbox.NATSExecutor{Requester: &natstool.Client{Conn: h.Conn, Subjects: t.subjects}}},
		Pool: toolbox.NewPool(toolbox.PoolConfig{
			CorePool: c.Executor.CorePool, MaxPool: c.Executor.MaxPool, QueueCapacity: c.Executor.QueueCapacity,
		}),
	}
	if servers := mcpServers(c.MCPServers); len(servers) > 0 && o.Roles.Tool {
		h.MCP.clients = mcp.NewClients(servers, t.Registry, Version(), o.Log)
		t.target.Executors["mcp"] = h.MCP.clients
	}
	maps.Copy(t.target.Executors, o.Executors)
	h.Tools = t
	return t.define(ctx, c.Tools, demo, o.Roles.Tool)
}

// define registers the tools of the configuration, and the demonstration tools whose names it leaves. Where they run,
// it warns of headers that could not be sent.
func (t *Tools) define(ctx context.Context, configured []config.Tool, demo []tool.Definition, run bool) error {
	defs := make([]tool.Definition, 0, len(configured)+len(demo))
	for i, ct := range configured {
		raw, err := json.Marshal(ct)
		if err != nil {
			return fmt.Errorf("tool.tools[%d] (%s): %w", i, ct.Name, err)
		}
		var d tool.Definition
		if err := json.Unmarshal(raw, &d); err != nil {
			return fmt.Errorf("tool.tools[%d] (%s): %w", i, ct.Name, err)
		}
		d.Source = tool.Operator
		defs = append(defs, d)
	}
	for _, d := range demo {
		if !slices.ContainsFunc(defs, func(o tool.Definition) bool { return o.Name == d.Name }) {
			d.Source = tool.Operator
			defs = append(defs, d)
		}
	}
	if err := t.Registry.Refresh(ctx); err != nil {
		return fmt.Errorf("tools: %w", err)
	}
	var faults []error
	var assumed []string
	for i, d := range defs {
		if _, err := t.Registry.Register(ctx, d); err != nil {
			if i < len(configured) {
				err = fmt.Errorf("tool.tools[%d]: %w", i, err)
			}
			faults = append(faults, err)
		}
		t.configured[d.Name] = true
		t.checkTime(&d)
		for name, value := range d.Executor.Headers {
			if _, err := t.http.References.Resolve(value); err != nil && run {
				t.log.Warn("a header of a tool cannot be sent", "tool", d.Ref(), "header", name, "reason", err)
			}
		}
		if t.rules.Assumed(&d) {
			assumed = append(assumed, d.Name)
		}
	}
	if len(assumed) > 0 {
		t.log.Info("these tools declare no effect and count as write: not repeated, not cached; "+
			"give them effect: read, or idempotent: true", "tools", assumed)
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	if left := t.leftover(ctx); len(left) > 0 {
		t.log.Warn("the registry has tools of an earlier configuration, or of another process's; "+
			"DELETE /v1/tools/{name} removes one", "tools", left)
	}
	return nil
}

// Times of a whole tool call, attempts and waits together: a minute, or, where the tool's own time limit is
// longer, that and a minute, up to an hour.
const (
	toolTime    = time.Minute
	maxToolTime = time.Hour
)

// checkTime warns of a time limit that no call can use up.
func (t *Tools) checkTime(d *tool.Definition) {
	if limit := d.Timeout.D(); limit > maxToolTime-toolTime {
		t.log.Warn("the tool's time limit is longer than a whole tool call may take", "tool", d.Ref(),
			"timeout", limit, "call", maxToolTime)
	}
}
