package bus

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// addStages subscribes to the phases of the stages that this process hosts: one queue group a stage and phase, and one
// pull consumer for each durable phase.
func (n *Node) addStages() {
	for _, s := range n.opts.Manager.Stages("") {
		if n.opts.Hosts != nil && !n.opts.Hosts(s.Stage) {
			continue
		}
		for _, phase := range []messages.Phase{messages.Before, messages.After} {
			if phase == messages.Before && s.Before == nil || phase == messages.After && s.After == nil {
				continue
			}
			name := strings.Join([]string{string(s.Kind), string(phase), s.Name}, ".")
			subject := n.subj.Hop(s.Kind, phase, s.Name)
			n.stats.endpoint(name, subject, s.Name)
			n.subscribed("hop."+name, subject, &hopSubscriber{
				nc: n.nc, group: s.Name, slots: make(slots, n.opts.StageSlots), limit: 64 * n.cfg.InFlight,
				onArrive: n.arriveHop, log: n.log,
			}, func(m *message.Message) error { n.handleHop(m, s.Stage, name); return nil })
			if s.Durable {
				n.subscribed("stage."+name, durableName(s.Kind, phase, s.Name), &pullSubscriber{
					js: n.js, stream: jet.HopsStream, slots: make(slots, n.opts.StageSlots), onArrive: n.arriveStored, log: n.log,
				}, func(m *message.Message) error { n.handleHop(m, s.Stage, name); return nil })
			}
		}
	}
}

func durableName(kind messages.Kind, phase messages.Phase, stage string) string {
	return "stage-" + string(kind) + "-" + string(phase) + "-" + messages.Token(stage)
}

// hosted returns the stage if this process runs it.
func (n *Node) hosted(kind messages.Kind, name string) (pipeline.Stage, bool) {
	s, ok := n.opts.Manager.Get(kind, name)
	if !ok || n.opts.Hosts != nil && !n.opts.Hosts(s.Stage) {
		return pipeline.Stage{}, false
	}
	return s.Stage, true
}

// arriveHop marks the lease of a core hop from the moment that it is here, and drops a hop that is first read after
// its lease's time: the call has come again elsewhere by then.
func (n *Node) arriveHop(m *nats.Msg) (leave func(), ok bool) {
	until, err := time.Parse(time.RFC3339Nano, m.Header.Get(hdrUntil))
	if err == nil && time.Now().After(until) {
		n.stats.late.Add(1)
		return nil, false
	}
	l, lerr := ParseLease(m.Header.Get(hdrLease))
	if lerr != nil || err != nil {
		return func() {}, true // handled, and dead-lettered, by take
	}
	return n.marker.enter(l, until.Add(-n.cfg.AckWait), deadlineOf(m)), true
}

// arriveStored marks the lease of a stored message.
func (n *Node) arriveStored(m *nats.Msg) (leave func(), ok bool) {
	l, err := ParseLease(m.Reply)
	if err != nil {
		n.log.Error("a stored message came without a lease of ours", "subject", m.Subject, "err", err)
		return nil, false
	}
	return n.marker.enter(l, time.Now(), deadlineOf(m)), true
}

func deadlineOf(m *nats.Msg) time.Time {
	t, _ := time.Parse(time.RFC3339Nano, m.Header.Get(hdrDeadline))
	return t
}

// leaseOf is the ack subject that came with a message: its own if it was pulled, else the one that the hop names. What
// a hop's reply subject looks like says nothing: any sender can write an ack subject there (lease.md B7).
func leaseOf(m *message.Message) string {
	if m.Metadata.Get(metaStored) != "" {
		return m.Metadata.Get(metaReply)
	}
	return m.Metadata.Get(hdrLease)
}

// take turns a message into a held call, or ends it: garbage and poison become dead letters.
func (n *Node) take(m *message.Message) (*held, bool) {
	ack := leaseOf(m)
	stored := m.Metadata.Get(metaStored) != ""
	arrived, _ := time.Parse(time.RFC3339Nano, m.Metadata.Get(metaArrived))
	fresh := arrived
	if until, err := time.Parse(time.RFC3339Nano, m.Metadata.Get(hdrUntil)); err == nil && !stored {
		fresh = until.Add(-n.cfg.AckWait)
	}
	lease, err := ParseLease(ack)
	if err != nil {
		n.bury(m, nil, "no lease: "+err.Error())
		return nil, false
	}
	if lease.Delivered > 2 && !n.mayTry(m, lease, stored) {
		return nil, false
	}
	c, err := n.codec.decode(m.Payload)
	if err != nil {
		// A lease named by a core hop may be another call's; only a stored message's own is ended for garbage.
		var own *Lease
		if stored {
			own = &lease
		}
		n.bury(m, own, err.Error())
		return nil, false
	}
	for _, at := range []*string{&c.Return.Inbox, &c.Return.Caller} { // one that is not used says nothing about the other
		if *at != "" && !n.inboxAllowed(*at) {
			n.log.Warn("a call names a reply address outside the allowed prefixes; it is not used", "call", c.ID)
			*at = ""
		}
	}
	if c.Deadline.IsZero() { // nobody of ours makes one; it would wait for an absent stage for ever
		c.Deadline = arrived.Add(n.maxTime(pipeline.Request{Kind: c.Kind, Tool: c.Tool}))
	}
	return &held{c: c, lease: lease, fresh: fresh}, true
}

func (n *Node) handleHop(m *message.Message, s pipeline.Stage, endpoint string) {
	h, ok := n.take(m)
	if !ok {
		return
	}
	name, phase := h.c.Slip.Stage()
	if want := strings.Join([]string{string(h.c.Kind), string(phase), name}, "."); want != endpoint {
		var own *Lease
		if m.Metadata.Get(metaStored) != "" {
			own = &h.lease
		}
		n.bury(m, own, "a call for "+want+" came to "+endpoint)
		return
	}
	if n.draining.Load() {
		n.handBack(h)
		return
	}
	if next, done := n.runStage(h, s); !done {
		n.forward(h, next)
	}
}

// runStage runs the phase that the slip names. done means that the call has been handed back, not moved.
func (n *Node) runStage(h *held, s pipeline.Stage) (next pipeline.Next, done bool) {
	before := h.c.Clone()
	ctx, leave := n.cancels.enter(h.c)
	defer leave()
	if !s.Blind {
		if err := n.codec.fill(ctx, h.c); err != nil {
			n.fail(h, err)
			return next, true
		}
	}
	h.c.Unnote(messages.NoteWaiting)
	next, r := pipeline.Step(ctx, s, h.c)
	if errors.Is(context.Cause(ctx), errHandBack) && r.Err != nil {
		h.c = before
		n.handBack(h)
		return next, true
	}
	if gone, ok := errors.AsType[*pipeline.Absent](r.Err); ok {
		h.c = before
		n.absent(h, gone.Subject)
		return next, true
	}
	if next.Where != pipeline.ToHold {
		h.c.Unnote(messages.NoteAnswer) // it is for the phase that asked
	}
	n.report(h, r)
	return next, false
}

// report counts a step, logs what went wrong, and tells whoever listens.
func (n *Node) report(h *held, r pipeline.Report) {
	endpoint := strings.Join([]string{string(h.c.Kind), string(r.Phase), r.Stage}, ".")
	n.stats.step(endpoint, r.Took, r.Err, h.lease.Delivered > 1)
	if r.Err != nil {
		n.log.Warn("stage failed", "call", h.c.ID, "stage", r.Stage, "phase", r.Phase, "attempt", r.Attempt, "err", r.Err, "stack", r.Stack)
	}
	type event struct {
		Call    string `json:"call"`
		Tenant  string `json:"tenant"`
		Stage   string `json:"stage"`
		Phase   string `json:"phase"`
		Attempt int    `json:"attempt"`
		Verdict string `json:"verdict"`
		Error   string `json:"error,omitempty"`
		Micros  int64  `json:"us"`
	}
	e := event{h.c.ID, h.c.Tenant, r.Stage, string(r.Phase), r.Attempt, r.Verdict.String(), "", r.Took.Microseconds()}
	if r.Err != nil {
		e.Error = r.Err.Error()
	}
	_ = n.nc.Publish(n.subj.Event("hop", string(h.c.Kind), string(r.Phase), messages.Token(r.Stage)), rawjson.Encode(e))
}

// handBack stores the call again at the same step, so that another process takes it, and settles the lease. The new
// message starts at delivery 1: a rolling restart is no death (design.md section 4).
func (n *Node) handBack(h *held) {
	subject := n.subj.Route(h.c.Kind)
	if h.c.Slip.AtTarget() {
		if class, err := n.classify(h.c); err == nil {
			subject = n.subj.Target(h.c.Kind, class)
		}
	}
	n.stats.handedBack.Add(1)
	n.checkpoint(h, subject)
}
