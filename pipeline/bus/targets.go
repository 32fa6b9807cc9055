package bus

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// targets has the work of targets done: it offers it to the members of a class and waits for the outcome.
type targets struct {
	n     *Node
	owner *machine // guards runs
	runs  *protocol.Runs
}

// target is the work of an owned call, as it is offered.
type target struct {
	mu      sync.Mutex
	offer   offer
	payload []byte              // of a record that ended the work
	of      uint64              // the work's number that the payload is of
	last    uint64              // the number of the last work
	proved  bool                // the last work proved that it did nothing
	ran     *result             // of the last work, if it must not be done twice
	class   string              // of the last work
	member  string              // who did it
	facts   *messages.TargetRun // what this process knows of it; nil: what the call notes
}

// offer is what a member gets to see of a call: the call itself where the member is this process, its wire form else.
type offer struct {
	call   *messages.Call
	data   []byte
	trace  string
	bound  bool
	first  uint64
	tenant string
}

func (t *target) set(f offer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.offer, t.payload = f, nil
}

// write keeps the wire form of the offer, if it is still the one that is out.
func (t *target) write(f offer) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.offer.call != f.call {
		return false
	}
	t.offer.data = f.data
	return true
}

func (t *target) get() offer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.offer
}

// keep keeps the outcome that a record held, until the protocol says that it counts.
func (t *target) keep(n uint64, payload []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.payload, t.of = payload, n
}

func (t *target) kept(n uint64) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of != n {
		return nil
	}
	return t.payload
}

// voidLimit is how long a call whose time is over waits for the record that says whether its work began.
const voidLimit = 2 * time.Second

// run has the call's target run, and turns the call round. An error is why it did not.
func (t *targets) run(ctx context.Context, o *owned) (pipeline.Next, error) {
	if o.call.Kind == messages.Agent && t.n.opts.Agents != nil {
		return t.runHere(ctx, o)
	}
	class, err := t.classify(context.WithoutCancel(ctx), o.call)
	if err != nil {
		return pipeline.TurnBack(o.call, messages.AsFault(err, messages.TargetOrigin)), nil
	}
	o.run.class = class
	if o.run.last == 0 {
		o.call.Noted(messages.NoteWorks, &o.run.last) // the call was parked after its target had run
	}
	once := t.n.opts.Once(o.call)
	if once {
		if next, ran := t.again(ctx, o); ran {
			return next, nil
		}
	}
	work := protocol.Target{Work: protocol.Work{Call: o.id, N: o.run.last + 1}, First: o.run.last + 1,
		Class:  groupOf(o.call.Kind, class),
		Tenant: o.tenant, Child: o.call.Parent != "", Once: once, Until: t.n.clock.at(o.call.Deadline),
		Fresh: o.fresh}
	if !once && !o.fresh && o.resumed > 0 {
		work.Fresh, work.Since = true, o.resumed
	}
	if o.run.proved {
		work.First = o.run.offer.first
	}
	if next, ran, err := t.inPlace(ctx, o, work); ran {
		return next, err
	}
	f := offer{tenant: o.tenant, trace: o.call.Trace.Parent, bound: !o.durable, first: work.First}
	if t.n.targetHere(work.Class) {
		f.call = o.call.Clone()
	} else if f.data, err = t.n.codec.encode(context.WithoutCancel(ctx), o.call); err != nil {
		return pipeline.TurnBack(o.call, messages.AsFault(err, "bus")), nil
	}
	o.run.set(f)
	o.offered.Store(once)
	t.owner.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		o.ask.data = nil // the last stage has answered; its question need not live as long as the work
		return t.runs.Start(now, work, out)
	})
	return t.await(ctx, o, work)
}

// settle finds out what an owner before this one may have begun of a call whose time is over, or whose caller left,
// before it is at its target. The error is the fault that the call ends in then; nil: there is no more to say.
func (t *targets) settle(o *owned) error {
	if o.fresh || !t.n.opts.Once(o.call) {
		return nil
	}
	if began, err := t.n.begun.mayHaveRun(t.n.loop, o.tenant, o.id); err == nil && !began {
		return nil
	}
	_, err := t.run(o.ctx, o)
	return err
}

// await waits until it is known what came of the work.
func (t *targets) await(ctx context.Context, o *owned, work protocol.Target) (pipeline.Next, error) {
	waits, over := ctx, protocol.Why(0)
	for {
		l, err := o.mail.next(waits)
		switch {
		case err == nil:
			if next, err, done := t.told(ctx, o, work, l, over); done {
				return next, err
			}
		case over == 0:
			over = reason(ctx)
			t.giveUp(o.id, over)
			if !work.Once {
				return pipeline.Next{}, t.absentFault(ctx, o, work, err)
			}
			var cancel context.CancelFunc
			waits, cancel = context.WithTimeout(context.WithoutCancel(ctx), voidLimit)
			defer cancel()
		default:
			return pipeline.Next{}, unknownFault(o.call)
		}
	}
}

// told takes a letter about the work; done means that the call is no longer at its target, or not this process's any
// more. over says why nobody waits for it any more, 0 if somebody does.
func (t *targets) told(ctx context.Context, o *owned, work protocol.Target, l letter,
	over protocol.Why) (next pipeline.Next, err error, done bool) {
	switch l.why {
	case protocol.Yielded:
		return next, left{yielded}, true
	case protocol.HandedBack:
		return next, left{handedBack}, true
	case protocol.Ended:
		if l.n < work.N {
			return next, nil, false // of an earlier work
		}
		next, err := t.came(ctx, o, l, work.Once)
		if over != 0 && err == nil {
			err = context.Cause(ctx) // the outcome is in the call; its time is over all the same
		}
		return next, err, true
	case protocol.NotExecuted:
		o.offered.Store(false)
		if over == 0 {
			return pipeline.TurnBack(o.call, t.refusal(o, work, l)), nil, true
		}
		return next, t.absentFault(ctx, o, work, notExecuted(ctx, o)), true
	case protocol.Overloaded:
		return pipeline.TurnBack(o.call, t.refusal(o, work, l)), nil, true
	case protocol.Unknown:
		if over == 0 {
			return pipeline.TurnBack(o.call, unknownFault(o.call)), nil, true
		}
		return next, unknownFault(o.call), true
	case protocol.StreamCut:
		return pipeline.TurnBack(o.call, messages.NewFault(messages.StreamCut,
			"the worker that streamed the reply was lost after a part of it was sent").From(messages.TargetOrigin)), nil, true
	}
	return next, nil, false // of something that the call does not wait for any more
}

// came goes on with an outcome: the call is as if its target had run here.
func (t *targets) came(ctx context.Context, o *owned, l letter, once bool) (pipeline.Next, error) {
	res, err := l.local, error(nil)
	if res == nil {
		if l.outcome != nil {
			res, err = t.n.codec.result(ctx, l.outcome)
		} else {
			res, err = t.n.codec.decodeResult(ctx, o.run.kept(l.n))
		}
		if err != nil {
			return pipeline.TurnBack(o.call, messages.AsFault(err, "bus")), nil
		}
	}
	o.run.last, o.run.proved, o.run.member = l.n, l.record.State == protocol.NotRun, l.member
	if once {
		return t.cameOnce(ctx, o, res), nil
	}
	return pipeline.RunTarget(context.WithoutCancel(ctx), res, o.call, nil), nil
}

func (t *targets) giveUp(call string, why protocol.Why) {
	t.owner.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
		return t.runs.GiveUp(now, call, why, out)
	})
}

// ended says that a call has ended: members forget what they keep for it.
func (t *targets) ended(call string) {
	t.owner.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect { return t.runs.Ended(now, call, out) })
}

// classify names the class of members that can do a call's target. The name may stand in a body that is not here.
func (t *targets) classify(ctx context.Context, c *messages.Call) (string, error) {
	if err := t.n.codec.fill(ctx, c); err != nil {
		return "", err
	}
	class, err := t.n.opts.Classify(c)
	if known := t.n.cfg.classes(c.Kind); err == nil && len(known) > 0 && !slices.Contains(known, class) {
		return "", messages.NewFault(messages.TargetAbsent,
			"there is no class %s of %s workers; name it in the configuration of every process", class, c.Kind)
	}
	return messages.Token(class), err
}

// send carries an effect about work to a member: within this process where it does the work itself and calls are fused,
// or all that is to be said is that it may forget, over NATS else.
func (t *targets) send(e *protocol.Effect) {
	n := t.n
	kind, class, ok := cutGroup(e.Group)
	local := n.cfg.Fusion && (e.To == n.opts.Name || e.To == "" && n.member.serves(e.Group)) ||
		e.Kind == protocol.Confirm && e.To == n.opts.Name
	switch {
	case local:
		t.sendHere(e)
	case e.Kind == protocol.Offer:
		t.offer(e, messages.Kind(kind), class)
	case e.To != "":
		n.publish(n.subj.Process(e.To, workVerbs[e.Kind]), n.replies.root, workMemo(n.opts.Name, e))
	case ok:
		n.publish(n.subj.Class(messages.Kind(kind), class, workVerbs[e.Kind]), n.replies.root, workMemo(n.opts.Name, e))
	}
}

var workVerbs = map[protocol.Kind]string{protocol.WhoHas: "who", protocol.Confirm: "confirm", protocol.Cancel: "cancel"}

func (t *targets) offer(e *protocol.Effect, kind messages.Kind, class string) {
	o := t.n.calls.get(e.Call)
	if o == nil {
		return
	}
	f := o.run.get()
	if f.data == nil { // it was to run here
		stored := *e // e is only valid during the call
		t.n.tasks.Go(func() { t.offerAbroad(stored, o, f, kind, class) })
		return
	}
	reply := strings.Join([]string{t.n.replies.root, "offer", e.Call, strconv.FormatUint(e.N, 10),
		strconv.FormatUint(e.Seq, 10)}, ".")
	m := &nats.Msg{Subject: t.n.subj.Work(kind, class), Reply: reply,
		Header: nats.Header{hdrWire: {wireVersion}, hdrCall: {e.Call},
			hdrTenant: {messages.Token(o.tenant)}}}
	if e.To != "" {
		m.Subject += "." + e.To
		m.Reply += "." + e.To
	}
	if f.trace != "" {
		m.Header[hdrTrace] = []string{f.trace}
	}
	m.Data = append(appendTerms(make([]byte, 0, len(f.data)+128), e, f), f.data...)
	t.n.send(m)
}

// offerAbroad offers work to another process that was to run in this one: this one is full.
func (t *targets) offerAbroad(e protocol.Effect, o *owned, f offer, kind messages.Kind, class string) {
	ctx, cancel := context.WithDeadline(context.WithoutCancel(o.ctx), t.n.clock.wall(e.Until))
	defer cancel()
	data, err := t.n.codec.encode(ctx, f.call.Clone())
	if err != nil {
		t.n.log.Warn("a call could not be written for another process; that is tried again", "call", e.Call, "err", err)
		return
	}
	if f.data = data; o.run.write(f) {
		t.offer(&e, kind, class)
	}
}

// sendHere does without NATS what the member of this process would hear.
func (t *targets) sendHere(e *protocol.Effect) {
	w, member := protocol.Work{Call: e.Call, N: e.N}, t.n.member
	switch e.Kind {
	case protocol.Offer:
		if o := t.n.calls.get(e.Call); o != nil {
			f := o.run.get()
			member.offered(offered(t.n.opts.Name, e, f), input{call: f.call.Clone(), tenant: o.tenant})
		}
	case protocol.WhoHas:
		member.whoHas(w, t.n.opts.Name, "", e.Seq)
	case protocol.Confirm:
		member.confirmed(w)
	case protocol.Cancel:
		member.cancelled(w)
	}
}

// offered is an offer as the member reads it.
func offered(owner string, e *protocol.Effect, f offer) protocol.Offered {
	return protocol.Offered{Work: protocol.Work{Call: e.Call, N: e.N}, First: f.first, Owner: owner, Class: e.Group,
		Tenant: f.tenant,
		Seq:    e.Seq, Once: e.Once, Bound: f.bound, Sent: e.At, Until: e.Until}
}
