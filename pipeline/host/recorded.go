package host

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/natsapi"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

// recorded is the node as the faces see it: whatever changes how it works leaves a record.
type recorded struct {
	*bus.Node
	audit *audit
}

// Switch implements pipeline.Control.
func (r recorded) Switch(ctx context.Context, name string, on bool, confirm, by string) (pipeline.Switched, error) {
	out, err := r.Node.Switch(ctx, name, on, confirm, by)
	action := "switch-off"
	if on {
		action = "switch-on"
	}
	r.audit.deed(ctx, deed{Action: action, What: name, By: by}, err)
	return out, err
}

// DecideInOneWord is the decision of a caller over NATS.
func (r recorded) DecideInOneWord(
	ctx context.Context, tenant, call string, answer json.RawMessage, by string,
) (string, error) {
	word, err := r.Node.DecideInOneWord(ctx, tenant, call, answer, by)
	r.audit.decision(ctx, tenant, call, word, by, err)
	return word, err
}

// Redrive implements pipeline.DeadLetters.
func (r recorded) Redrive(ctx context.Context, f pipeline.DeadFilter, by string) (pipeline.DeadDone, error) {
	out, err := r.Node.Redrive(ctx, f, by)
	r.audit.letters(ctx, "redrive", f, by, out, err)
	return out, err
}

// DeleteDead implements pipeline.DeadLetters.
func (r recorded) DeleteDead(ctx context.Context, f pipeline.DeadFilter, by string) (pipeline.DeadDone, error) {
	out, err := r.Node.DeleteDead(ctx, f, by)
	r.audit.letters(ctx, "delete-dead", f, by, out, err)
	return out, err
}

// letterVerbs are the subjects of the dead letters of one tenant, for operators. The body is a filter; see
// [pipeline.DeadFilter]. They are served when dead gives the letters: the subjects are known before the node is.
func letterVerbs(dead func() pipeline.DeadLetters) []natsapi.Verb {
	verb := func(name, about string, reply any, do lettersDeed) natsapi.Verb {
		return natsapi.Verb{Name: name, About: about, Operators: true, Request: pipeline.DeadFilter{}, Reply: reply,
			Serve: do.serve}
	}
	return []natsapi.Verb{
		verb("letters.list", "dead letters", pipeline.DeadPage{},
			func(ctx context.Context, f pipeline.DeadFilter, _ string) (any, error) {
				return dead().DeadLetters(ctx, f)
			}),
		verb("letters.get", "one dead letter with what it holds", pipeline.DeadLetter{},
			func(ctx context.Context, f pipeline.DeadFilter, _ string) (any, error) {
				return dead().DeadLetter(ctx, f.Tenant, f.Sequence)
			}),
		verb("letters.redrive", "runs the calls of dead letters again", pipeline.DeadDone{},
			func(ctx context.Context, f pipeline.DeadFilter, by string) (any, error) {
				return dead().Redrive(ctx, f, by)
			}),
		verb("letters.delete", "deletes dead letters", pipeline.DeadDone{},
			func(ctx context.Context, f pipeline.DeadFilter, by string) (any, error) {
				return dead().DeleteDead(ctx, f, by)
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
