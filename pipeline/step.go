package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// Start takes a call whose slip is set to its first place.
func Start(c *messages.Call) Next {
	var next Next
	c.Slip, next = Enter(c.Slip)
	keep(c, next)
	return next
}

// Step runs the phase that the call's slip names and moves the call on. The stage must be the one that the slip names.
// A panic becomes a stage_error like any other error, so no stage can take its process down; the stack is in the
// returned report. Step changes c; only one goroutine at a time may call it for one call.
func Step(ctx context.Context, s Stage, c *messages.Call) (Next, Report) {
	was := outcome(c)
	return finish(s, c, was, perform(ctx, s, c))
}

// StepPresent is [Step], but for a stage whose work is done by a program elsewhere that does not run: nothing has been
// done then, the call is where it was, and gone says what is missing.
func StepPresent(ctx context.Context, s Stage, c *messages.Call) (next Next, r Report, gone *Absent) {
	was := outcome(c)
	p := perform(ctx, s, c)
	if gone, ok := errors.AsType[*Absent](p.err); ok {
		return next, r, gone
	}
	next, r = finish(s, c, was, p)
	return next, r, nil
}

// outcome takes a snapshot of the call's outcome before an after, to restore it if the after fails.
func outcome(c *messages.Call) (was messages.Outcome) {
	if c.Slip.Back {
		was = c.Outcome()
	}
	return was
}

// performed is the result of running a phase, before it is judged.
type performed struct {
	verdict Verdict
	err     error
	// over is set where err says only that the call ran out of time or was cancelled: it is the code for that.
	over  messages.Code
	took  time.Duration
	stack string // of a panic
}

// perform runs the phase that the call's slip names. It is the half of a step that a member does.
func perform(ctx context.Context, s Stage, c *messages.Call) (p performed) {
	run := s.Before
	if _, phase := c.Slip.Stage(); phase == messages.After {
		run = s.After
	}
	begin, do := time.Now(), guard
	if c.Run != "" {
		do = billed
	}
	p.verdict, p.stack, p.err = do(ctx, run, c)
	p.took = time.Since(begin)
	p.over = over(ctx, p.err)
	return p
}

// finish judges the result of a phase, applies it to the call and moves the call on. It is the half of a step that the
// owner does; was is the call's outcome before the phase.
func finish(s Stage, c *messages.Call, was messages.Outcome, p performed) (Next, Report) {
	name, phase := c.Slip.Stage()
	r := Report{Stage: name, Phase: phase, Attempt: c.Attempt(), Took: p.took, Stack: p.stack}
	v, err := judge(s, phase, c, p.verdict, p.err)
	own, marked := errors.AsType[*failure](p.err)
	if marked && own.open && phase == messages.Before {
		v = Continue()
	}
	if phase == messages.After && v.kind == goOn && was.Ended() && !c.HasReply() && c.Fault == nil {
		v, err = refuse(s, "after took the reply away and left no fault; set one of them")
	}
	if phase == messages.After && err != nil {
		c.Reset(was)
	}
	r.Verdict, r.Err = v, err
	text := ""
	if err != nil {
		text = err.Error()
	}
	c.Slip.Spend(r.Took, text)
	c.Slip.Path = append(c.Slip.Path, pathName(c.Kind, name, phase))
	if !marked || !own.open {
		applyVerdict(s, phase, c, v, stageFault(s.Name, phase, err, p.over), p.err == nil || marked)
	}
	r.Question = v.question
	next := move(c, v)
	if next.Where == ToHold {
		next.Question, next.Expires = v.question, cmp.Or(max(v.delay, 0), HoldTime)
	}
	return next, r
}

// Report says what one step did, for logs, traces and events.
type Report struct {
	Stage    string
	Phase    messages.Phase
	Attempt  int
	Member   string // who ran it; empty for this process
	Verdict  Verdict
	Err      error
	Took     time.Duration
	Stack    string // of a panic
	Question []byte // of a Hold
}

// pathName is a hop's name in Slip.Path: model hops end in beforeModel or afterModel, others in before or after.
func pathName(kind messages.Kind, stage string, phase messages.Phase) string {
	switch kind {
	case messages.Model:
		return stage + "." + string(phase) + "Model"
	case messages.Tool:
		return stage + "." + string(phase) + "Tool"
	}
	return stage + "." + string(phase)
}

func guard(ctx context.Context, run Func, c *messages.Call) (v Verdict, stack string, err error) {
	defer func() {
		if p := recover(); p != nil {
			stack = string(debug.Stack())
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	if run == nil {
		return Verdict{}, "", errors.New("the slip names a phase that the stage does not have")
	}
	v, err = run(ctx, c)
	return v, "", err
}

// judge refuses verdicts that the phase may not return, and turns a Jump of a bare call into Answer or Stop.
func judge(s Stage, phase messages.Phase, c *messages.Call, v Verdict, err error) (Verdict, error) {
	if err != nil {
		return Verdict{kind: failed}, err
	}
	expected := "Continue, Answer, Stop, Hold or Jump"
	if phase == messages.After {
		expected = "Continue, Again, Hold or Jump"
	}
	if v.kind == jump {
		return judgeJump(s, phase, c, v)
	}
	switch v.kind {
	case goOn, hold:
		return v, nil
	case answer:
		if phase == messages.Before && c.HasReply() {
			return v, nil
		}
		if phase == messages.Before {
			return refuse(s, "verdict Answer without a reply")
		}
	case stop:
		if phase == messages.Before {
			return v, nil
		}
	case again:
		if phase == messages.After && s.Keep && c.Flag(messages.NoteStreamShown) {
			return Continue(), nil // the caller has seen a part of this result: it must not be made again
		}
		if phase == messages.After && s.Keep && c.Slip.Spent() {
			return Continue(), nil // the target has run as often as it may: its last result stands
		}
		if phase == messages.After && s.Keep {
			return v, nil
		}
		if phase == messages.After {
			return refuse(s, "verdict Again, but the stage does not declare that it keeps the request")
		}
	}
	return refuse(s, "verdict %s from %s; expected %s", v, phase, expected)
}

func refuse(s Stage, format string, args ...any) (Verdict, error) {
	return Verdict{kind: failed}, messages.NewFault(messages.StageError, "stage "+s.Name+": "+format,
		args...).From(s.Name)
}

// applyVerdict writes what the verdict means for fault, reply and notes. f is the fault of the phase's error, if there
// was one; refused says that the error comes from judge, not from the stage.
func applyVerdict(s Stage, phase messages.Phase, c *messages.Call, v Verdict, f *messages.Fault, refused bool) {
	switch {
	case f != nil && phase == messages.Before:
		c.Fail(f)
		c.Note(messages.NoteStopper, s.Name)
	case f != nil:
		if c.Fault == nil && (s.FailClosed || refused) {
			c.Fail(f)
		}
	case v.kind == stop:
		c.Fail(messages.NewFault(messages.Stopped, "stage %s stopped the call", s.Name).From(s.Name))
		c.Note(messages.NoteStopper, s.Name)
	case v.kind == answer:
		c.Fault = nil
		c.Note(messages.NoteStopper, s.Name)
	case v.kind == again:
		c.Restore(s.Name)
		c.Unnote(messages.NoteStopper) // the stage that ended the last attempt did not end this one
		c.Unnote(messages.NoteJumpTo)
		if v.request != nil {
			c.SetRequest(v.request)
		}
	}
}

// stageFault is the fault of a stage's error; nil if there is none. Its origin is the stage, whatever caused the error:
// if a stage's own nested call failed, this call's target has not failed.
func stageFault(stage string, phase messages.Phase, err error, over messages.Code) *messages.Fault {
	switch {
	case err == nil:
		return nil
	case over != "":
		return overFault(over, string(phase)+" of stage "+stage)
	}
	f := messages.AsFault(err, stage)
	f.Origin = stage
	return f
}

// over returns the code of an err that only reports the end of the call's own context; empty for any other.
func over(ctx context.Context, err error) messages.Code {
	if err == nil || ctx.Err() == nil {
		return ""
	}
	if _, ok := errors.AsType[*messages.Fault](err); ok {
		return ""
	}
	switch {
	case !errors.Is(err, ctx.Err()) && !errors.Is(err, context.Cause(ctx)):
		return ""
	case ctx.Err() == context.DeadlineExceeded:
		return messages.DeadlineExceeded
	}
	return messages.Cancelled
}

// overFault makes the fault of a call that ran out of time or was cancelled at the given place.
func overFault(code messages.Code, where string) *messages.Fault {
	if code == messages.DeadlineExceeded {
		return messages.NewFault(code, "the call's time was over at %s", where).From("deadline")
	}
	return messages.NewFault(messages.Cancelled, "the caller cancelled while the call was at %s", where).From("caller")
}

func move(c *messages.Call, v Verdict) Next {
	var next Next
	c.Slip, next = advance(c.Slip, v)
	keep(c, next)
	for _, stop := range c.Slip.Stops {
		if _, open := c.Slip.Frame(stop.Name); stop.Keep && !open {
			c.Forget(stop.Name) // the stage can no longer say Again, so the body need not travel on
		}
	}
	if next.Loop {
		c.Fail(messages.NewFault(messages.Internal, "the call passed a bound (%d attempts of one stage, %d hops); "+
			"it ends here: some stage asks for another attempt whatever comes back", MaxAttempts,
			MaxHops).From("pipeline"))
	}
	return next
}

func keep(c *messages.Call, next Next) {
	for _, stage := range next.Passed {
		c.Keep(stage)
	}
}

// RunTarget runs the target of a call that is at its target, and turns the call round. A target that suspends
// ([Suspend]) leaves the call where it is, to be held. Faults of the target carry the
// origin "target"; a panic is the fault internal.
func RunTarget(ctx context.Context, t Target, c *messages.Call, emit Emit) Next {
	c.Note(messages.NoteExecutorReached, true)
	c.Unnote(messages.NoteSuspended)
	c.Slip.Tries++
	c.Slip.Path = append(c.Slip.Path, string(c.Kind))
	if err := guardTarget(ctx, t, c, emit); err != nil {
		c.Fail(targetFault(ctx, c, err))
	} else if c.Fault != nil && c.Fault.Origin == "" {
		c.Fault.Origin = messages.TargetOrigin
	} else if next, ok := suspended(c); ok {
		return next
	} else if !c.HasReply() && c.Fault == nil {
		c.Fail(messages.NewFault(messages.Internal, "the %s gave neither a reply nor a fault",
			c.Kind).From(messages.TargetOrigin))
	}
	unsuspend(c)
	return move(c, Continue())
}

// TurnBack turns a call round at its target without running it; f says why.
func TurnBack(c *messages.Call, f *messages.Fault) Next {
	c.Fail(f)
	return move(c, Continue())
}

// FailHold ends the hold of a call that was not answered: the call goes on as if the phase that held it had failed with
// f.
func FailHold(c *messages.Call, f *messages.Fault) Next {
	name, phase := c.Slip.Stage()
	if f.Origin == "" {
		f.Origin = name
	}
	c.Fail(f)
	if phase == messages.Before {
		c.Note(messages.NoteStopper, name)
	}
	return move(c, Verdict{kind: failed})
}

func targetFault(ctx context.Context, c *messages.Call, err error) *messages.Fault {
	if f, ok := errors.AsType[*messages.Fault](err); ok {
		g := *f
		if g.Origin == "" {
			g.Origin = messages.TargetOrigin
		}
		return &g
	}
	if code := over(ctx, err); code != "" {
		return overFault(code, "the "+string(c.Kind))
	}
	switch {
	case errors.Is(context.Cause(ctx), ErrCancelled):
		return messages.NewFault(messages.Cancelled, "the caller cancelled while the %s ran", c.Kind).From("caller")
	case errors.Is(err, context.DeadlineExceeded):
		return messages.NewFault(messages.DeadlineExceeded, "the call's time was over while the %s ran",
			c.Kind).From("deadline")
	}
	return messages.NewFault(messages.Internal, "%s: %v", c.Kind, err).From(messages.TargetOrigin)
}

// ErrCancelled is the cause of a context that ended because the caller left or cancelled.
var ErrCancelled = errors.New("cancelled by the caller")

func guardTarget(ctx context.Context, t Target, c *messages.Call, emit Emit) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = messages.NewFault(messages.Internal, "the %s panicked: %v", c.Kind, p).From(messages.TargetOrigin)
		}
	}()
	return t.Do(ctx, c, emit)
}

// Resume reads from the slip where a stored call goes next. It does not change the call.
func Resume(c *messages.Call) Next {
	switch {
	case c.Slip.Done():
		return Next{Where: ToReply}
	case c.Slip.AtTarget():
		return Next{Where: ToTarget}
	default:
		return Next{Where: ToStage}
	}
}

// Skip passes the next stage without running it, for stages that no process serves and that may be skipped. Neither of
// its phases runs for this call.
func Skip(c *messages.Call) Next {
	name, phase := c.Slip.Stage()
	if name == "" {
		return Resume(c)
	}
	c.Slip.Path = append(c.Slip.Path, pathName(c.Kind, name, phase)+"(skipped)")
	c.Slip.Stops = slices.Clone(c.Slip.Stops)
	c.Slip.Stops[c.Slip.At].After = false
	return move(c, Continue())
}
