package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// hops has the phases of stages run: here, or by a member who is asked.
type hops struct {
	n     *Node
	owner *machine          // guards what follows, and the questions of owned calls
	asks  *protocol.Asks    // which questions are open, for the protocol
	open  map[uint64]*owned // and whose they are
	// elsewhere names the stages of this process that others serve too.
	elsewhere map[string]bool
	served    map[string]bool // the stages that somebody serves, as this process knows it
}

// asked is the question that a call waits for, as it was sent.
type asked struct {
	n       uint64
	subject string // of the group
	data    []byte
}

// run runs the phase that the call's slip names. An error is why it did not: the context is over, or the call is left.
func (h *hops) run(ctx context.Context, o *owned) (pipeline.Next, error) {
	c := o.call
	name, phase := c.Slip.Stage()
	s := h.stage(c, name)
	o.turn()
	for try := 0; ; try++ {
		step := h.ask
		if h.n.fused(s) || h.plain(c, s) {
			step = h.here
		}
		next, r, gone, err := step(ctx, o, s)
		switch {
		case errors.Is(err, errSkipped):
			h.n.log.Warn("nobody serves the stage; the call skips it", "call", o.id, "stage", name)
			return o.skip(), nil
		case err != nil:
			return next, h.unanswered(ctx, c, s, err)
		case gone == nil:
			if next.Where != pipeline.ToHold {
				c.Unnote(messages.NoteAnswer) // it is for the phase that asked
			}
			logReport(h.n.log, c, r)
			o.ran(r)
			return next, nil
		case c.Slip.Stops[c.Slip.At].Skippable:
			h.n.log.Warn("the program of the stage does not run; the call skips it", "call", o.id, "stage", name)
			return o.skip(), nil
		}
		switch err := wait(ctx, absentWait(try)); {
		case errors.Is(err, context.Canceled):
			return next, err
		case err != nil:
			return next, messages.NewFault(messages.StageAbsent,
				"%s; the call waited for it before its %s until its deadline",
				pipeline.AbsentText(name, gone.Subject), phase).From(name)
		}
	}
}

// absentWait is how long a call waits before it asks again for a program that does not run.
func absentWait(try int) time.Duration {
	return min(250*time.Millisecond<<min(try, 5), 5*time.Second)
}

// stage is the stage as this process knows it. One that it does not know is asked with all that the call has, and may
// do what its place on the slip says.
func (h *hops) stage(c *messages.Call, name string) pipeline.Stage {
	if s, ok := h.n.opts.Manager.Get(c.Kind, name); ok {
		return s.Stage
	}
	stop := c.Slip.Stops[c.Slip.At]
	s := pipeline.Stage{Name: name, Kind: c.Kind, Order: stop.Order, Keep: stop.Keep, Finally: stop.Finally,
		FailClosed: true,
		Reads:      []string{messages.RequestBody, messages.ReplyBody, pipeline.ReadKept, pipeline.ReadCall}}
	if stop.Mandatory {
		s.Tier = pipeline.Mandatory
	}
	return s
}

// fused reports whether the phases of the stage run in the calls' own goroutines.
func (n *Node) fused(s pipeline.Stage) bool {
	if !n.cfg.Fusion || !n.opts.hosts(s) {
		return false
	}
	_, known := n.opts.Manager.Get(s.Kind, s.Name)
	return known
}

// plain reports whether the phase needs nobody but the owner of the call; see [pipeline.Stage].
func (h *hops) plain(c *messages.Call, s pipeline.Stage) bool {
	if s.Plain == nil || len(c.Refs()) > 0 {
		return false
	}
	h.owner.Lock()
	served := h.served[groupOf(c.Kind, s.Name)]
	h.owner.Unlock()
	return served && s.Plain(c)
}

// here runs the phase in this process.
func (h *hops) here(ctx context.Context, o *owned, s pipeline.Stage) (
	next pipeline.Next, r pipeline.Report, gone *pipeline.Absent, err error) {
	if err := ctx.Err(); err != nil {
		return next, r, nil, err
	}
	if !s.Blind {
		if err := h.n.codec.fill(ctx, o.call); err != nil {
			next, r = pipeline.Apply(s, o.call, failed(err))
			return next, r, nil, nil
		}
	}
	next, r, gone = pipeline.StepPresent(ctx, s, o.call)
	h.n.stats.stepHere(h.n.subj, s, r)
	return next, r, gone, nil
}

// errSkipped says that nobody serves a stage that may be skipped.
var errSkipped = errors.New("nobody serves the stage")

// ask asks a member and does what the answer says.
func (h *hops) ask(ctx context.Context, o *owned, s pipeline.Stage) (
	next pipeline.Next, r pipeline.Report, gone *pipeline.Absent, err error) {
	data, err := h.question(ctx, o.call, s)
	if err != nil {
		next, r = pipeline.Apply(s, o.call, failed(err))
		return next, r, nil, nil
	}
	n := h.sent(o, s, data)
	a, err := h.await(ctx, o, n)
	if err != nil {
		h.forget(n, !errors.Is(err, context.DeadlineExceeded)) // members know the deadline
		return next, r, nil, err
	}
	if err := h.fill(ctx, o.call, a); err != nil {
		a = failed(err)
	}
	if a.Error != nil && a.Error.Absent != "" {
		return next, r, &pipeline.Absent{Stage: s.Name, Subject: a.Error.Absent}, nil
	}
	next, r = pipeline.Apply(s, o.call, a)
	return next, r, nil, nil
}

// failed is the answer of a member that gave none that can be used.
func failed(err error) *messages.Answer {
	f := messages.AsFault(err, "bus")
	return &messages.Answer{Error: &messages.Thrown{Text: f.Message, Fault: f, Closed: true}}
}

// question writes the question. A body above the limit stays in the object store.
func (h *hops) question(ctx context.Context, c *messages.Call, s pipeline.Stage) ([]byte, error) {
	end, _ := ctx.Deadline() // later than the call's for the stages that see it after its time
	until := stamp(h.n.clock.at(end))
	data, err := pipeline.Ask(s, c, until)
	if err != nil || len(data) <= h.n.codec.limit {
		return data, err
	}
	return h.n.codec.spill(ctx, c, func() ([]byte, error) { return pipeline.Ask(s, c, until) })
}

// sent registers the question and sends it.
func (h *hops) sent(o *owned, s pipeline.Stage, data []byte) uint64 {
	c := o.call
	_, phase := c.Slip.Stage()
	subject := h.n.subj.Hop(c.Kind, phase, s.Name)
	group := groupOf(c.Kind, s.Name)
	h.owner.Lock()
	n, to := h.asks.Sent(h.owner.clock.now(), protocol.Question{Call: o.id, Stage: group,
		Skip: c.Slip.Stops[c.Slip.At].Skippable, Local: h.n.opts.hosts(s) && !h.elsewhere[group]})
	o.ask = asked{n: n, subject: subject, data: data}
	h.open[n] = o
	h.owner.Unlock()
	h.publish(o.id, o.ask, n, to, false)
	return n
}

func (h *hops) publish(call string, q asked, n uint64, to string, alone bool) {
	m := &nats.Msg{Subject: q.subject, Reply: h.n.replies.question(n, to), Data: q.data,
		Header: nats.Header{hdrWire: {wireVersion}, hdrCall: {call}}}
	if to != "" {
		m.Subject += "." + to
	}
	if alone {
		m.Header[hdrAlone] = []string{"true"}
	}
	h.n.send(m)
}

// repeat asks again, as the protocol has decided.
func (h *hops) repeat(e *protocol.Effect) {
	h.owner.Lock()
	o := h.open[e.N]
	var q asked
	if o != nil {
		q = o.ask
	}
	h.owner.Unlock()
	if o != nil && q.n == e.N {
		h.publish(o.id, q, e.N, e.To, e.Alone)
	}
}

// answered takes an answer. One that nobody waits for any more is dropped.
func (h *hops) answered(n uint64, member string, a *messages.Answer) {
	h.owner.Lock()
	o := h.open[n]
	delete(h.open, n)
	open := h.asks.Answered(h.owner.clock.now(), n, member)
	h.owner.Unlock()
	if o != nil && open {
		o.mail.post(letter{n: n, answer: a})
	}
}

// forget closes a question, and tells whoever may work on it that nobody waits for the answer.
func (h *hops) forget(n uint64, tell bool) {
	h.owner.Lock()
	delete(h.open, n)
	members := h.asks.Forget(n)
	h.owner.Unlock()
	for _, m := range members {
		if tell {
			h.n.publish(h.n.subj.Process(m, dropVerb), h.n.replies.question(n, ""), nil)
		}
	}
}

// await waits for the answer to question n.
func (h *hops) await(ctx context.Context, o *owned, n uint64) (*messages.Answer, error) {
	for {
		l, err := o.mail.next(ctx)
		switch {
		case err != nil:
			return nil, err
		case l.why == protocol.Yielded:
			return nil, left{yielded}
		case l.why == protocol.HandedBack:
			return nil, left{handedBack}
		case l.n != n: // of something that this call does not wait for any more
		case l.why == 0:
			return l.answer, nil
		case l.why == protocol.Skipped:
			return nil, errSkipped
		case l.why == protocol.Undeliverable:
			return nil, messages.NewFault(messages.Undeliverable,
				"two workers were lost while they ran this call; it is kept as a dead letter").From("bus")
		}
	}
}

// fill fetches the body behind the answer's claim check.
func (h *hops) fill(ctx context.Context, c *messages.Call, a *messages.Answer) error {
	ref := a.Ref()
	if ref == "" {
		return nil
	}
	raw, err := h.n.codec.body(ctx, c.Tenant, ref)
	if err != nil {
		return err
	}
	return a.Fill(raw)
}

// unanswered says why a phase did not run. A call whose time is over says so where nobody serves the stage.
func (h *hops) unanswered(ctx context.Context, c *messages.Call, s pipeline.Stage, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) || h.n.opts.hosts(s) {
		return err
	}
	h.owner.Lock()
	served := len(h.n.owns.Presence.Members(groupOf(c.Kind, s.Name))) > 0
	h.owner.Unlock()
	if served {
		return err
	}
	return messages.NewFault(messages.StageAbsent, "no worker serves stage %s of the %s chain; the call waited for one "+
		"until its deadline; start one with: worker --stages %s", s.Name, c.Kind, s.Name).From(s.Name)
}

// changed reads anew who serves the stages. The owner's lock is held.
func (h *hops) changed() {
	for _, s := range h.n.opts.Manager.Stages("") {
		group := groupOf(s.Kind, s.Name)
		h.served[group] = len(h.n.owns.Presence.Members(group)) > 0
		if h.n.opts.hosts(s.Stage) {
			h.elsewhere[group] = h.n.owns.Presence.Others(group)
		}
	}
}
