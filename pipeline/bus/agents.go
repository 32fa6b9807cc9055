package bus

import (
	"context"
	"errors"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/pipeline"
)

// runHere runs the agent of an owned call in this process. A run that another owner goes on with is left: what it has
// done so far is recorded, and the calls that it waits for go on.
func (t *targets) runHere(ctx context.Context, o *owned) (pipeline.Next, error) {
	if err := t.n.codec.fill(ctx, o.call); err != nil {
		return pipeline.TurnBack(o.call, messages.AsFault(err, "bus")), nil
	}
	next := pipeline.RunTarget(ctx, t.n.opts.Agents, o.call, t.show(o))
	switch {
	case errors.Is(context.Cause(ctx), errElsewhere):
		return next, left{yielded}
	case ctx.Err() != nil && (o.call.Fault != nil || next.Where == pipeline.ToHold):
		return next, ctx.Err()
	}
	return next, nil
}

// show passes on what a run says.
func (t *targets) show(o *owned) pipeline.Emit {
	n := 0
	return func(chunk []byte) error {
		if o.waiter == nil {
			return nil
		}
		for _, piece := range events.Split(chunk, t.n.codec.payload-8<<10) {
			n++
			o.waiter.addDelta(pipeline.Delta{Source: t.n.opts.Name, N: n, Chunk: piece})
		}
		return nil
	}
}
