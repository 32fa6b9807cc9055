package toolspec

import (
	"context"
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// Remove takes out a tool (all versions), or one version of it. One that is not there is tool_not_found.
func (r *Registry) Remove(ctx context.Context, name string) error {
	base, version, pinned := strings.Cut(name, "@")
	all, err := r.records(ctx, base)
	if err != nil {
		return err
	}
	gone := 0
	for _, rec := range all {
		d := rec.Definition
		if pinned && d.Version != version {
			continue
		}
		if err := r.store.Delete(ctx, messages.Key(d.Name, d.Version)); err != nil {
			return wrap(err, "remove", name)
		}
		gone++
	}
	if gone == 0 {
		return notFound(name)
	}
	r.drop(base, func(d *Definition) bool { return !pinned || d.Version == version })
	return nil
}

// Withdraw takes a discovered tool out because its server no longer offers it. Its approval is not forgotten: if it comes
// back with another description or schema it is held, as if it had never been away.
func (r *Registry) Withdraw(ctx context.Context, name string) error {
	all, err := r.records(ctx, name)
	if err != nil {
		return err
	}
	for _, old := range all {
		if old.Definition.Source != Discovered {
			continue
		}
		_, err := pipeline.Change(ctx, r.store, messages.Key(name, old.Definition.Version), 0, func(rec *record) (bool, error) {
			if rec.Definition == nil || rec.Definition.Source != Discovered || rec.Withdrawn {
				return false, nil
			}
			rec.Withdrawn = true
			return true, nil
		})
		if err != nil {
			return wrap(err, "withdraw", name)
		}
	}
	r.drop(name, func(d *Definition) bool { return d.Source == Discovered })
	return nil
}

func (r *Registry) drop(name string, which func(*Definition) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.defs[name] = slices.DeleteFunc(slices.Clone(r.defs[name]), which)
	if len(r.defs[name]) == 0 {
		delete(r.defs, name)
	}
}
