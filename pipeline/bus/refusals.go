package bus

import (
	"context"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// This file says in faults what became of work that was not done, or of which it is not known.

func notExecuted(ctx context.Context, o *owned) error {
	f := overFault(ctx, o.call)
	f.Message += "; the " + string(o.call.Kind) + " was not executed"
	f.Unsent = true
	return f
}

func unknownFault(c *messages.Call) *messages.Fault {
	return messages.NewFault(messages.OutcomeUnknown, "the %s of call %s began, and it is not known what came of it; "+
		"find out before it is called again", c.Kind, c.ID).From(messages.TargetOrigin)
}

// refusal is what the caller hears of work that was not taken, or not taken in time: which line is too long, how long
// it is, and when to come again.
func (t *targets) refusal(o *owned, work protocol.Target, l letter) *messages.Fault {
	_, name, _ := cutGroup(work.Class)
	f := messages.NewFault(messages.TargetAbsent, "no worker serves the class %s; the call waited %s for one and was not "+
		"executed; "+
		"start one with: worker --serve %s", name, rough(l.expected), name)
	if t.served(work.Class) {
		f = messages.NewFault(messages.Overloaded, "the workers of %s are full: %d calls are before this one in their line, "+
			"which "+
			"takes about %s, and calls wait at most %s (bus.max-queue-wait) and no longer than their own time; the %s was not "+
			"executed",
			name, l.ahead, rough(l.expected), t.n.cfg.MaxQueueWait, o.call.Kind)
	}
	f.RetryAfter = max(time.Second, l.expected-min(t.n.cfg.MaxQueueWait, time.Until(o.call.Deadline))).Round(time.Second)
	f.Unsent = true
	return f.From(messages.TargetOrigin)
}

// rough is a time as people say it.
func rough(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(time.Second)
}

// served reports whether a process is known that does work of the class.
func (t *targets) served(class string) bool {
	t.owner.Lock()
	defer t.owner.Unlock()
	return t.n.member.serves(class) || len(t.n.owns.Presence.Members(class)) > 0
}

// absentFault is err, or that nobody serves the class, where the call waited for somebody until its time was over.
func (t *targets) absentFault(ctx context.Context, o *owned, work protocol.Target, err error) error {
	if t.served(work.Class) || reason(ctx) != protocol.Deadline {
		return err
	}
	_, name, _ := cutGroup(work.Class)
	return messages.NewFault(messages.TargetAbsent, "no worker serves the class %s; the call waited for one until its "+
		"deadline "+
		"and was not executed; start one with: worker --serve %s", name, name).From(messages.TargetOrigin)
}
