package host

import (
	"bytes"
	"context"
	"fmt"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/natsapi"
)

// Dead is the operator's side of the dead letters.
func (h *Host) Dead() pipeline.DeadLetters { return recorded{h.Node, h} }

// Redrive implements pipeline.DeadLetters.
func (r recorded) Redrive(ctx context.Context, f pipeline.DeadFilter, by string) (pipeline.DeadDone, error) {
	out, err := r.Node.Redrive(ctx, f, by)
	r.h.recordLetters(ctx, "redrive", f, by, out, err)
	return out, err
}

// DeleteDead implements pipeline.DeadLetters.
func (r recorded) DeleteDead(ctx context.Context, f pipeline.DeadFilter, by string) (pipeline.DeadDone, error) {
	out, err := r.Node.DeleteDead(ctx, f, by)
	r.h.recordLetters(ctx, "delete-dead", f, by, out, err)
	return out, err
}

// recordLetters leaves a record for each letter that something was done with or refused, and one for an action that
// found none.
func (h *Host) recordLetters(ctx context.Context, action string, f pipeline.DeadFilter, by string,
	out pipeline.DeadDone, err error) {
	for _, d := range out.Done {
		h.recordDeed(ctx, deed{Action: action, What: letterName(d), By: by, Tenant: f.Tenant, Detail: d.As}, nil)
	}
	for _, d := range out.Refused {
		h.recordDeed(ctx, deed{Action: action, What: letterName(d), By: by, Tenant: f.Tenant, Detail: d.Reason},
			messages.NewFault(messages.Conflict, "refused"))
	}
	if err != nil || len(out.Done)+len(out.Refused) == 0 {
		h.recordDeed(ctx, deed{Action: action, What: fmt.Sprintf("letter %d", f.Sequence), By: by, Tenant: f.Tenant}, err)
	}
}

func letterName(d pipeline.DeadDeed) string {
	if d.Call == "" {
		return fmt.Sprintf("letter %d", d.Sequence)
	}
	return fmt.Sprintf("letter %d of call %s", d.Sequence, d.Call)
}

// letterVerbs are the subjects of the dead letters of one tenant, for operators. The body is a filter; see
// [pipeline.DeadFilter].
func (h *Host) letterVerbs() []natsapi.Verb {
	verb := func(name, about string, reply any, do lettersDeed) natsapi.Verb {
		return natsapi.Verb{Name: name, About: about, Operators: true, Request: pipeline.DeadFilter{}, Reply: reply,
			Serve: do.serve}
	}
	return []natsapi.Verb{
		verb("letters.list", "dead letters", pipeline.DeadPage{},
			func(ctx context.Context, f pipeline.DeadFilter, _ string) (any, error) {
				return h.Dead().DeadLetters(ctx, f)
			}),
		verb("letters.get", "one dead letter with what it holds", pipeline.DeadLetter{},
			func(ctx context.Context, f pipeline.DeadFilter, _ string) (any, error) {
				return h.Dead().DeadLetter(ctx, f.Tenant, f.Sequence)
			}),
		verb("letters.redrive", "runs the calls of dead letters again", pipeline.DeadDone{},
			func(ctx context.Context, f pipeline.DeadFilter, by string) (any, error) {
				return h.Dead().Redrive(ctx, f, by)
			}),
		verb("letters.delete", "deletes dead letters", pipeline.DeadDone{},
			func(ctx context.Context, f pipeline.DeadFilter, by string) (any, error) {
				return h.Dead().DeleteDead(ctx, f, by)
			}),
	}
}

// lettersDeed does something with the letters of a filter; by says who asked.
type lettersDeed func(ctx context.Context, f pipeline.DeadFilter, by string) (any, error)

func (do lettersDeed) serve(ctx context.Context, q natsapi.Query) (any, error) {
	var f pipeline.DeadFilter
	if body := bytes.TrimSpace(q.Body); len(body) > 0 {
		if err := strict(body, &f); err != nil {
			return nil, err
		}
	}
	if f.Tenant != "" && f.Tenant != q.Tenant {
		return nil, messages.NewFault(messages.Forbidden, "the subject says the tenant, and it is not %q", f.Tenant).
			From("control")
	}
	f.Tenant = q.Tenant
	return do(ctx, f, q.By)
}
