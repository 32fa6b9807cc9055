package bus

import (
	"context"
	"errors"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

var _ pipeline.Entry = (*Node)(nil)

// Accept implements pipeline.Entry. A plain call is bound to the one who waits for it here: it is accepted when it
// runs, and nothing of it is stored. A call that somebody may come back for is stored first.
func (n *Node) Accept(ctx context.Context, r pipeline.Request) (pipeline.Pending, error) {
	if n.draining.Load() && r.Parent == "" {
		return nil, messages.NewFault(messages.Overloaded,
			"this process is stopping; send the request to another one").From("entry")
	}
	c, err := n.newCall(r)
	if err != nil {
		return nil, err
	}
	if r.Submit || r.Keep || c.IdempotencyKey != "" || r.CallerInbox != "" || c.Kind == messages.Agent {
		return n.durable.accept(ctx, c, r)
	}
	return n.bind(c), nil
}

// bind runs a call for the one who waits for it in this process.
func (n *Node) bind(c *messages.Call) *pending {
	p := newPending(c.ID)
	o := n.calls.own(c, false, true) // the id is new
	o.waiter = p
	p.over, p.leave = o.ctx.Done(), func() { o.cancel(pipeline.ErrCancelled) }
	p.stop = func() { o.cancel(errStopping) }
	stopping := func() bool { return errors.Is(context.Cause(o.ctx), errStopping) }
	p.patience = func() time.Duration {
		if stopping() || o.offered.Load() {
			return stopGrace
		}
		return lateGrace
	}
	facts := messages.Call{Wire: c.Wire, ID: c.ID, Kind: c.Kind, Tenant: c.Tenant, Session: c.Session, Run: c.Run,
		RequestID: c.RequestID, Accepted: c.Accepted, Deadline: c.Deadline, Trace: c.Trace}
	p.late = func() *messages.Call {
		end := facts
		f := overFault(o.ctx, &end)
		switch {
		case stopping():
			f = messages.NewFault(messages.OutcomeUnknown, "the process that ran the call %s stops, and the call did not end "+
				"in time; find out what came of it before it is called again", end.ID).From("entry")
		case o.offered.Load():
			f = messages.NewFault(messages.OutcomeUnknown, "the %s of call %s may have begun, and it was not known in time "+
				"what came of it; find out before it is called again", end.Kind, end.ID).From(messages.TargetOrigin)
		}
		end.Fail(f)
		return &end
	}
	n.work.Go(func() { n.runBound(o) })
	return p
}

// whole fetches what members left behind claim checks of the call's end.
func (n *Node) whole(o *owned) {
	if len(o.call.Refs()) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(o.ctx), 3*objectTime)
	defer cancel()
	if err := n.codec.fill(ctx, o.call); err != nil {
		o.call.Fail(messages.AsFault(err, "bus"))
	}
}

func (n *Node) runBound(o *owned) {
	defer n.calls.release(o) // not before its end is told: whoever waits takes the end of its context for a lateness
	out := n.onion.run(o, func(end *messages.Call) { o.waiter.end(end) })
	if out != ended {
		o.waiter.hold() // it is a stored call from now on
		o.leave(out)
		return
	}
	n.whole(o)
	n.opts.Manager.Fold(o.call.Kind, o.call.Slip)
	o.waiter.end(o.call)
	o.leave(out)
	n.onion.targets.ended(o.id)
}
