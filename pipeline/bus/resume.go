package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// what says in one word what was decided, if the answer has one.
func (d Decided) what() string {
	if d.Fault != nil {
		return string(d.Fault.Code)
	}
	if s, ok := rawjson.FieldString(d.Answer, "decision"); ok {
		return s
	}
	s, _ := rawjson.IsString(d.Answer)
	return s
}

// ran says whether the target was asked: an after may hold a call too, with the result in its hands.
func (p Parked) ran() string {
	if p.Ran {
		return fmt.Sprintf("the %s had run before, and its result is not given out", p.Kind)
	}
	return "it was not run"
}

func withdrawn(p Parked) *messages.Fault {
	what := "waited for an answer at stage " + p.Stage + "; " + p.ran()
	switch {
	case p.Delayed:
		what = "waited for another attempt"
	case p.Kind == messages.Agent:
		what = "waited for an answer; what it has done is kept"
	}
	return messages.NewFault(messages.Cancelled, "the caller cancelled while the call %s", what).From("caller")
}

func expired(p Parked) *messages.Fault {
	return messages.NewFault(messages.Blocked, "nobody decided about the call in %s (from %s to %s), so it ended at "+
		"stage %s; %s",
		p.Expires.Sub(p.Since).Round(time.Millisecond), p.Since.Format(time.RFC3339), p.Expires.Format(time.RFC3339),
		p.Stage, p.ran()).From(p.Stage)
}

// settle writes what became of a question into its record, if nothing has been decided yet (ErrChanged), and has the
// call go on.
func (h *holds) settle(ctx context.Context, p *Parked, rev uint64, wire []byte, d Decided) error {
	d.At = time.Now().UTC()
	p.Decided = &d
	began := time.Now()
	_, err := h.store.Put(ctx, messages.Key(p.Tenant, p.Call), parkedRecord(*p, wire), 0, pipeline.IfRevision(rev))
	if err != nil {
		return err
	}
	if !p.Delayed {
		h.tell("answered", *p)
	}
	if err := h.resume(ctx, *p, wire, time.Since(began) < soon/2); err != nil {
		h.log.Warn("a decision was not carried out yet; that is done in a few seconds", "call", p.Call, "err", err)
	}
	return nil
}

// resume puts a decided call into the queue again, as its next generation and with the time that it had left. It may be
// done twice: a second copy finds the first one's owner, or its end. first says that this process has just written the
// decision: others who find it wait before they do the same.
func (h *holds) resume(ctx context.Context, p Parked, wire []byte, first bool) error {
	c, err := messages.Unmarshal(wire)
	if err != nil {
		return fmt.Errorf("held call %s: %w", p.Call, err)
	}
	if err := h.unshelve(ctx, c); err != nil {
		return err
	}
	switch f := p.Decided.Fault; {
	case p.Delayed && f != nil:
		turnHere(c, f)
	case p.Delayed: // it goes on where it is, as if it had waited in its process
	case f == nil:
		c.Note(messages.NoteAnswer, p.Decided.Answer)
	case c.Slip.AtTarget() && f.Code != messages.Cancelled: // the target decides what follows from it
		c.Note(messages.NoteUnanswered, pipeline.Unanswered{Question: p.Question, Fault: f})
	default:
		pipeline.FailHold(c, f)
	}
	if !p.Delayed {
		c.Deadline = time.Now().UTC().Add(p.Left + lookUpTime)
		if err := h.keys.keep(ctx, c, false); err != nil {
			return err
		}
	}
	c.Generation = p.Generation + 1
	data, err := c.Marshal()
	if err != nil {
		return err
	}
	done := h.queue.ready(callMessage(h.subject(c), c, data))
	time.AfterFunc(time.Until(time.Now().Add(resumeTime)), done)
	h.decide(func(o *protocol.Owner, t time.Duration, out []protocol.Effect) []protocol.Effect {
		return o.Resumes.Resume(t, p.Call, p.Generation, first, out)
	})
	return nil
}

// lookUpTime is what it takes at most to find out that no other owner has a resumed call: right after a start all are
// given time to come back. It is not the call's own time, of which there may be less.
const lookUpTime = 5 * time.Second

// resumeTime is how long a resumed call is tried to be put into the queue by the process that resumed it. Then whoever
// sweeps next tries.
const resumeTime = 20 * time.Second

// resumed notes that a call is in the queue again, so that nobody puts it there once more.
func (h *holds) resumed(call string, generation uint64) {
	subject := kvSubject(jet.ApprovalsBucket, "*."+messages.Token(call))
	h.records.last("KV_"+jet.ApprovalsBucket, subject, func(f found) {
		if f.result != protocol.OK {
			return
		}
		p, wire, err := readParked(f.data)
		if err != nil || p.Call != call || p.Generation != generation || p.Decided == nil || p.Resumed {
			return
		}
		p.Resumed = true
		h.records.update(jet.ApprovalsBucket, messages.Key(p.Tenant, p.Call), parkedRecord(p, wire), f.rev, func(found) {})
	})
}

// decidedKey is what is remembered of a decision, as long as a result. The tenant stands in the value.
func decidedKey(id string) string { return messages.Key(id, "decided") }

// ended clears the record of a hold away whose call has ended. What was decided is remembered as long as the result.
func (h *holds) ended(ctx context.Context, p Parked, rev uint64) error {
	if p.Decided != nil && !p.Delayed {
		if _, err := h.results.Put(ctx, decidedKey(p.Call), rawjson.Encode(p), 0, pipeline.Always()); err != nil {
			return err
		}
	}
	return h.store.Clear(ctx, messages.Key(p.Tenant, p.Call), rev)
}

// lookAfter ends the question of a call whose time is over or that was cancelled, carries out a decision that its
// process did not live to carry out, and clears away what has ended. Of several processes that do it at once one is
// first; the others find that. It returns when to look again; the zero time is never.
func (h *holds) lookAfter(ctx context.Context, key string, cancelled func(id string) bool) (time.Time, error) {
	p, e, wire, err := h.read(ctx, key)
	switch {
	case errors.Is(err, pipeline.ErrNotFound):
		return time.Time{}, nil
	case err != nil:
		return time.Now().Add(soon), err
	}
	switch _, err := h.results.Get(ctx, messages.Key(p.Tenant, p.Call)); {
	case err == nil:
		return time.Time{}, h.ended(ctx, p, e.Revision)
	case !errors.Is(err, pipeline.ErrNotFound):
		return time.Now().Add(soon), err
	}
	switch {
	case p.Resumed:
		return time.Now().Add(max(time.Until(p.Decided.At.Add(p.Left)), time.Minute)), nil
	case p.Decided != nil:
		return time.Now().Add(soon), h.resume(ctx, p, wire, false)
	case cancelled(p.Call):
		return time.Now().Add(soon), h.settle(ctx, &p, e.Revision, wire, Decided{By: "the caller", Fault: withdrawn(p)})
	case p.Awaits != "" && h.hasEnded(ctx, p.Tenant, p.Awaits):
		return time.Now().Add(soon), h.settle(ctx, &p, e.Revision, wire, Decided{By: "the end of call " + p.Awaits})
	case p.Delayed && !time.Now().Before(p.Expires):
		return time.Now().Add(soon), h.settle(ctx, &p, e.Revision, wire, Decided{By: "the clock"})
	case !time.Now().Before(p.Expires):
		return time.Now().Add(soon), h.settle(ctx, &p, e.Revision, wire, Decided{By: "nobody", Fault: expired(p)})
	}
	return p.Expires, nil
}

// hasEnded reports whether the end of a call is stored. If that cannot be read, it is looked for again later.
func (h *holds) hasEnded(ctx context.Context, tenant, call string) bool {
	_, err := h.results.Get(ctx, messages.Key(tenant, call))
	return err == nil
}

// tell tells whoever listens what became of a call, without the question and the answer: they hold arguments.
func (h *holds) tell(what string, p Parked) {
	type event struct {
		Call     string        `json:"call"`
		Tenant   string        `json:"tenant"`
		Kind     messages.Kind `json:"kind"`
		Tool     string        `json:"tool,omitempty"`
		Stage    string        `json:"stage"`
		Since    time.Time     `json:"since"`
		Expires  time.Time     `json:"expires"`
		Decision string        `json:"decision,omitempty"`
		By       string        `json:"by,omitempty"`
		At       time.Time     `json:"at,omitzero"`
	}
	e := event{Call: p.Call, Tenant: p.Tenant, Kind: p.Kind, Tool: p.Tool, Stage: p.Stage, Since: p.Since,
		Expires: p.Expires}
	if d := p.Decided; d != nil {
		e.Decision, e.By, e.At = d.what(), d.By, d.At
	}
	subject := h.subj.Event(what, string(p.Kind), messages.Token(p.Stage))
	_ = h.nc.PublishMsg(&nats.Msg{Subject: subject, Data: rawjson.Encode(e)})
}
