package host

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/pipeline/toolbox/natstool"
)

// ListTools returns the newest version of each tool, in order of name. Held tools are in it: whoever offers tools to a
// model leaves them out.
func (h *Host) ListTools(ctx context.Context) ([]api.ToolInfo, error) {
	all, err := h.tools.registry.List(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]api.ToolInfo, 0, len(all))
	for _, d := range all {
		out = append(out, h.toolInfo(d))
	}
	return out, nil
}

// GetTool returns one tool by name, or one version by name@version. An unknown one is the fault tool_not_found.
func (h *Host) GetTool(ctx context.Context, name string) (api.ToolInfo, error) {
	d, err := h.tools.registry.Get(ctx, name)
	if err != nil {
		return api.ToolInfo{}, err
	}
	return h.toolInfo(d), nil
}

// RegisterTool checks and stores a definition that came over the API and returns the tool as it now stands; by says
// who, for the audit. A definition that could not run is the fault invalid_request, one that would replace a tool of
// the configuration is conflict. Registering the same definition again changes nothing.
func (h *Host) RegisterTool(ctx context.Context, definition []byte, by string) (api.ToolInfo, error) {
	if err := config.CheckTool(definition); err != nil {
		return api.ToolInfo{}, messages.NewFault(messages.InvalidRequest, "tool definition: %v", err).From("registry")
	}
	d, err := tool.DecodeAPI(definition)
	if err != nil {
		return api.ToolInfo{}, err
	}
	if f := h.reachable(&d); f != nil {
		return api.ToolInfo{}, f
	}
	if err := h.Manager.CheckToolStages(messages.Tool, own(&d)); err != nil {
		return api.ToolInfo{}, messages.NewFault(messages.InvalidRequest, "tool definition %q: %s",
			d.Name, messages.AsFault(err, "registry").Message).At("stages").From("registry")
	}
	if !h.tools.desk.Known(d.Approval) {
		return api.ToolInfo{}, messages.NewFault(messages.InvalidRequest, "tool definition %q: approval %q is not a "+
			"policy here; write always, none, or the name of one", d.Name, d.Approval).At("approval").From("registry")
	}
	stored, err := h.tools.registry.Register(ctx, d)
	if err != nil {
		return api.ToolInfo{}, err
	}
	h.checkTime(stored)
	h.toolEvent(ctx, "registered", stored, by)
	return h.toolInfo(stored), nil
}

// RemoveTool takes out a tool, or one version of it (name@version). A tool of the configuration stays: conflict.
func (h *Host) RemoveTool(ctx context.Context, name, by string) error {
	base, _, _ := strings.Cut(name, "@")
	if h.tools.configured[base] {
		return messages.NewFault(messages.Conflict,
			"the tool '%s' is defined by the configuration; take it out there", base).At("tool").From("registry")
	}
	d, err := h.tools.registry.Get(ctx, name)
	if err != nil {
		d = &tool.Definition{Name: base} // perhaps one that was withdrawn: its approval can be forgotten
	}
	if err := h.tools.registry.Remove(ctx, name); err != nil {
		return err
	}
	h.toolEvent(ctx, "removed", d, by)
	return nil
}

// ApproveTool lets a held tool run, if the hash is that of the definition as it is now; else conflict.
func (h *Host) ApproveTool(ctx context.Context, name, hash, by string) (api.ToolInfo, error) {
	d, err := h.tools.registry.Approve(ctx, name, hash)
	if err != nil {
		return api.ToolInfo{}, err
	}
	h.toolEvent(ctx, "approved", d, by)
	return h.toolInfo(d), nil
}

// reachable refuses what a definition of the API, or of a service, may not name: see toolbox.Reach.
func (h *Host) reachable(d *tool.Definition) *messages.Fault {
	r := toolbox.Reach{Networks: h.tools.networks, Subjects: messages.Subjects{Root: h.Config.Bus.Root},
		Classes: h.toolClasses()}
	return r.Check(d)
}

// queue is the class of a tool's calls. A concurrency group that no configuration names is not a class: its tools
// are of their executor's.
func (h *Host) queue(d *tool.Definition) (string, error) {
	classes := h.toolClasses()
	if c := d.Class(); slices.Contains(classes, c) {
		return c, nil
	}
	plain := *d
	plain.ConcurrencyGroup = ""
	if c := plain.Class(); slices.Contains(classes, c) {
		return c, nil
	}
	f := messages.NewFault(messages.TargetAbsent, "tool '%s': nothing in this installation runs executors of kind %s",
		d.Name, plain.Class())
	f.Unsent = true
	return "", f.From(messages.TargetOrigin)
}

func (h *Host) toolInfo(d *tool.Definition) api.ToolInfo {
	e := h.tools.rules.Effective(d)
	queue, err := h.queue(d)
	if err != nil {
		queue = d.Class()
	}
	p := api.ToolPolicy{
		Version: d.Version, Source: string(d.Source), Effect: e.Effect, Idempotent: e.Idempotent, AtMostOnce: !e.Unguarded,
		Cache: e.CacheScope, CacheTTLMs: e.CacheTTL.Milliseconds(), TimeoutMs: e.Timeout.Milliseconds(),
		Approval: d.Approval, Queue: queue, Hash: d.Hash, Held: d.Quarantined,
	}
	if e.Retry != nil {
		p.MaxAttempts = e.Retry.MaxAttempts
	}
	i := api.ToolInfo{
		FunctionTool: api.FunctionTool{Type: "function", Function: api.ToolFunction{
			Name: d.Name, Description: d.Description, Parameters: json.RawMessage(d.InputSchema)}},
		OutputSchema: json.RawMessage(d.OutputSchema), Policy: p,
		Executor: d.Executor.Kind + ":" + cmp.Or(d.Executor.Name, d.Name),
	}
	if d.Executor.Kind == tool.ExecHTTP {
		i.Executor = bareURL(d.Executor.URL)
	}
	return i
}

// bareURL is a URL without what may hold a secret.
func bareURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return ""
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

// discovery looks for the tools of micro services.
func (h *Host) discovery(lease pipeline.Store) *natstool.Discovery {
	event := func(ctx context.Context, what string, d *tool.Definition) { h.toolEvent(ctx, what, d, "discovery") }
	return &natstool.Discovery{Conn: h.Conn, Registry: h.tools.registry, Lease: lease, Check: h.reachable,
		Event: event, Log: h.log}
}

// toolEvent records who changed the registry.
func (h *Host) toolEvent(ctx context.Context, what string, d *tool.Definition, by string) {
	h.log.InfoContext(ctx, "tool "+what, "tool", d.Ref(), "source", d.Source, "by", by)
	record := map[string]string{"what": what, "tool": d.Ref(), "hash": d.Hash, "source": string(d.Source), "by": by}
	_ = h.publish(ctx, "tool", record) // kept if it cannot be written
	h.recordDeed(ctx, deed{Action: "tool-" + what, What: d.Ref(), Detail: d.Hash, By: by}, nil)
}

// apiNetworks reads tool.api-networks.
func apiNetworks(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	var faults []error
	for i, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			faults = append(faults, fmt.Errorf("tool.api-networks[%d]: %q is not a network; write it as 10.1.0.0/16", i, s))
			continue
		}
		out = append(out, p)
	}
	return out, errors.Join(faults...)
}

// leftover names the tools of the operator that the store still has and this configuration does not: they go on
// running until somebody removes them, because another process may have them in its configuration.
func (h *Host) leftover(ctx context.Context) []string {
	all, err := h.tools.registry.List(ctx)
	if err != nil {
		return nil
	}
	left := map[string]bool{}
	for _, d := range all {
		if d.Source == tool.Operator && !h.tools.configured[d.Name] {
			left[d.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(left))
}
