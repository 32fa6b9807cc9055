package bus

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
)

// sight is what is kept of an owned call for who watches it.
type sight struct {
	watch pipeline.Watch
	// began is when the call came to the phase that it is in.
	began time.Time
	// first is when the first piece of its reply was shown, in Unix nanoseconds; 0: none was.
	first atomic.Int64
}

// unwatched is the watch of calls that nobody watches.
type unwatched struct{}

func (unwatched) Ran(*messages.Call, pipeline.PhaseRun)     {}
func (unwatched) Target(*messages.Call, pipeline.TargetRun) {}
func (unwatched) Left(*messages.Call, pipeline.Departure)   {}

func watchOf(o pipeline.Observer, c *messages.Call, how pipeline.Ownership) pipeline.Watch {
	if o != nil {
		if w := o.Owns(c, how); w != nil {
			return w
		}
	}
	return unwatched{}
}

// passed tells who observes of a call that ended before it ran.
func (r *running) passed(c *messages.Call) {
	watchOf(r.observer, c.Clone(), pipeline.Ownership{Durable: true, Again: true}).Left(c, pipeline.Ended)
}

// shown notes that a piece of the reply was shown.
func (s *sight) shown() {
	if s.first.Load() == 0 {
		s.first.CompareAndSwap(0, time.Now().UnixNano())
	}
}

// turn notes that the call turns to its next phase.
func (o *owned) turn() { o.seen.began = time.Now() }

func (o *owned) ran(r pipeline.Report) {
	o.seen.watch.Ran(o.call, pipeline.PhaseRun{Report: r, Began: o.seen.began, Elapsed: time.Since(o.seen.began)})
}

// skip passes a stage that nobody serves.
func (o *owned) skip() pipeline.Next {
	name, phase := o.call.Slip.Stage()
	next := pipeline.Skip(o.call)
	o.seen.watch.Ran(o.call, pipeline.PhaseRun{Report: pipeline.Report{Stage: name, Phase: phase}, Began: o.seen.began,
		Elapsed: time.Since(o.seen.began), Skipped: true})
	return next
}

// target has the call's target run, and tells who watches.
func (x *onion) target(ctx context.Context, o *owned) (pipeline.Next, error) {
	o.turn()
	o.seen.first.Store(0)
	o.run.class, o.run.member, o.run.facts = "", "", nil
	next, err := x.targets.run(ctx, o)
	facts := o.run.facts
	if facts == nil {
		noted := o.call.TakeTargetRun()
		facts = &noted
	}
	r := pipeline.TargetRun{Facts: *facts, Class: o.run.class, Member: o.run.member,
		Began: o.seen.began, Elapsed: time.Since(o.seen.began), Err: err}
	if first := o.seen.first.Load(); first != 0 {
		r.First = time.Unix(0, first).Sub(o.seen.began)
	}
	_, gone := errors.AsType[left](err)
	if _, nobody := o.seen.watch.(unwatched); nobody || gone {
		return next, err
	}
	if o.call.Kind == messages.Model && o.call.Fault == nil {
		r.Model, r.Usage = chat.Answered(o.call.Reply())
	}
	o.seen.watch.Target(o.call, r)
	return next, err
}

// leave tells who watches that the call is this process's no more.
func (o *owned) leave(out outcome) {
	how := pipeline.Moved
	switch out {
	case ended:
		how = pipeline.Ended
	case parked:
		how = pipeline.Parked
	}
	o.seen.watch.Left(o.call, how)
}
