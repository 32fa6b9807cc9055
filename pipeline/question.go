package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// If a phase runs in another process, Ask, Run and Apply replace Step: the owner of the call asks, a member runs the
// phase on the part of the call that the question shows, and the owner judges the answer and moves the call on. The
// result is that of Step, as long as Reads declares everything that the stage reads.

// Reads that are not fields of a body.
const (
	// ReadCall is the route with what ran and how long it took: Slip.Stops, Slip.Path, tallies.
	ReadCall = "call"
	// ReadKept is the request as it was when the call passed the stage.
	ReadKept = "kept"
)

// carry says what the question for a phase contains. A stage that declares a part of a body gets the whole body.
func (s Stage) carry(phase messages.Phase) messages.Carry {
	if s.Blind {
		return messages.Carry{}
	}
	fields := s.Reads
	if phase == messages.After && len(s.ReadsAfter) > 0 {
		fields = s.ReadsAfter
	}
	reads := func(of func(field string) bool) bool { return slices.ContainsFunc(fields, of) }
	return messages.Carry{
		Request: reads(func(f string) bool { return within(f, messages.RequestBody) }),
		Reply:   reads(isReply),
		Kept:    slices.Contains(fields, ReadKept),
		Slip:    slices.Contains(fields, ReadCall),
	}
}

// Ask writes the question for the phase that the call's slip names; s is that stage, as the owner knows it. The owner
// stops waiting at until; the zero time means never. Ask does not change the call.
func Ask(s Stage, c *messages.Call, until time.Time) ([]byte, error) {
	_, phase := c.Slip.Stage()
	return c.Ask(s.carry(phase), until)
}

// Run runs the phase that a question asks for, on the question's call, and returns the answer. member names this
// process. It is the member's half of [Step]: it does not judge the verdict, and a panic becomes an error like any
// other.
func Run(ctx context.Context, s Stage, q *messages.Question, member string) *messages.Answer {
	p := perform(ctx, s, q.Call)
	if raw := p.verdict.question; p.err == nil && raw != nil && !json.Valid(raw) {
		_, p.err = refuse(s, "the question of its Hold is not JSON")
	}
	a := q.Answer(p.err == nil || !q.Call.Slip.Back)
	a.Member, a.Took, a.Verdict, a.Target = member, p.took, p.verdict.String(), p.verdict.target
	if p.verdict.kind == hold {
		a.Expires, a.Question = p.verdict.delay, p.verdict.question
	} else {
		a.Delay = p.verdict.delay
	}
	if p.verdict.request != nil {
		a.With(p.verdict.request)
	}
	a.Error = thrown(p)
	return a
}

// thrown returns the error of a phase in the form in which it travels; nil if there is none.
func thrown(p performed) *messages.Thrown {
	if p.err == nil {
		return nil
	}
	t := &messages.Thrown{Text: p.err.Error(), Over: p.over, Stack: p.stack}
	if own, ok := errors.AsType[*failure](p.err); ok {
		t.Open, t.Closed = own.open, !own.open
	}
	if gone, ok := errors.AsType[*Absent](p.err); ok {
		t.Absent = gone.Subject
	}
	if f, ok := errors.AsType[*messages.Fault](p.err); ok {
		t.Fault = f
	}
	return t
}

// told is an error from a member. It has the same text as there, and unwraps to the errors that the owner checks for.
type told struct {
	text  string
	cause error
}

func (t *told) Error() string { return t.text }

func (t *told) Unwrap() error { return t.cause }

// thrownAgain makes the error of an answer look as if the phase had returned it in this process.
func thrownAgain(stage string, t *messages.Thrown) error {
	e := &told{text: t.Text}
	switch {
	case t.Absent != "":
		e.cause = &Absent{Stage: stage, Subject: t.Absent}
	case t.Fault != nil:
		e.cause = t.Fault
	}
	switch {
	case t.Open:
		return Open(e)
	case t.Closed:
		return Closed(e)
	}
	return e
}

// Apply applies an answer to the call that the question was about: it judges the verdict and moves the call on, as
// [Step] does. The call must not have changed since Ask. An answer that does not fit the call fails the stage. The
// error of a member whose phase is absent is in the report, as from Step.
func Apply(s Stage, c *messages.Call, a *messages.Answer) (Next, Report) {
	was := outcome(c)
	p := performed{took: max(a.Took, 0)}
	if err := a.Apply(c); err != nil {
		p.err = Closed(messages.NewFault(messages.StageError,
			"stage %s: the answer of its member %q cannot be used: %v", s.Name, a.Member, err))
		return finishOf(a.Member, s, c, was, p)
	}
	if a.Error != nil {
		p.err, p.over, p.stack = thrownAgain(s.Name, a.Error), a.Error.Over, a.Error.Stack
	} else {
		p.verdict = verdictOf(a)
	}
	return finishOf(a.Member, s, c, was, p)
}

// finishOf is finish for a phase that a member ran.
func finishOf(member string, s Stage, c *messages.Call, was messages.Outcome, p performed) (Next, Report) {
	next, r := finish(s, c, was, p)
	r.Member = member
	return next, r
}

// verdictOf returns the verdict that an answer names; for an unknown name the zero verdict, which judge refuses.
func verdictOf(a *messages.Answer) (v Verdict) {
	kind := verdictKind(max(0, slices.Index(verdictNames[:], a.Verdict)))
	if kind == failed {
		return v
	}
	v = Verdict{kind: kind, delay: a.Delay, question: a.Question, target: a.Target}
	if kind == hold {
		v.delay = a.Expires
	}
	v.request = a.Request()
	return v
}
