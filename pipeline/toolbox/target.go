package toolbox

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/toolbox/toolspec"
)

// Target is the target of tool calls: it finds the definition and runs its executor in the pool, within the attempt's
// time. The call's request is the arguments, its reply the result.
//
// It may be called again for one call after a crash: a tool that may run twice does; any other gives the stored result,
// or the fault outcome_unknown, and is never run again.
type Target struct {
	Tools     toolspec.Tools
	Rules     toolspec.Rules
	Executors Executors
	Pool      *Pool
	Intents   *Intents
	// Parser holds results against output schemas; nil: they are not looked at.
	Parser *toolspec.Parser
	Log    *slog.Logger
}

var _ pipeline.Target = (*Target)(nil)

// settle is how long a record may still be written after the call's own time is over.
const settle = 5 * time.Second

// Do runs the call's tool.
func (t *Target) Do(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
	d, err := t.Tools.Get(ctx, t.name(c))
	if err != nil {
		return fromTarget(err)
	}
	if f := d.Refuse(); f != nil {
		return f
	}
	if d.NeedsApproval() && !slices.ContainsFunc(c.Slip.Stops, func(s messages.Stop) bool { return s.Name == toolspec.ApprovalStage }) {
		return messages.NewFault(messages.Blocked, "the tool '%s' needs an approval (%s), and no stage '%s' is on the route to ask for it; it was not run",
			d.Name, d.Approval, toolspec.ApprovalStage).At("tool").From("registry")
	}
	exec := t.Executors[d.Executor.Kind]
	if exec == nil {
		return messages.NewFault(messages.TargetAbsent, "tool '%s': no executor of kind %q runs here", d.Name, d.Executor.Kind).From(messages.TargetOrigin)
	}
	a := &attempt{t: t, c: c, d: d, e: t.Rules.Effective(d), exec: exec, emit: emit, args: arguments(c)}
	a.limit = a.e.Timeout
	var ms int64
	if c.Noted(toolspec.NoteTimeout, &ms) && ms > 0 {
		a.limit = time.Duration(ms) * time.Millisecond
	}
	if err := t.Pool.acquire(ctx); err != nil {
		if errors.Is(context.Cause(ctx), pipeline.ErrCancelled) {
			return err
		}
		return busy(d.Name)
	}
	if a.e.Unguarded || t.Intents == nil || t.Intents.Store == nil {
		return a.reply(a.run(ctx))
	}
	return a.guarded(ctx)
}

// name is the tool's name with the version that an earlier stage resolved, so that one call keeps to one version.
func (t *Target) name(c *messages.Call) string {
	var version string
	if c.Noted(toolspec.NoteVersion, &version) && version != "" {
		return toolspec.Pin(c.Tool, version)
	}
	return c.Tool
}

// arguments are the request, or what a request of text holds.
func arguments(c *messages.Call) json.RawMessage {
	raw := c.Request()
	if len(raw) == 0 || string(raw) == "null" {
		return json.RawMessage("{}")
	}
	return raw
}

type attempt struct {
	t     *Target
	c     *messages.Call
	d     *toolspec.Definition
	e     toolspec.Effective
	exec  Executor
	emit  pipeline.Emit
	args  json.RawMessage
	limit time.Duration
}

// run runs the executor in the slot that was acquired. The timer is the context's, not a worker of the pool.
func (a *attempt) run(ctx context.Context) (Result, error) {
	limited, cancel := context.WithTimeout(ctx, a.limit)
	defer cancel()
	deadline, _ := limited.Deadline()
	key := a.c.ID
	if own := a.c.IdempotencyKey; own != "" {
		key = messages.Key(a.c.Tenant, a.c.Tool, own) // two tenants may choose one key; the tool must not take them for one
	}
	inv := Invocation{
		Tool: a.d, Arguments: a.args, CallID: a.c.ID, IdempotencyKey: key, Tenant: a.c.Tenant, Session: a.c.Session,
		Deadline: deadline, Trace: a.c.Trace, Progress: func(json.RawMessage) {},
	}
	var said toolspec.MCPCall
	if a.c.Noted(toolspec.NoteMCP, &said) {
		inv.MCP = &said
		if said.Progress {
			p := &progress{emit: a.emit}
			defer p.end()
			inv.Progress = p.send
		}
	}
	r, err := a.t.Pool.run(limited, a.d.Name, func(ctx context.Context) (Result, error) { return a.exec.Execute(ctx, inv) })
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
	case errors.As(err, &f):
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), pipeline.ErrCancelled):
		return r, messages.NewFault(messages.Cancelled, "the caller cancelled while '%s' ran", a.d.Name).From("caller")
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		// The process stops: the caller of Do hands the call to another one, or says so where it may not run again.
		return r, messages.NewFault(messages.DeadlineExceeded, "the process that ran '%s' stopped before it ended", a.d.Name).From("deadline")
	case ctx.Err() != nil:
		return r, messages.NewFault(messages.DeadlineExceeded, "the call's time was over while '%s' ran", a.d.Name).From("deadline")
	case limited.Err() != nil:
		return r, toolspec.TimeoutFault(a.d.Name, a.limit)
	}
	return r, fault(a.d.Name, err)
}

// judge marks a result that is not as the tool's output schema has it.
func (a *attempt) judge(ctx context.Context, r *Result) {
	if a.t.Parser == nil || r.IsError {
		return
	}
	wrong := a.t.Parser.CheckOutput(a.d, r.Content, r.Structured)
	if wrong == "" {
		return
	}
	a.log().WarnContext(ctx, "the result is not as the tool's output schema has it; it goes on as it is", "wrong", wrong)
	meta := map[string]any{toolspec.MarkOutputSchema: wrong}
	maps.Copy(meta, r.Metadata)
	r.Metadata = meta
}

// progress sends signs of life to the process that accepted the call. Nothing is sent after end: the call then belongs to
// whoever passes it on.
type progress struct {
	mu   sync.Mutex
	emit pipeline.Emit
	over bool
}

func (p *progress) send(what json.RawMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over && json.Valid(what) {
		_ = p.emit(messages.SetField([]byte("{}"), "progress", what)) // a lost sign of life is no failure
	}
}

func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
}

// guarded runs a tool that must not run twice: the record first, then the tool, then its end into the record. The slot
// is the caller's until run takes it over.
func (a *attempt) guarded(ctx context.Context) error {
	free := func() { <-a.t.Pool.slots; <-a.t.Pool.held }
	sum := sha256.Sum256(a.args)
	n := intent{State: "started", Tool: a.d.Ref(), Fingerprint: base64.RawURLEncoding.EncodeToString(sum[:]), Started: time.Now().UTC()}
	key := intentKey(a.c)
	rev, old, err := a.t.Intents.begin(ctx, key, n)
	if err != nil {
		free()
		f := messages.NewFault(messages.StoreUnavailable, "'%s' was not run: its intent record could not be written: %v", a.d.Name, err).From(messages.TargetOrigin)
		f.Unsent = true
		return f
	}
	a.c.Note(toolspec.NoteStarted, true)
	if old != nil {
		free()
		return a.before(*old)
	}
	r, err := a.run(ctx)
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), settle) // the record outlives the caller's patience
	defer cancel()
	var f *messages.Fault
	switch {
	case err == nil:
		n.Result = &stored{Content: r.Content, Structured: r.Structured, IsError: r.IsError, Metadata: r.Metadata}
	case errors.As(err, &f) && toolspec.NotExecuted(f):
		a.c.Unnote(toolspec.NoteStarted)
		if err := a.t.Intents.forget(late, key); err != nil {
			a.log().WarnContext(ctx, "intent record stays although the tool did not run", "err", err)
		}
		return f
	case errors.As(err, &f) && (f.Code == messages.ToolTimeout || f.Code == messages.ToolNetwork || f.Code == messages.DeadlineExceeded):
		f = toolspec.UnknownOutcome(a.d.Name, f.Message, a.e.Check)
		n.Fault = f
	case errors.As(err, &f) && f.Code == messages.Cancelled:
		n.Fault = toolspec.UnknownOutcome(a.d.Name, f.Message, a.e.Check)
	default:
		n.Fault = f
	}
	if err := a.t.Intents.end(late, key, rev, n); err != nil {
		// The caller still gets the result; a redelivery would find the record open and say that it cannot know.
		a.log().ErrorContext(ctx, "result not stored in the intent record", "err", err)
	}
	if f != nil {
		return f
	}
	return a.reply(r, err)
}

// before is what a record of an earlier run means.
func (a *attempt) before(old intent) error {
	switch {
	case old.State == "done" && old.Result != nil:
		r := old.Result
		return a.reply(Result{Content: r.Content, Structured: r.Structured, IsError: r.IsError, Metadata: r.Metadata}, nil)
	case old.State == "done" && old.Fault != nil:
		return old.Fault
	}
	return toolspec.UnknownOutcome(a.d.Name, fmt.Sprintf("'%s' was started at %s and its end is not known", a.d.Name, old.Started.Format(time.RFC3339)), a.e.Check)
}

// reply writes a result into the call.
func (a *attempt) reply(r Result, err error) error {
	if err != nil {
		return err
	}
	content := r.Content
	if len(content) == 0 {
		content = []byte(`""`) // null becomes empty (S2-MCP-1)
	}
	a.c.SetReply(content)
	a.c.Unnote(toolspec.NoteIsError)
	if r.IsError {
		a.c.Note(toolspec.NoteIsError, true)
	}
	if len(r.Structured) > 0 {
		a.c.Note(toolspec.NoteStructured, r.Structured)
	}
	if len(r.Metadata) > 0 {
		a.c.Note(toolspec.NoteMetadata, r.Metadata)
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

// fromTarget keeps a fault's code and makes it the target's.
func fromTarget(err error) error {
	var f *messages.Fault
	if errors.As(err, &f) {
		return fault("", f)
	}
	return err
}
