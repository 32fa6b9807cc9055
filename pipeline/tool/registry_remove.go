package tool

import (
	"context"
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// Remove takes out all versions of a tool, or one of them. It is tool_not_found if there is none. Removing is not
// approving: a discovered tool whose source still offers it is quarantined when it is seen again. Removed once more, it
// is forgotten, and its next sight is the first.
func (r *Registry) Remove(ctx context.Context, name string) error {
	return r.drop(ctx, name, func(rec record) error {
		key := messages.Key(rec.Definition.Name, rec.Definition.Version)
		if rec.Definition.Source != Discovered || rec.Gone {
			return r.store.Delete(ctx, key)
		}
		return r.leave(ctx, key, true)
	})
}

// Withdraw takes out a discovered tool that its source no longer offers. What was approved is kept: if the tool comes
// back changed, or from elsewhere, it is quarantined.
func (r *Registry) Withdraw(ctx context.Context, name string) error {
	return r.drop(ctx, name, func(rec record) error {
		d := rec.Definition
		if d.Source != Discovered {
			return refuse(messages.Conflict, "the tool '%s' is defined by the %s", d.Ref(), d.Source)
		}
		return r.leave(ctx, messages.Key(d.Name, d.Version), false)
	})
}

// leave marks a tool as gone. disapprove also withdraws its approval.
func (r *Registry) leave(ctx context.Context, key string, disapprove bool) error {
	_, err := pipeline.Change(ctx, r.store, key, 0, func(rec *record) (bool, error) {
		was := *rec
		rec.Gone = rec.Definition != nil
		if disapprove {
			rec.Approved = ""
		}
		return was.Gone != rec.Gone || was.Approved != rec.Approved, nil
	})
	return err
}

func (r *Registry) drop(ctx context.Context, name string, one func(record) error) error {
	base, version, pinned := strings.Cut(name, "@")
	all, err := r.records(ctx, base)
	if err != nil {
		return err
	}
	gone := 0
	for _, rec := range all {
		if pinned && rec.Definition.Version != version {
			continue
		}
		if err := one(rec); err != nil {
			return wrap(err, "remove", name)
		}
		gone++
	}
	if gone == 0 {
		return NotFound(name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.edits++
	r.defs[base] = slices.DeleteFunc(slices.Clone(r.defs[base]), func(d *Definition) bool {
		return !pinned || d.Version == version
	})
	if len(r.defs[base]) == 0 {
		delete(r.defs, base)
	}
	return nil
}
