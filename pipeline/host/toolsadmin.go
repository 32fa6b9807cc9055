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

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/evicted"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/pipeline/toolbox/natstool"
)

// ListTools returns the newest version of each tool, in order of name. Held tools are in it: whoever offers tools to a
// model leaves them out.
func (t *Tools) ListTools(ctx context.Context) ([]api.ToolInfo, error) {
	all, err := t.Registry.List(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]api.ToolInfo, 0, len(all))
	for _, d := range all {
		out = append(out, t.toolInfo(d))
	}
	return out, nil
}

// GetTool returns one tool by name, or one version by name@version. An unknown one is the fault tool_not_found.
func (t *Tools) GetTool(ctx context.Context, name string) (api.ToolInfo, error) {
	d, err := t.Registry.Get(ctx, name)
	if err != nil {
		return api.ToolInfo{}, err
	}
	return t.toolInfo(d), nil
}

// RegisterTool checks and stores a definition that came over the API and returns the tool as it now stands; by says
// who, for the audit. A definition that could not run is the fault invalid_request, one that would replace a tool of
// the configuration is conflict. Registering the same definition again changes nothing.
func (t *Tools) RegisterTool(ctx context.Context, definition []byte, by string) (api.ToolInfo, error) {
	if err := config.CheckTool(definition); err != nil {
		return api.ToolInfo{}, messages.NewFault(messages.InvalidRequest, "tool definition: %v", err).From("registry")
	}
	d, err := tool.DecodeAPI(definition)
	if err != nil {
		return api.ToolInfo{}, err
	}
	if f := t.reachable(&d); f != nil {
		return api.ToolInfo{}, f
	}
	if err := t.manager.CheckToolStages(messages.Tool, ownStages(&d)); err != nil {
		return api.ToolInfo{}, messages.NewFault(messages.InvalidRequest, "tool definition %q: %s",
			d.Name, messages.AsFault(err, "registry").Message).At("stages").From("registry")
	}
	if !t.desk.Known(d.Approval) {
		return api.ToolInfo{}, messages.NewFault(messages.InvalidRequest, "tool definition %q: approval %q is not a "+
			"policy here; write always, none, or the name of one", d.Name, d.Approval).At("approval").From("registry")
	}
	stored, err := t.Registry.Register(ctx, d)
	if err != nil {
		return api.ToolInfo{}, err
	}
	t.checkTime(stored)
	t.toolEvent(ctx, "registered", stored, by)
	return t.toolInfo(stored), nil
}

// RemoveTool takes out a tool, or one version of it (name@version). A tool of the configuration stays: conflict.
func (t *Tools) RemoveTool(ctx context.Context, name, by string) error {
	base, _, _ := strings.Cut(name, "@")
	if t.configured[base] {
		return messages.NewFault(messages.Conflict,
			"the tool '%s' is defined by the configuration; take it out there", base).At("tool").From("registry")
	}
	d, err := t.Registry.Get(ctx, name)
	if err != nil {
		d = &tool.Definition{Name: base} // perhaps one that was withdrawn: its approval can be forgotten
	}
	if err := t.Registry.Remove(ctx, name); err != nil {
		return err
	}
	t.toolEvent(ctx, "removed", d, by)
	return nil
}

// ApproveTool lets a held tool run, if the hash is that of the definition as it is now; else conflict.
func (t *Tools) ApproveTool(ctx context.Context, name, hash, by string) (api.ToolInfo, error) {
	d, err := t.Registry.Approve(ctx, name, hash)
	if err != nil {
		return api.ToolInfo{}, err
	}
	t.toolEvent(ctx, "approved", d, by)
	return t.toolInfo(d), nil
}

// ReadEvicted returns a part of an evicted result of the tenant; offset and limit count characters, limit 0 means the
// usual part. What is not there, or another tenant's, is the fault not_found.
func (t *Tools) ReadEvicted(ctx context.Context, tenant, path string, offset, limit int) (evicted.Part, error) {
	return evicted.Read(ctx, t.reader, tenant, path, offset, limit)
}

// reachable refuses what a definition of the API, or of a service, may not name: see toolbox.Reach.
func (t *Tools) reachable(d *tool.Definition) *messages.Fault {
	r := toolbox.Reach{Networks: t.networks, Subjects: t.subjects, Classes: t.classes}
	return r.Check(d)
}

// queue is the class of a tool's calls. A concurrency group that no configuration names is not a class: its tools
// are of their executor's.
func (t *Tools) queue(d *tool.Definition) (string, error) {
	if c := d.Class(); slices.Contains(t.classes, c) {
		return c, nil
	}
	plain := *d
	plain.ConcurrencyGroup = ""
	if c := plain.Class(); slices.Contains(t.classes, c) {
		return c, nil
	}
	f := messages.NewFault(messages.TargetAbsent, "tool '%s': nothing in this installation runs executors of kind %s",
		d.Name, plain.Class())
	f.Unsent = true
	return "", f.From(messages.TargetOrigin)
}

func (t *Tools) toolInfo(d *tool.Definition) api.ToolInfo {
	e := t.rules.Effective(d)
	queue, err := t.queue(d)
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
func (t *Tools) discovery(conn *nats.Conn, lease pipeline.Store) *natstool.Discovery {
	event := func(ctx context.Context, what string, d *tool.Definition) { t.toolEvent(ctx, what, d, "discovery") }
	return &natstool.Discovery{Conn: conn, Registry: t.Registry, Lease: lease, Check: t.reachable,
		Event: event, Log: t.log}
}

// toolEvent records who changed the registry.
func (t *Tools) toolEvent(ctx context.Context, what string, d *tool.Definition, by string) {
	t.log.InfoContext(ctx, "tool "+what, "tool", d.Ref(), "source", d.Source, "by", by)
	record := map[string]string{"what": what, "tool": d.Ref(), "hash": d.Hash, "source": string(d.Source), "by": by}
	_ = t.audit.publish(ctx, "tool", record) // kept if it cannot be written
	t.audit.deed(ctx, deed{Action: "tool-" + what, What: d.Ref(), Detail: d.Hash, By: by}, nil)
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
func (t *Tools) leftover(ctx context.Context) []string {
	all, err := t.Registry.List(ctx)
	if err != nil {
		return nil
	}
	left := map[string]bool{}
	for _, d := range all {
		if d.Source == tool.Operator && !t.configured[d.Name] {
			left[d.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(left))
}
