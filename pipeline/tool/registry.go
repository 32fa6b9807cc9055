package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// Tools finds definitions; a Registry is one. The tool stages and the target ask it.
type Tools interface {
	// Get returns the newest version of a tool, or the pinned one of "name@version". An unknown one is the fault
	// tool_not_found. A quarantined tool is returned too; ask [Definition.Refuse] before it is run.
	Get(ctx context.Context, name string) (*Definition, error)
}

// Registry keeps definitions in a store and reads from a copy in memory. It is safe for concurrent use, and many
// processes may share one store; Refresh brings in what the others wrote.
type Registry struct {
	// MaxDescription bounds each description in bytes; 0: [MaxDescription]. Set it before the first call.
	MaxDescription int

	store  pipeline.Store
	parser *args.Parser
	log    *slog.Logger

	mu    sync.RWMutex
	defs  map[string][]*Definition // by name, oldest version first
	edits int                      // changes that were made here
}

// NewRegistry returns a registry over the store. Call Refresh before the first use.
func NewRegistry(store pipeline.Store, parser *args.Parser, log *slog.Logger) *Registry {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Registry{store: store, parser: parser, log: log, defs: map[string][]*Definition{}}
}

// record is the form of a definition in the store.
type record struct {
	Definition *Definition `json:"definition"`
	// Approved is the fingerprint that may run, approved by a person or because the tool was new.
	Approved string `json:"approved,omitempty"`
	// Gone says that the tool's source no longer offers it. What was approved is remembered: a tool that comes back
	// changed must not pass for a new one.
	Gone bool `json:"gone,omitempty"`
}

// Register checks and stores a definition and returns it as it now stands. Registering the same one again changes
// nothing.
//
// A tool in the operator's file needs no approval. A discovered one is approved at first sight; when its description or
// schema changes later it is quarantined until Approve. A discovered tool, or one of the API, never replaces one of the
// operator: that is the fault conflict.
func (r *Registry) Register(ctx context.Context, d Definition) (*Definition, error) {
	if d.Source == "" {
		d.Source = API
	}
	if d.Version == "" {
		d.Version = "1"
	}
	if d.Source == Discovered { // a discovered tool must not decide how it is treated
		d.Policy, d.Stages, d.StubData = Policy{}, Stages{}, nil
	}
	if err := d.Validate(r.parser); err != nil {
		return nil, messages.NewFault(messages.InvalidRequest, "%v", err).From("registry")
	}
	for _, w := range r.parser.SchemaWarnings(d.InputSchema) {
		r.log.WarnContext(ctx, "tool schema", "tool", d.Name, "warning", w)
	}
	if d.clean(r.MaxDescription) {
		r.log.WarnContext(ctx, "the tool's description was cleaned: it held control characters, or was too long",
			"tool", d.Name, "source", d.Source)
	}
	d.Hash, d.Quarantined = d.Fingerprint(), ""
	known, err := r.owned(ctx, &d)
	if err != nil {
		return nil, err
	}
	replaced := false
	rec, err := pipeline.Change(ctx, r.store, messages.Key(d.Name, d.Version), 0, func(rec *record) (bool, error) {
		old, gone, next := rec.Definition, rec.Gone, d
		replaced = old != nil && old.Source == Operator && string(rawjson.Encode(old)) != string(rawjson.Encode(&next))
		why := "its description or schema changed after it was approved"
		switch {
		case old == nil:
		case rank(old.Source) > rank(d.Source):
			return false, refuse(messages.Conflict, "the tool '%s' is defined by the %s; %s cannot replace it",
				d.Ref(), old.Source, d.Source)
		case strangers(old, &d) && !gone:
			return false, taken(&d, old)
		case gone && rec.Approved == "":
			why = "it was removed, and its source still offers it"
		case strangers(old, &d):
			rec.Approved, why = "", fmt.Sprintf("it came from '%s' and comes from '%s' now", owner(old), owner(&d))
		}
		if d.Source != Discovered || old == nil && !known {
			rec.Approved = d.Hash // at first sight, which a new version number is not
		}
		if rec.Approved != d.Hash {
			next.Quarantined = why + "; approve hash " + d.Hash + " to let it run"
		}
		rec.Definition, rec.Gone = &next, false
		return old == nil || gone || string(rawjson.Encode(old)) != string(rawjson.Encode(&next)), nil
	})
	if err != nil {
		return nil, wrap(err, "register", d.Name)
	}
	if replaced {
		r.log.InfoContext(ctx, "tool definition of the configuration replaced; "+
			"a process with another configuration runs this one too from now on", "tool", d.Ref())
	}
	if rec.Definition.Quarantined != "" {
		r.log.WarnContext(ctx, "tool held", "tool", d.Ref(), "reason", rec.Definition.Quarantined)
	}
	r.keep(rec.Definition)
	return rec.Definition, nil
}

// owned refuses a second version of a tool from a lesser source, because the newest version is the one that runs. known
// says that a discovered tool has other versions, none of which was approved in the form it has now.
func (r *Registry) owned(ctx context.Context, d *Definition) (known bool, err error) {
	all, err := r.records(ctx, d.Name)
	if err != nil {
		return false, err
	}
	known = len(all) > 0
	for _, rec := range all {
		o := rec.Definition
		switch {
		case rec.Gone:
			known = known && (strangers(o, d) || rec.Approved != d.Hash)
			continue
		case rank(o.Source) > rank(d.Source):
			return false, refuse(messages.Conflict,
				"the tool '%s' is defined by the %s; a version by %s would take its place", d.Name, o.Source, d.Source)
		case strangers(o, d):
			return false, taken(d, o)
		}
		known = known && !(o.Hash == d.Hash && o.Quarantined == "")
	}
	return known, nil
}

// owner is the executor of a tool, which is where a discovered tool comes from.
func owner(d *Definition) string { return d.Executor.Kind + ":" + d.Executor.Name }

// strangers reports whether two discovered definitions of one name come from different places.
func strangers(a, b *Definition) bool {
	return a.Source == Discovered && b.Source == Discovered && owner(a) != owner(b)
}

func taken(d, by *Definition) error {
	return refuse(messages.Conflict, "the tool '%s' comes from '%s' already; '%s' cannot take its name",
		d.Name, owner(by), owner(d))
}

func rank(s Source) int { return slices.Index([]Source{Discovered, API, Operator}, s) }

// Approve lets a quarantined tool run, if hash is that of the definition that the person saw; else it is a conflict.
func (r *Registry) Approve(ctx context.Context, name, hash string) (*Definition, error) {
	d, err := r.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	rec, err := pipeline.Change(ctx, r.store, messages.Key(d.Name, d.Version), 0, func(rec *record) (bool, error) {
		switch {
		case rec.Definition == nil:
			return false, NotFound(name)
		case rec.Definition.Hash != hash:
			return false, refuse(messages.Conflict, "the tool '%s' has changed: its hash is now %s",
				name, rec.Definition.Hash)
		}
		if rec.Approved == hash && rec.Definition.Quarantined == "" {
			return false, nil
		}
		rec.Approved, rec.Definition.Quarantined = hash, ""
		return true, nil
	})
	if err != nil {
		return nil, wrap(err, "approve", name)
	}
	r.keep(rec.Definition)
	return rec.Definition, nil
}

// Get returns a definition from memory, else from the store. The caller must not change it.
func (r *Registry) Get(ctx context.Context, name string) (*Definition, error) {
	base, version, pinned := strings.Cut(name, "@")
	find := func() *Definition {
		r.mu.RLock()
		defer r.mu.RUnlock()
		all := r.defs[base]
		if !pinned && len(all) > 0 {
			return all[len(all)-1]
		}
		for _, d := range all {
			if d.Version == version {
				return d
			}
		}
		return nil
	}
	if d := find(); d != nil {
		return d, nil
	}
	if !toolName.MatchString(base) {
		return nil, NotFound(name)
	}
	all, err := r.load(ctx, base) // another process may have registered it a moment ago
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		r.keep(d)
	}
	if d := find(); d != nil {
		return d, nil
	}
	return nil, NotFound(name)
}

// NotFound is the fault of a tool that does not exist, or that the caller must not know to exist.
func NotFound(name string) *messages.Fault {
	f := refuse(messages.ToolNotFound, "there is no tool '%s'; GET /v1/tools lists all tools", args.Clip(name))
	return f.At("tool")
}

// List returns the newest version of each tool, ordered by name: two listings of the same tools are equal, which also
// serves the prompt caches of models.
func (r *Registry) List(context.Context) ([]*Definition, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := make([]*Definition, 0, len(r.defs))
	for _, all := range r.defs {
		if len(all) > 0 {
			out = append(out, all[len(all)-1])
		}
	}
	slices.SortFunc(out, func(a, b *Definition) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Refresh reads the whole store again. A process that watches the store calls it when something changed.
func (r *Registry) Refresh(ctx context.Context) error {
	for {
		r.mu.RLock()
		edits := r.edits
		r.mu.RUnlock()
		all, err := r.load(ctx, "")
		if err != nil {
			return err
		}
		defs := map[string][]*Definition{}
		for _, d := range all {
			defs[d.Name] = append(defs[d.Name], d)
		}
		for _, d := range defs {
			slices.SortFunc(d, func(a, b *Definition) int { return versions(a.Version, b.Version) })
		}
		r.mu.Lock()
		same := r.edits == edits
		if same {
			r.defs = defs
		}
		r.mu.Unlock()
		if same { // else a change was made here meanwhile, and what was read is older
			return nil
		}
	}
}

// load reads the versions of one tool, or of all tools, that are still offered.
func (r *Registry) load(ctx context.Context, name string) ([]*Definition, error) {
	all, err := r.records(ctx, name)
	if err != nil {
		return nil, err
	}
	var out []*Definition
	for _, rec := range all {
		if !rec.Gone {
			out = append(out, rec.Definition)
		}
	}
	return out, nil
}

// records reads the records of one tool, or of all. A record that cannot be read is logged and left out, so that it
// does not stop the others.
func (r *Registry) records(ctx context.Context, name string) ([]record, error) {
	prefix := ""
	if name != "" {
		prefix = messages.Key(name) + "."
	}
	keys, err := r.store.Keys(ctx, prefix)
	if err != nil {
		return nil, wrap(err, "list", name)
	}
	var out []record
	for _, k := range keys {
		e, err := r.store.Get(ctx, k)
		if errors.Is(err, pipeline.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, wrap(err, "read", k)
		}
		var rec record
		if err := json.Unmarshal(e.Value, &rec); err != nil || rec.Definition == nil {
			r.log.ErrorContext(ctx, "tool record cannot be read", "key", k, "err", err)
			continue
		}
		out = append(out, rec)
	}
	return out, nil
}

func (r *Registry) keep(d *Definition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.edits++
	all := slices.DeleteFunc(slices.Clone(r.defs[d.Name]), func(o *Definition) bool { return o.Version == d.Version })
	all = append(all, d)
	slices.SortFunc(all, func(a, b *Definition) int { return versions(a.Version, b.Version) })
	r.defs[d.Name] = all
}

func wrap(err error, what, name string) error {
	var f *messages.Fault
	if errors.As(err, &f) {
		return f
	}
	return refuse(messages.StoreUnavailable, "tool registry: %s %s: %v", what, args.Clip(name), err)
}

// refuse makes a fault of the registry.
func refuse(code messages.Code, format string, values ...any) *messages.Fault {
	return messages.NewFault(code, format, values...).From("registry")
}

var _ Tools = (*Registry)(nil)

// Refuse returns the fault of a tool that must not run now, or nil.
func (d *Definition) Refuse() *messages.Fault {
	if d.Quarantined == "" {
		return nil
	}
	return refuse(messages.Blocked, "the tool '%s' is held: %s", d.Name, d.Quarantined).At("tool")
}

// ApprovalStage is the name of the stage that asks people. A tool that needs an approval does not run if the stage is
// not on its route.
const ApprovalStage = "approval"

// NeedsApproval reports whether somebody must say yes before the tool runs.
func (d *Definition) NeedsApproval() bool { return d.Approval != "" && d.Approval != "none" }

var _ fmt.Stringer = Duration(0)

// String writes "30s".
func (d Duration) String() string { return d.D().String() }
