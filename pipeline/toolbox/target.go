package toolbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/approval"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// Target is the target of tool calls: it finds the definition and runs its executor in the pool, within the time of an
// attempt. The call's request is the arguments, its reply the result.
//
// A tool that may not run twice runs once for a call; asked for another attempt, Do ends in the fault outcome_unknown.
// That nobody asks again after a crash is for its caller to see to; see [Target.Once].
type Target struct {
	Tools     tool.Tools
	Rules     tool.Rules
	Executors Executors
	Pool      *Pool
	// Approvals are the policies of the stage that asks people; nil: only tools that say so themselves need an approval.
	// Such a call runs only with the grant of exactly its arguments, whatever is on its route.
	Approvals *approval.Policies
	// Parser checks results against output schemas; nil: they are not checked.
	Parser *args.Parser
	// Filters returns the maker of a stage's chunk filter, by the stage's name, from this process's own registry. A
	// stage that it does not know holds streamed results back. Nil knows none.
	Filters func(stage string) (stream.FilterMaker, bool)
	Log     *slog.Logger
}

var _ pipeline.Target = (*Target)(nil)

// Do runs the call's tool. Chunks of a streamed call go to emit; a failure after the first one is stream_cut, but for
// an unknown outcome and the end of the call's own time.
func (t *Target) Do(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
	d, err := t.Tools.Get(ctx, t.name(c))
	if err != nil {
		return fromTarget(err)
	}
	if f := d.Refuse(); f != nil {
		return f
	}
	if t.Approvals.Concern(d) && !approval.Granted(c, d) {
		return notGranted(c, d)
	}
	exec := t.Executors[d.Executor.Kind]
	if exec == nil {
		return targetFault(messages.TargetAbsent, "tool '%s': no executor of kind %q runs here", d.Name, d.Executor.Kind)
	}
	a := &attempt{t: t, c: c, d: d, e: t.Rules.Effective(d), exec: exec, emit: emit, args: tool.Arguments(c)}
	a.limit = a.e.Timeout
	var ms int64
	if c.Noted(messages.NoteToolTimeout, &ms) && ms > 0 {
		a.limit = time.Duration(ms) * time.Millisecond
	}
	if err := t.Pool.acquire(ctx); err != nil {
		if errors.Is(context.Cause(ctx), pipeline.ErrCancelled) {
			return err
		}
		return busy(d.Name)
	}
	a.open()
	if a.e.Unguarded {
		return a.ended(a.reply(a.run(ctx)))
	}
	return a.ended(a.guarded(ctx))
}

// notGranted says why a call that needs an approval has none: nobody was asked, or the arguments have changed since.
func notGranted(c *messages.Call, d *tool.Definition) *messages.Fault {
	why := "the stage '" + tool.ApprovalStage + "', which asks for it, was not on the route; switch it on"
	if slices.ContainsFunc(c.Slip.Stops, func(s messages.Stop) bool { return s.Name == tool.ApprovalStage }) {
		why = "the stage '" + tool.ApprovalStage + "' was on the route and granted nothing for these arguments; " +
			"a stage further in may have changed them"
	}
	return messages.NewFault(messages.Blocked,
		"the tool '%s' needs an approval and was not run: %s", d.Name, why).At("tool").From("registry")
}

// name is the tool's name with the version that an earlier stage resolved, so that one call uses one version.
func (t *Target) name(c *messages.Call) string {
	var version string
	if c.Noted(messages.NoteToolVersion, &version) && version != "" {
		return tool.Pin(c.Tool, version)
	}
	return c.Tool
}

type attempt struct {
	t     *Target
	c     *messages.Call
	d     *tool.Definition
	e     tool.Effective
	exec  Executor
	emit  pipeline.Emit
	args  json.RawMessage
	limit time.Duration
	said  *tool.MCPCall
	out   *resultStream
}

// open prepares for what the executor says while it runs.
func (a *attempt) open() {
	a.c.Unnote(messages.NoteStreamShown)
	var said tool.MCPCall
	if a.c.Noted(messages.NoteMCP, &said) {
		a.said = &said
	}
	a.out = &resultStream{emit: a.emit, progress: a.c.Stream || said.Progress, show: a.c.Stream}
	if a.c.Stream {
		a.out.filters, a.out.show = stream.ChunkFilters(a.c, a.t.Filters, a.log())
	}
	a.out.wordless = a.out.progress && stream.Unseen(a.c)
}

// ended notes that a part of the result was shown, so that nothing runs again for it and no other result replaces it.
func (a *attempt) ended(err error) error {
	if !a.out.shown {
		return err
	}
	a.c.Note(messages.NoteStreamShown, true)
	f, ok := errors.AsType[*messages.Fault](err)
	if !ok || f.Code == messages.OutcomeUnknown || f.Code == messages.Cancelled || f.Code == messages.DeadlineExceeded {
		return err // these codes say more, and are not tried again either
	}
	return stream.ToolCut(f)
}

// run runs the executor in the slot that was acquired. The context keeps the time limit: a timer that needed a worker
// of the pool would wait behind the work that it limits.
func (a *attempt) run(ctx context.Context) (Result, error) {
	limited, cancel := context.WithTimeout(ctx, a.limit)
	defer cancel()
	deadline, _ := limited.Deadline()
	key := a.c.ID
	if own := a.c.IdempotencyKey; own != "" {
		key = messages.Key(a.c.Tenant, a.c.Tool, own) // two tenants may choose one key; to the tool it must be two
	}
	inv := Invocation{
		Tool: a.d, Arguments: a.args, CallID: a.c.ID, IdempotencyKey: key, Tenant: a.c.Tenant, Session: a.c.Session,
		Deadline: deadline, Trace: a.c.Trace, MCP: a.said, Progress: a.out.alive, Chunk: a.out.chunk,
		Streams: a.out.show, Once: !a.e.Idempotent,
	}
	r, err := a.t.Pool.run(limited, a.d.Name, func(ctx context.Context) (Result, error) {
		return a.exec.Execute(ctx, inv)
	})
	a.out.end()
	if err == nil {
		err = a.out.complete(a.d.Name, &r)
	}
	if err == nil {
		err = readable(a.d.Name, r.Content)
	}
	if err == nil {
		a.judge(ctx, &r)
		return r, nil
	}
	var p *panicError
	if errors.As(err, &p) {
		a.log().ErrorContext(ctx, "tool panicked", "stack", p.stack)
	}
	var f *messages.Fault
	switch {
	case errors.As(err, &f) && tool.NotExecuted(f) && a.out.begun():
		return r, targetFault(messages.ToolNetwork,
			"'%s' gave a part of its result, and then: %s", a.d.Name, f.Message)
	case errors.As(err, &f):
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), pipeline.ErrCancelled):
		return r, messages.NewFault(messages.Cancelled, "the caller cancelled while '%s' ran", a.d.Name).From("caller")
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		// The process stops: the caller of Do hands the call to another one, or fails it if the tool may not run again.
		return r, messages.NewFault(messages.DeadlineExceeded,
			"the process that ran '%s' stopped before it ended", a.d.Name).From("deadline")
	case ctx.Err() != nil:
		return r, messages.NewFault(messages.DeadlineExceeded,
			"the call's time was over while '%s' ran", a.d.Name).From("deadline")
	case limited.Err() != nil:
		return r, tool.TimeoutFault(a.d.Name, a.limit)
	}
	return r, fault(a.d.Name, err)
}

// readable refuses a text that is not UTF-8, which would arrive damaged.
func readable(name string, text []byte) error {
	if utf8.Valid(text) {
		return nil
	}
	at := 0
	for at < len(text) {
		r, n := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		at += n
	}
	return messages.NewFault(messages.ToolError, "the result of '%s' is given as text and is not valid UTF-8 "+
		"at byte %d; send UTF-8, or say its type in Content-Type", name, at)
}

// judge marks a result that does not fit the tool's output schema.
func (a *attempt) judge(ctx context.Context, r *Result) {
	if a.t.Parser == nil || r.IsError {
		return
	}
	wrong := a.d.CheckOutput(a.t.Parser, r.Content, r.Structured)
	if wrong == "" {
		return
	}
	a.log().WarnContext(ctx, "the result does not fit the tool's output schema; it goes on unchanged", "wrong", wrong)
	meta := map[string]any{tool.MarkOutputSchema: wrong}
	maps.Copy(meta, r.Metadata)
	r.Metadata = meta
}

// guarded runs a tool that may not run twice. That a second process does not run it for the same attempt is the bus's
// promise; that a second attempt of the call does not is kept here. The slot is the caller's until run takes it over.
func (a *attempt) guarded(ctx context.Context) error {
	if a.c.Flag(messages.NoteToolStarted) {
		<-a.t.Pool.slots
		<-a.t.Pool.admitted
		return tool.UnknownOutcome(a.d.Name,
			fmt.Sprintf("'%s' has run for this call already and may not run twice, so it did not run again", a.d.Name),
			a.e.Check)
	}
	a.c.Note(messages.NoteToolStarted, true)
	r, err := a.run(ctx)
	err = a.proven(r, err)
	if f, ok := errors.AsType[*messages.Fault](err); ok && tool.NotExecuted(f) {
		a.c.Unnote(messages.NoteToolStarted)
	}
	return a.reply(r, err)
}

// proven is how a run of a tool that may not run twice ends: with its result, with the proof that nothing was done,
// with the caller's cancellation, or else with an unknown outcome, whatever was answered. An empty error result does
// not count as a result.
func (a *attempt) proven(r Result, err error) error {
	if err == nil && r.IsError && len(bytes.TrimSpace(r.Content)) == 0 && len(r.Structured) == 0 {
		err = messages.NewFault(messages.ToolError, "'%s' reports a failure and says nothing else", a.d.Name)
	}
	if err == nil {
		return nil
	}
	var f *messages.Fault
	if !errors.As(err, &f) {
		f = fault(a.d.Name, err)
	}
	if tool.NotExecuted(f) || f.Code == messages.Cancelled || f.Code == messages.OutcomeUnknown {
		return f
	}
	return tool.UnknownOutcome(a.d.Name, f.Message, a.e.Check)
}

// reply writes a result into the call.
func (a *attempt) reply(r Result, err error) error {
	if err != nil {
		return err
	}
	content := r.Content
	if len(content) == 0 {
		content = []byte(`""`)
	}
	a.c.Unnote(messages.NoteIsError)
	if r.IsError {
		a.c.Note(messages.NoteIsError, true)
	}
	if len(r.Structured) > 0 {
		a.c.Note(messages.NoteStructured, r.Structured)
	}
	if len(r.Metadata) > 0 {
		a.c.Note(messages.NoteMetadata, r.Metadata)
	}
	if r.streamed {
		a.out.reply(a.c, string(content))
	} else {
		a.c.SetReply(content)
	}
	return nil
}

func (a *attempt) log() *slog.Logger {
	l := a.t.Log
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	return l.With("call", a.c.ID, "tool", a.d.Name)
}

// targetFault makes a fault of the target.
func targetFault(code messages.Code, format string, values ...any) *messages.Fault {
	return messages.NewFault(code, format, values...).From(messages.TargetOrigin)
}

// fromTarget keeps a fault's code and makes it one of the target.
func fromTarget(err error) error {
	var f *messages.Fault
	if errors.As(err, &f) {
		return fault("", f)
	}
	return err
}
