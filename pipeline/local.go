package pipeline

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// Local runs a whole call in this process, with the same Step as the bus: for tests, for embedding, and as the
// reference that the bus is compared with. It is safe for concurrent use; each call is changed in place.
type Local struct {
	Stages []Stage // already in the order of the chain
	Target Target
	// Observe is called after each step, if set.
	Observe func(c *messages.Call, r Report)
	// Emit receives the chunks of a streamed call, if set.
	Emit Emit
}

var _ Caller = Local{}

// Chain puts stages round a target: stages[0] is outermost. Without stages the target runs alone.
func Chain(stages []Stage, target Target) Local { return Local{Stages: stages, Target: target} }

// Call runs the call to its end and returns it with reply or fault set. A call without a slip gets one of all stages of
// its kind. The error is [ErrHeld] if the call is held, or says that the slip names a stage that is not in Stages.
func (l Local) Call(ctx context.Context, c *messages.Call) (*messages.Call, error) {
	if c.Slip.Stops == nil {
		for _, s := range l.Stages {
			if s.of(c.Kind) && !slices.Contains(c.Skip, s.Name) {
				c.Slip.Stops = append(c.Slip.Stops, s.Stop())
			}
		}
	}
	if !c.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, c.Deadline)
		defer cancel()
	}
	emit := l.Emit
	if emit == nil {
		emit = func([]byte) error { return nil }
	}
	next := Start(c)
	for {
		if err := wait(ctx, next.Delay); err != nil {
			c.Fail(endFault(ctx, c))
			return c, nil
		}
		switch next.Where {
		case ToReply:
			Charge(ctx, c)
			return c, nil
		case ToHold:
			return c, ErrHeld
		case ToTarget:
			if ctx.Err() != nil {
				next = TurnBack(c, endFault(ctx, c))
				continue
			}
			next = RunTarget(ctx, l.Target, c, emit)
		case ToStage:
			name, _ := c.Slip.Stage()
			s, ok := l.find(c.Kind, name)
			if !ok {
				return c, fmt.Errorf("local: no stage %q here", name)
			}
			var r Report
			next, r = Step(ctx, s, c)
			if l.Observe != nil {
				l.Observe(c, r)
			}
		}
	}
}

// ErrHeld says that a call is parked and waits for an answer. It is not a failure.
var ErrHeld = messages.NewFault(messages.Conflict, "the call is held and waits for an answer")

func (l Local) find(kind messages.Kind, name string) (Stage, bool) {
	for _, s := range l.Stages {
		if s.Name == name && s.of(kind) {
			return s, true
		}
	}
	return Stage{}, false
}

// wait waits for a delay in this process.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
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

// endFault is the fault of a call whose context ended between two steps; it names where the call was.
func endFault(ctx context.Context, c *messages.Call) *messages.Fault {
	if context.Cause(ctx) == ErrCancelled || ctx.Err() == context.Canceled {
		return messages.NewFault(messages.Cancelled, "the caller cancelled while the call was at %s",
			c.Slip.Where()).From("caller")
	}
	return messages.NewFault(messages.DeadlineExceeded, "the call's time was over at %s",
		c.Slip.Where()).From("deadline")
}
