// Package remotestage makes stages whose work a program elsewhere does: each phase is one question over NATS, in JSON,
// and the answer is a verdict with edits. docs/writing-a-stage.md describes the wire format for authors of such
// programs. The program gets no reply address and no credentials; the process that hosts the stage asks it.
package remotestage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// The values of OnError; empty means auto.
const (
	Auto     = "auto" // open for optional stages, closed for the others
	OpenErr  = "open"
	CloseErr = "closed"
)

// Spec is a remote stage as the configuration describes it.
type Spec struct {
	Name    string
	Kind    messages.Kind
	Order   int
	Tier    pipeline.Tier
	Phases  []messages.Phase // empty: both
	Subject string
	// Timeout is the time limit of one answer; the call's deadline may be sooner.
	Timeout time.Duration
	// Tries is how often a question is asked while no answer comes in time; 0 means once.
	Tries      int
	SkipAbsent bool
	// OnError says what happens to a call if the program cannot be asked or does not answer in time.
	OnError string
	// Again says that the after may ask for another attempt; Jumps lists the targets that the program may jump to.
	Again bool
	Jumps []string
	// ApplyTo and Finally are those of pipeline.Stage.
	ApplyTo []string
	Finally bool
	// Reads says which bodies are sent: request and reply, or parts of them; empty: both. Writes are the fields that an
	// answer may change.
	Reads, Writes []string
}

// stage is the adapter of one spec.
type stage struct {
	Spec
	ask    pipeline.Requester
	log    *slog.Logger
	reads  map[string]bool // bodies that are sent
	counts struct{ asked, absent, failed, invalid atomic.Int64 }
	warned atomic.Int64 // when the absence was last logged
}

// Stage makes the pipeline's stage of a spec. It does not check the spec.
func Stage(s Spec, ask pipeline.Requester, log *slog.Logger) pipeline.Stage {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	r := &stage{Spec: s, ask: ask, log: log.With("stage", s.Name, "kind", s.Kind, "subject", s.Subject),
		reads: map[string]bool{}}
	for _, body := range []string{messages.RequestBody, messages.ReplyBody} {
		r.reads[body] = len(s.Reads) == 0 || slices.ContainsFunc(s.Reads, func(f string) bool {
			return within(f, body)
		})
	}
	writes := func(body string) bool {
		return slices.ContainsFunc(s.Writes, func(f string) bool { return within(f, body) })
	}
	out := pipeline.Stage{
		Name: s.Name, Kind: s.Kind, Order: s.Order, Tier: s.Tier, ApplyTo: s.ApplyTo, Keep: s.Again, Jumps: s.Jumps,
		Reads: r.looksAt(), Writes: s.Writes, Finally: s.Finally,
		SkipAbsent: s.SkipAbsent,
		FailClosed: s.OnError == CloseErr || s.OnError != OpenErr && s.Tier != pipeline.Optional,
		Blind: !r.reads[messages.RequestBody] && !r.reads[messages.ReplyBody] && !writes(messages.RequestBody) &&
			!writes(messages.ReplyBody),
		Details: r.details,
	}
	if r.has(messages.Before) {
		out.Before = func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
			return r.run(ctx, c, messages.Before)
		}
	}
	if r.has(messages.After) {
		out.After = func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
			return r.run(ctx, c, messages.After)
		}
		out.Rewrites = writes(messages.ReplyBody)
	}
	return out
}

// looksAt returns what the stage reads: what the spec says, and each body that an answer may change a part of. If the
// spec says nothing, the program gets both bodies.
func (r *stage) looksAt() []string {
	out := slices.Clone(r.Reads)
	for _, body := range []string{messages.RequestBody, messages.ReplyBody} {
		changes := slices.ContainsFunc(r.Writes, func(f string) bool { return within(f, body) })
		if (len(r.Reads) == 0 || changes) && !slices.Contains(out, body) {
			out = append(out, body)
		}
	}
	if r.Again {
		out = append(out, pipeline.ReadKept)
	}
	return out
}

func (r *stage) has(p messages.Phase) bool { return len(r.Phases) == 0 || slices.Contains(r.Phases, p) }

// run asks the program and follows the answer. Only a good answer changes the call. It may run twice for one step.
func (r *stage) run(ctx context.Context, c *messages.Call, phase messages.Phase) (pipeline.Verdict, error) {
	reply, late, err := r.put(ctx, c, phase)
	var f *messages.Fault
	switch {
	case err != nil && ctx.Err() != nil:
		return pipeline.Verdict{}, fmt.Errorf("no answer%s: %w", r.where(), ctx.Err())
	case errors.Is(err, pipeline.ErrNoResponders):
		return pipeline.Verdict{}, r.absent()
	case errors.As(err, &f):
		return pipeline.Verdict{}, r.trouble(c, f)
	case late:
		return pipeline.Verdict{}, r.trouble(c, messages.NewFault(messages.StageError,
			"stage %s: its program gave no answer within %s%s%s; see whether it hangs or has died, or raise the "+
				"stage's timeout", r.Name, r.Timeout, times(r.Tries), r.where()))
	case err != nil:
		return pipeline.Verdict{},
			r.trouble(c, messages.NewFault(messages.StageError, "stage %s: its program could not be asked%s: %v",
				r.Name, r.where(), err))
	}
	failed := reply.ErrorCode != "" || reply.ErrorText != ""
	a, err := decode(reply.Body)
	if (failed || err == nil && a.fault != nil) && over(ctx, c.Deadline) {
		a.note(c)
		// the program knew the deadline
		return pipeline.Verdict{}, fmt.Errorf("its program gave up%s: %w", r.where(), ctx.Err())
	}
	if failed {
		return pipeline.Verdict{}, r.serviceError(c, phase, reply)
	}
	if err != nil {
		return r.bad(phase, err)
	}
	a.note(c)
	if a.fault != nil {
		return pipeline.Verdict{}, r.said(c, phase, a.fault.of(r.Name))
	}
	v, apply, err := r.judge(c, phase, a)
	if err != nil {
		return r.bad(phase, err)
	}
	return v, apply()
}

// put asks the question, up to Tries times with the same key while no answer comes in time. late says that the last one
// was not answered either.
func (r *stage) put(ctx context.Context, c *messages.Call, phase messages.Phase) (reply pipeline.Response, late bool,
	err error) {
	question := r.question(c, phase)
	for try := 1; ; try++ {
		asking, cancel := context.WithTimeout(ctx, r.Timeout)
		r.counts.asked.Add(1)
		reply, err = r.ask.Request(asking, r.Subject, r.header(asking, c, phase), question)
		late = err != nil && asking.Err() != nil
		cancel()
		if !late || ctx.Err() != nil || try >= r.Tries {
			return reply, late, err
		}
	}
}

func times(n int) string {
	if n < 2 {
		return ""
	}
	return fmt.Sprintf(", %d times", n)
}

// clockError is how much later than the call's deadline ctx may end, because its end was told by another process's
// clock.
const clockError = 100 * time.Millisecond

// over reports whether the call's own time is over, even if ctx ends a moment late. The program was told the deadline
// itself. A ctx that ends much later is that of a stage which must see every call.
func over(ctx context.Context, deadline time.Time) bool {
	until, ok := ctx.Deadline()
	now := time.Now()
	if ok && !deadline.IsZero() && !now.Before(deadline) && until.Sub(now) <= clockError || ok && !now.Before(until) {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

// absent is the error of a program that does not run. It is logged only now and then, because every waiting call comes
// here again and again.
func (r *stage) absent() error {
	r.counts.absent.Add(1)
	now, last := time.Now().UnixNano(), r.warned.Load()
	if now-last > int64(10*time.Second) && r.warned.CompareAndSwap(last, now) {
		r.log.Warn("nobody answers for the remote stage; its calls wait, or skip it if on-absent says so")
	}
	return &pipeline.Absent{Stage: r.Name, Subject: r.Subject}
}

// trouble decides what happens to the call if the program cannot be asked or does not answer.
func (r *stage) trouble(c *messages.Call, f *messages.Fault) error {
	r.counts.failed.Add(1)
	if r.open(c) {
		r.log.Warn("the call goes on without the remote stage", "call", c.ID, "err", f)
		return pipeline.Open(f)
	}
	return pipeline.Closed(f)
}

// open reports whether the call goes on without the stage. A stage that a tool names among its mandatory ones is
// mandatory for that call.
func (r *stage) open(c *messages.Call) bool {
	if r.OnError == OpenErr || r.OnError == CloseErr {
		return r.OnError == OpenErr
	}
	at := c.Slip.At
	return r.Tier == pipeline.Optional && (at < 0 || at >= len(c.Slip.Stops) || !c.Slip.Stops[at].Mandatory)
}

// said handles an error that the program itself answered: from before it is the call's fault, as with any stage; from
// after it is only recorded, unless the stage fails closed for this call.
func (r *stage) said(c *messages.Call, phase messages.Phase, err error) error {
	if phase == messages.After && !r.open(c) {
		return pipeline.Closed(err)
	}
	return err
}

// serviceError is the error of a NATS micro service. Its body may be an error answer with one of our fault codes.
func (r *stage) serviceError(c *messages.Call, phase messages.Phase, reply pipeline.Response) error {
	if a, err := decode(reply.Body); err == nil && a.fault != nil {
		a.note(c)
		return r.said(c, phase, a.fault.of(r.Name))
	}
	text := reply.ErrorText
	if text == "" {
		text = "its program failed with code " + reply.ErrorCode
	}
	return r.said(c, phase, errors.New(text))
}

// bad refuses an answer that cannot be followed. It is the call's fault from either phase, because what the program
// meant is unknown.
func (r *stage) bad(phase messages.Phase, why error) (pipeline.Verdict, error) {
	r.counts.invalid.Add(1)
	expected := "Continue, Answer, Stop, Hold or Jump"
	if phase == messages.After {
		expected = "Continue, Again, Hold or Jump"
	}
	return pipeline.Verdict{}, pipeline.Closed(messages.NewFault(messages.StageError,
		"stage %s: its program's answer from %s%s cannot be used: %v; expected a JSON object with the verdict "+
			"%s, or an error", r.Name, phase, r.where(), why, expected))
}

// where names the subject, if it is not the default one.
func (r *stage) where() string {
	if strings.HasSuffix(r.Subject, "."+r.Name) {
		return ""
	}
	return " on " + r.Subject
}

// header is for people who watch messages with tools; the body has everything that the program needs.
func (r *stage) header(ctx context.Context, c *messages.Call, phase messages.Phase) map[string]string {
	h := map[string]string{
		"Idempotency-Key": r.key(c, phase), "Shallot-Call": c.ID, "Shallot-Kind": string(c.Kind),
		"Shallot-Stage": r.Name,
		"Shallot-Phase": string(phase), "Shallot-Attempt": strconv.Itoa(c.Attempt()), "Shallot-Tenant": c.Tenant,
		"Shallot-Session": c.Session, "traceparent": c.Trace.Parent, "tracestate": c.Trace.State,
	}
	if until, ok := ctx.Deadline(); ok {
		h["Shallot-Deadline"] = until.UTC().Format(time.RFC3339Nano)
	}
	for k, v := range h {
		if v == "" || strings.ContainsFunc(v, func(c rune) bool { return c < ' ' || c == 0x7f }) {
			delete(h, k)
		}
	}
	return h
}

// key identifies one step of one call: redeliveries and repeated questions have the same key, another attempt has
// another.
func (r *stage) key(c *messages.Call, phase messages.Phase) string {
	return strings.Join([]string{c.ID, r.Name, string(phase), strconv.Itoa(c.Slip.Hops)}, ".")
}

func (r *stage) details(context.Context) map[string]any {
	return map[string]any{
		"subject": r.Subject, "asked": r.counts.asked.Load(), "absent": r.counts.absent.Load(),
		"unanswered": r.counts.failed.Load(), "invalidAnswers": r.counts.invalid.Load(),
	}
}
