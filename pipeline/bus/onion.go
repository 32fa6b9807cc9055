package bus

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// onion runs calls through their stages and targets. It is the one way of a call, bound or durable, fused or spread:
// where a phase runs is known to hops, where a target runs to targets.
type onion struct {
	hops    *hops
	targets *targets
	hold    func(o *owned, next pipeline.Next) (outcome, error)
	// longDelay is how long a stored call may wait in this process for another attempt.
	longDelay time.Duration
	doubt     func(ctx context.Context, c *messages.Call, f *messages.Fault) *messages.Fault
}

// finallyTime is how long the stages that must see every call may take after its time is over.
const finallyTime = 10 * time.Second

// left says that the call goes on elsewhere, or not at all: this process says nothing more about it.
type left struct{ outcome }

func (left) Error() string { return "the call has left this process" }

// errStopping is the cause of a context that ended because the process stops.
var errStopping = errors.New("the process stops")

// run runs an owned call from where its slip is to its end. If its time is over or its caller left, told is called
// with the end as the caller hears it, before the stages that must see every call have run; the call itself ends when
// they have. told must not change its call, which is a copy.
func (x *onion) run(o *owned, told func(end *messages.Call)) outcome {
	next, err := x.through(o.ctx, o, begin(o.call))
	if err != nil {
		if gone, ok := errors.AsType[left](err); ok {
			return gone.outcome
		}
		if errors.Is(context.Cause(o.ctx), errElsewhere) {
			return yielded
		}
		if o.ctx.Err() != nil && !o.call.Slip.Back {
			if known := x.targets.settle(o); known != nil {
				err = known
			}
		}
		x.cutShort(o, err, told)
	} else if f := o.call.Fault; f != nil && f.Code == messages.Cancelled && errors.Is(context.Cause(o.ctx), errStopping) {
		f = overFault(o.ctx, o.call) // a stage took the end of its context for the caller's leave
		f.Unsent = o.unsent()
		o.call.Fail(f)
	}
	if next.Where != pipeline.ToReply || err != nil {
		o.call.Slip.At, o.call.Slip.Back, o.call.Slip.Frames = -1, true, nil
	}
	o.call.Fault = x.doubt(context.WithoutCancel(o.ctx), o.call, o.call.Fault)
	return ended
}

// begin takes a new call to its first place, and a stored one to where it was.
func begin(c *messages.Call) pipeline.Next {
	if c.Slip.At < 0 && !c.Slip.Back {
		return pipeline.Start(c)
	}
	return pipeline.Resume(c)
}

// through takes the call from place to place until its reply. An error is why it stands still before: its context is
// over, or it is left.
func (x *onion) through(ctx context.Context, o *owned, next pipeline.Next) (pipeline.Next, error) {
	for next.Where != pipeline.ToReply {
		if o.durable && next.Delay > x.longDelay {
			if out, err := x.hold(o, next); err == nil {
				return next, left{out}
			} // it cannot be parked, so it waits here
		}
		if err := wait(ctx, next.Delay); err != nil {
			return next, err
		}
		var err error
		switch next.Where {
		case pipeline.ToTarget:
			next, err = x.target(ctx, o)
		case pipeline.ToHold:
			next, err = x.park(o, next)
		default:
			next, err = x.hops.run(ctx, o)
		}
		if err == nil {
			err = overElsewhere(ctx, o.call)
		}
		if err != nil {
			return next, err
		}
	}
	return next, nil
}

// overElsewhere waits for the call's deadline where whoever ran its last phase or its target says that the time is
// over: their clock may be ahead of this one, and no other phase may begin between the two.
func overElsewhere(ctx context.Context, c *messages.Call) error {
	until, ok := ctx.Deadline()
	if f := c.Fault; !ok || f == nil || f.Code != messages.DeadlineExceeded || f.Origin != "deadline" ||
		time.Until(until) > lateGrace {
		return nil
	}
	return wait(ctx, 2*lateGrace)
}

// wait is the owner's timer. It looks at the context also where there is nothing to wait for.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (x *onion) park(o *owned, next pipeline.Next) (pipeline.Next, error) {
	out, err := x.hold(o, next)
	if err != nil {
		return pipeline.FailHold(o.call, messages.AsFault(err, "bus")), nil
	}
	return next, left{out}
}

// cutShort ends a call whose context is over: whoever waits is told at once, then the call goes outward. After its
// deadline only the stages run that must see every call, and those that give something back; after a cancel all those
// do that the call has passed.
func (x *onion) cutShort(o *owned, err error, told func(end *messages.Call)) {
	c := o.call
	f, ok := errors.AsType[*messages.Fault](err)
	if !ok {
		f = overFault(o.ctx, c)
		f.Unsent = f.Unsent || f.Code == messages.Stopping && o.unsent()
	}
	c.Fail(f)
	end := c.Clone()
	end.Slip.At, end.Slip.Back, end.Slip.Frames = -1, true, nil
	end.Fault = x.doubt(context.WithoutCancel(o.ctx), end, end.Fault)
	told(end)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(o.ctx), finallyTime)
	defer cancel()
	c.Slip.Stops = slices.Clone(c.Slip.Stops)
	for i := range c.Slip.Stops {
		stop := &c.Slip.Stops[i]
		stop.Keep = false // nothing is tried again
		stop.After = stop.After && (stop.Mandatory || stop.Finally || !errors.Is(o.ctx.Err(), context.DeadlineExceeded))
	}
	if _, err := x.through(ctx, o, turnHere(c, f)); err != nil {
		c.Fail(f)
	}
}

// turnHere turns a call round where it is.
func turnHere(c *messages.Call, f *messages.Fault) pipeline.Next {
	c.Slip.At, c.Slip.Back = len(c.Slip.Stops), false
	return pipeline.TurnBack(c, f)
}

// overFault is the fault of a call whose context ended; it names where the call was.
func overFault(ctx context.Context, c *messages.Call) *messages.Fault {
	where := c.Slip.Where()
	switch {
	case errors.Is(context.Cause(ctx), errStopping):
		return messages.NewFault(messages.Stopping,
			"the process that ran the call stops, and the call ends with it; the call was at %s; send it again",
			where).From("entry")
	case !errors.Is(ctx.Err(), context.DeadlineExceeded) && c.Fault != nil && c.Fault.Code == messages.Cancelled:
		return c.Fault // the stage or target that was cancelled has said so
	case !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return messages.NewFault(messages.Cancelled, "the caller left while the call was at %s", where).From("caller")
	case c.Fault != nil && mayTryAgain(c):
		f := messages.NewFault(messages.DeadlineExceeded, "the call's time was over at %s, before another attempt could be "+
			"made; the %s failed with %s: %s", where, c.Kind, c.Fault.Code, c.Fault.Message).From("deadline")
		f.Last = c.Fault.Code
		return f
	case c.Fault != nil:
		return c.Fault // the stage or target whose time ran out has said so
	}
	return messages.NewFault(messages.DeadlineExceeded, "the call's time was over at %s", where).From("deadline")
}

// mayTryAgain reports whether a stage that is still to come could have had the failed target tried again, or another
// one: then it is the time that ended the call, not the failure.
func mayTryAgain(c *messages.Call) bool {
	return c.Fault.OfTarget() && c.Fault.Code.Info().Fallback &&
		slices.ContainsFunc(c.Slip.Frames, func(f messages.Frame) bool { return c.Slip.Stops[f.Stop].Keep })
}

// reason is why a context ended, as the protocol names it.
func reason(ctx context.Context) protocol.Why {
	switch {
	case errors.Is(context.Cause(ctx), errStopping):
		return protocol.Leaving
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return protocol.Deadline
	}
	return protocol.Cancelled
}
