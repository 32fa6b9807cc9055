package bus

import (
	"context"
	"time"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// inPlace runs the work of a bound call in the goroutine of the call, if this process does such work, has a slot for it,
// and nobody waits for one. Nobody else knows of the work, and nobody goes on with it: so it needs no offer, and no
// member that keeps what came of it. ran says whether it did; an error is why the call does not go on.
func (t *targets) inPlace(ctx context.Context, o *owned, work protocol.Target) (next pipeline.Next, ran bool, err error) {
	n := t.n
	c := n.member.classes[work.Class]
	if c == nil || !n.cfg.Fusion || !c.role.Prompt || o.durable || work.Once || !work.Fresh || ctx.Err() != nil {
		return next, false, nil
	}
	begin, entered := t.enter(work.Class)
	if !entered {
		return next, false, nil
	}
	j := &job{work: work.Work, class: c, owner: n.opts.Name}
	call := o.call.Clone() // where its time is over meanwhile, the call goes on from where it was
	began := time.Now()
	next = pipeline.RunTarget(ctx, c.role.Target, call, n.member.emitter(j, call))
	took := time.Since(began)
	call.NoteTargetTook(took)
	t.exit(work.Class, begin)
	var failed error
	if call.Fault != nil {
		failed = call.Fault
	}
	n.stats.step(c.endpoint, took, failed)
	o.run.set(offer{first: work.First})
	o.run.last, o.run.proved, o.run.member = work.N, call.Fault != nil && call.Fault.Unsent, n.opts.Name
	if ctx.Err() != nil && failed != nil {
		return next, true, ctx.Err()
	}
	*o.call = *call
	return next, true, nil
}

// enter takes a slot of a class of this process.
func (t *targets) enter(class string) (begin time.Duration, ok bool) {
	t.owner.Lock()
	ok = t.runs.Enter(class)
	t.owner.Unlock()
	if !ok {
		return 0, false
	}
	m := t.n.member
	m.Lock()
	begin = m.clock.now()
	ok = m.m.Works.Enter(begin, class)
	m.Unlock()
	if !ok {
		t.owner.Lock()
		t.runs.Exit(begin, class, 0)
		t.owner.Unlock()
	}
	return begin, ok
}

// exit gives the slot back.
func (t *targets) exit(class string, begin time.Duration) {
	t.owner.Lock()
	now := t.owner.clock.now()
	t.runs.Exit(now, class, now-begin)
	t.owner.Unlock()
	t.n.member.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		return t.n.member.m.Works.Exit(now, class, out)
	})
}
