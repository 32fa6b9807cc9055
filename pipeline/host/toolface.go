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
	"github.com/shallot-nats/shallot/pipeline/toolbox/toolspec"
)

// FunctionTool is a tool as the OpenAI API writes it, so that a list of them can stand in a chat request as it is.
type FunctionTool struct {
	Type     string       `json:"type"` // function
	Function ToolFunction `json:"function"`
}

// ToolFunction is what a model reads of a tool.
type ToolFunction struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"` // JSON Schema
}

// ToolPolicy says how a tool is treated: what it declares, with everything filled in that it leaves open.
type ToolPolicy struct {
	Version    string `json:"version"`
	Source     string `json:"source"` // operator, api, discovered
	Effect     string `json:"effect"`
	Idempotent bool   `json:"idempotent"`
	// AtMostOnce says that an intent record keeps the tool from running twice for one call.
	AtMostOnce  bool   `json:"at_most_once"`
	Cache       string `json:"cache"` // tenant, session, shared, off
	CacheTTLMs  int64  `json:"cache_ttl_ms,omitempty"`
	MaxAttempts int    `json:"max_attempts,omitempty"` // 0: the retry stage's default
	TimeoutMs   int64  `json:"timeout_ms"`
	Approval    string `json:"approval,omitempty"`
	// Queue is the work queue of its calls: a concurrency group, else the executor.
	Queue string `json:"queue"`
	// Hash is the fingerprint of what a person approves; Held says why the tool does not run until somebody does.
	Hash string `json:"hash"`
	Held string `json:"held,omitempty"`
}

// ToolInfo is one tool: the definition and its policy.
type ToolInfo struct {
	FunctionTool
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	Policy       ToolPolicy      `json:"policy"`
	// Executor is who runs it, for operators: kind and name, or the URL without its query. Headers are never shown.
	Executor string `json:"executor,omitempty"`
}

// ListTools returns the newest version of each tool, in order of name. Held tools are in it: whoever offers tools to a
// model leaves them out.
func (h *Host) ListTools(ctx context.Context) ([]ToolInfo, error) {
	all, err := h.tools.registry.List(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]ToolInfo, 0, len(all))
	for _, d := range all {
		out = append(out, h.toolInfo(d))
	}
	return out, nil
}

// GetTool returns one tool by name, or one version by name@version. An unknown one is the fault tool_not_found.
func (h *Host) GetTool(ctx context.Context, name string) (ToolInfo, error) {
	d, err := h.tools.registry.Get(ctx, name)
	if err != nil {
		return ToolInfo{}, err
	}
	return h.toolInfo(d), nil
}

// RegisterTool checks and stores a definition that came over the API and returns the tool as it now stands; by says
// who, for the audit. A definition that could not run is the fault invalid_request, one that would replace a tool of
// the configuration is conflict. Registering the same definition again changes nothing.
func (h *Host) RegisterTool(ctx context.Context, definition []byte, by string) (ToolInfo, error) {
	d, err := toolspec.DecodeAPI(definition)
	if err != nil {
		return ToolInfo{}, err
	}
	if f := h.reachable(&d); f != nil {
		return ToolInfo{}, f
	}
	if err := h.Manager.CheckToolStages(messages.Tool, own(&d)); err != nil {
		return ToolInfo{}, messages.NewFault(messages.InvalidRequest, "tool definition %q: %s", d.Name, messages.AsFault(err, "registry").Message).At("stages").From("registry")
	}
	if !h.tools.desk.Known(d.Approval) {
		return ToolInfo{}, messages.NewFault(messages.InvalidRequest, "tool definition %q: approval %q is no policy here; write always, none, or the name of one", d.Name, d.Approval).At("approval").From("registry")
	}
	stored, err := h.tools.registry.Register(ctx, d)
	if err != nil {
		return ToolInfo{}, err
	}
	h.checkTime(stored)
	h.toolEvent(ctx, "registered", stored, by)
	return h.toolInfo(stored), nil
}

// RemoveTool takes out a tool, or one version of it (name@version). A tool of the configuration stays: conflict.
func (h *Host) RemoveTool(ctx context.Context, name, by string) error {
	base, _, _ := strings.Cut(name, "@")
	if h.tools.configured[base] {
		return messages.NewFault(messages.Conflict, "the tool '%s' is defined by the configuration; take it out there", base).At("tool").From("registry")
	}
	d, err := h.tools.registry.Get(ctx, name)
	if err != nil {
		d = &toolspec.Definition{Name: base} // perhaps one that was withdrawn: its approval can be forgotten
	}
	if err := h.tools.registry.Remove(ctx, name); err != nil {
		return err
	}
	h.toolEvent(ctx, "removed", d, by)
	return nil
}

// ApproveTool lets a held tool run, if the hash is that of the definition as it is now; else conflict.
func (h *Host) ApproveTool(ctx context.Context, name, hash, by string) (ToolInfo, error) {
	d, err := h.tools.registry.Approve(ctx, name, hash)
	if err != nil {
		return ToolInfo{}, err
	}
	h.toolEvent(ctx, "approved", d, by)
	return h.toolInfo(d), nil
}

// reachable refuses what a definition of the API may not name, beside what every definition may not (SSRF, commands to
// our own installation), and what nothing here could run.
func (h *Host) reachable(d *toolspec.Definition) *messages.Fault {
	bad := func(at, format string, args ...any) *messages.Fault {
		return messages.NewFault(messages.InvalidRequest, "tool definition %q: "+format, append([]any{d.Name}, args...)...).At(at).From("registry")
	}
	switch d.Executor.Kind {
	case toolspec.ExecHTTP:
		u, err := url.Parse(d.Executor.URL)
		if err != nil {
			return bad("executor.url", "the URL cannot be read")
		}
		ip, err := netip.ParseAddr(u.Hostname())
		local := strings.EqualFold(u.Hostname(), "localhost") || strings.HasSuffix(strings.ToLower(u.Hostname()), ".localhost")
		if local && err != nil {
			ip, err = netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
		}
		if err == nil && !toolspec.Public(ip) && !slices.ContainsFunc(h.tools.networks, func(p netip.Prefix) bool { return p.Contains(ip.Unmap()) }) {
			return bad("executor.url", "%s is not a public address; define the tool in the configuration file, or name the network in tool.api-networks", u.Host)
		}
	case toolspec.ExecNATS:
		if strings.HasPrefix(cmp.Or(d.Executor.Name, d.Name)+".", strings.TrimSuffix(messages.Subjects{Root: h.Config.Bus.Root}.All(), ">")) {
			return bad("executor.name", "the subject %s is the installation's own", d.Executor.Name)
		}
	case toolspec.ExecMCP:
		if !slices.Contains(h.toolClasses(), "mcp-"+d.Executor.Name) {
			return bad("executor.name", "there is no MCP server %q; only the configuration file names servers", d.Executor.Name)
		}
	}
	return nil
}

// queue is the work queue of a tool's calls. A concurrency group that no configuration names has no queue: its tools
// share their executor's (contracts 18).
func (h *Host) queue(d *toolspec.Definition) (string, error) {
	classes := h.toolClasses()
	if c := d.Class(); slices.Contains(classes, c) {
		return c, nil
	}
	plain := *d
	plain.ConcurrencyGroup = ""
	if c := plain.Class(); slices.Contains(classes, c) {
		return c, nil
	}
	f := messages.NewFault(messages.TargetAbsent, "tool '%s': nothing in this installation runs executors of kind %s", d.Name, plain.Class())
	f.Unsent = true
	return "", f.From(messages.TargetOrigin)
}

func (h *Host) toolInfo(d *toolspec.Definition) ToolInfo {
	e := h.tools.rules.Effective(d)
	queue, err := h.queue(d)
	if err != nil {
		queue = d.Class()
	}
	p := ToolPolicy{
		Version: d.Version, Source: string(d.Source), Effect: e.Effect, Idempotent: e.Idempotent, AtMostOnce: !e.Unguarded,
		Cache: e.CacheScope, CacheTTLMs: e.CacheTTL.Milliseconds(), TimeoutMs: e.Timeout.Milliseconds(),
		Approval: d.Approval, Queue: queue, Hash: d.Hash, Held: d.Held,
	}
	if e.Retry != nil {
		p.MaxAttempts = e.Retry.MaxAttempts
	}
	i := ToolInfo{
		FunctionTool: FunctionTool{Type: "function", Function: ToolFunction{Name: d.Name, Description: d.Description, Parameters: json.RawMessage(d.InputSchema)}},
		OutputSchema: json.RawMessage(d.OutputSchema), Policy: p, Executor: d.Executor.Kind + ":" + cmp.Or(d.Executor.Name, d.Name),
	}
	if d.Executor.Kind == toolspec.ExecHTTP {
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

// toolEvent records who changed the registry.
func (h *Host) toolEvent(ctx context.Context, what string, d *toolspec.Definition, by string) {
	h.log.InfoContext(ctx, "tool "+what, "tool", d.Ref(), "source", d.Source, "by", by)
	record := map[string]string{"what": what, "tool": d.Ref(), "hash": d.Hash, "source": string(d.Source), "by": by}
	if err := h.publish(ctx, "tool", record); err != nil {
		h.log.WarnContext(ctx, "a change of a tool is not in the audit", "tool", d.Ref(), "err", err)
	}
}

// apiNetworks reads tool.api-networks.
func apiNetworks(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	var faults []error
	for i, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			faults = append(faults, fmt.Errorf("tool.api-networks[%d]: %q is no network; write it as 10.1.0.0/16", i, s))
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
		if d.Source == toolspec.Operator && !h.tools.configured[d.Name] {
			left[d.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(left))
}
