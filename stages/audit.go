package stages

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
	"github.com/shallot-nats/shallot/stages/internal/quota"
)

// AuditConfig is agent.interceptor.audit; it serves model, tool and agent calls alike.
type AuditConfig struct {
	Common `yaml:",inline"`
	// Sync makes each record wait for its store and fails the call if that does not confirm it.
	Sync bool `yaml:"sync" json:"sync" doc:"Wait until the record is stored, and stop the call if it cannot be."`
}

// AuditRecord is one record of the audit stream: who, what, and how it ended. It holds sizes and hashes of bodies and
// never a body. The one text of others in it is why a model's provider failed, with secrets masked.
type AuditRecord struct {
	// Record names the record over redeliveries: "<call>.accepted" or "<call>.end". It is fit as a message id.
	Record string    `json:"record"`
	Event  string    `json:"event"` // accepted | end
	Time   time.Time `json:"time"`

	Call    string        `json:"call"`
	Kind    messages.Kind `json:"kind"`
	Tenant  string        `json:"tenant"`
	Role    string        `json:"role,omitempty"`
	User    string        `json:"user,omitempty"`
	Session string        `json:"session,omitempty"`
	// SessionLabel is what the caller's body calls its session; it names none here.
	SessionLabel string     `json:"sessionLabel,omitempty"`
	Run          string     `json:"run,omitempty"`
	Agent        string     `json:"agent,omitempty"`
	Parent       string     `json:"parent,omitempty"`
	RequestID    string     `json:"requestId,omitempty"`
	Trace        string     `json:"trace,omitempty"`
	Model        string     `json:"model,omitempty"` // that was asked for
	Tool         string     `json:"tool,omitempty"`
	Request      *AuditBody `json:"request,omitempty"` // as accepted

	// The rest is of the end only.
	Reply   *AuditBody    `json:"reply,omitempty"`
	Outcome string        `json:"outcome,omitempty"` // reply | fault
	Code    messages.Code `json:"code,omitempty"`
	Origin  string        `json:"origin,omitempty"`
	// Reason is why the target failed, as operators may know it; Failures are all its runs that brought no answer, also
	// where a later one did.
	Reason          string       `json:"reason,omitempty"`
	Failures        []RunFailure `json:"failures,omitempty"`
	StoppedBy       string       `json:"stoppedBy,omitempty"`
	ExecutorReached *bool        `json:"executorReached,omitempty"`
	Degraded        string       `json:"degraded,omitempty"`
	// Changed says what was done to the arguments of a tool: names and kinds, no values.
	Changed  []string `json:"changed,omitempty"`
	Edited   string   `json:"edited,omitempty"` // by stages, as the header Shallot-Edited says it
	Cache    string   `json:"cache,omitempty"`
	Attempts int      `json:"attempts,omitempty"`
	Path     []string `json:"path,omitempty"`
	// Approval says what a person decided about the call: {decision, by, at}.
	Approval   json.RawMessage `json:"approval,omitempty"`
	Stages     []AuditStage    `json:"stages,omitempty"`
	DurationMs int64           `json:"durationMs,omitempty"`

	stored bool // of a call that is stored
}

// RecordID says how the record is known where it comes again, which it does where another process takes a stored call
// over.
func (r AuditRecord) RecordID() (id string, likely bool) { return r.Record, r.stored }

// AuditBody is a body's size in bytes and the SHA-256 of its compact form.
type AuditBody struct {
	Bytes  int    `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// AuditStage is what one stage further in did for the call.
type AuditStage struct {
	Stage       string  `json:"stage"`
	Invocations int64   `json:"invocations"`
	Errors      int64   `json:"errors,omitempty"`
	Ms          float64 `json:"ms"`
}

type audit struct {
	publish func(ctx context.Context, what string, record any) error
	sync    bool
	log     *slog.Logger
}

// newAudit makes the outermost stage: it sees hits, stops and faults, because it is passed before anything
// can answer. A record for the end of a call, and with sync: true one before it goes on too; a redelivery publishes the
// same record id again. It fails open with an alarm in the log, or closed with sync: true.
func newAudit(cfg *AuditConfig, d Deps) (pipeline.Stage, error) {
	a := &audit{publish: d.Publish, sync: cfg.Sync, log: d.Log}
	if cfg.Sync && d.Record != nil {
		a.publish = d.Record
	}
	return pipeline.Stage{
		Before: a.before, After: a.after, FailClosed: cfg.Sync, Writes: []string{"audit"},
		Plain:      func(c *messages.Call) bool { return !cfg.Sync && !c.Slip.Back }, // before only takes notes then
		Reads:      []string{pipeline.ReadCall, "request", "reply", "fault"},
		ReadsAfter: []string{pipeline.ReadCall, "reply", "fault"},
	}, nil
}

// auditState carries what the call was when it was accepted: stages further in may change the request.
type auditState struct {
	Model   string     `json:"model,omitempty"`
	Request *AuditBody `json:"request,omitempty"`
}

func (a *audit) before(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	st := auditState{Request: digestOf(c, messages.RequestBody)}
	if c.Kind == messages.Model {
		st.Model = chat.ModelName(c.Request())
	}
	if err := c.SetState(st); err != nil {
		return pipeline.Verdict{}, err
	}
	if !a.sync {
		return pipeline.Continue(), nil
	}
	return pipeline.Continue(), a.write(ctx, a.record(c, "accepted", st))
}

func (a *audit) after(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	var st auditState
	if _, err := c.State(&st); err != nil {
		a.log.ErrorContext(ctx, "audit state unreadable; the end is recorded without the request", "call", c.ID, "err", err)
	}
	r := a.record(c, "end", st)
	r.Outcome = "reply"
	if c.Fault != nil {
		r.Outcome, r.Code, r.Origin = "fault", c.Fault.Code, c.Fault.Origin
		if c.Fault.Detail != "" {
			r.Reason = cutText(c.Fault.Detail, longestReason)
		}
	} else if c.HasReply() {
		r.Reply = digestOf(c, messages.ReplyBody)
	}
	var known routes
	c.Noted(noteRoutes, &known)
	r.Failures = known.Failures
	c.Noted(messages.NoteStopper, &r.StoppedBy)
	c.Noted(messages.NoteDegraded, &r.Degraded)
	var changes []args.Change
	if c.Noted(messages.NoteArgumentChanges, &changes) {
		r.Changed = args.Changed(changes, false)
	}
	c.Noted(messages.NoteModelCache, &r.Cache)
	if c.Flag(messages.NoteCacheHit) {
		r.Cache = cacheHit
	}
	r.Edited = c.Edits()
	r.Approval = c.Notes[messages.NoteDecision]
	reached := c.Flag(messages.NoteExecutorReached)
	r.ExecutorReached = &reached
	r.Attempts, r.Path = c.Slip.Tries, c.Slip.Path
	for _, s := range c.Slip.Stops {
		if s.Tally.Count > 0 {
			r.Stages = append(r.Stages, AuditStage{s.Name, s.Tally.Count, s.Tally.Errors, float64(s.Tally.Nanos) / 1e6})
		}
	}
	r.DurationMs = r.Time.Sub(c.Accepted).Milliseconds()
	// The record of an end matters most when the caller has left, so it does not end with the call's context.
	ctx = context.WithoutCancel(ctx)
	if a.sync {
		var cancel context.CancelFunc
		ctx, cancel = quota.AfterCall(ctx)
		defer cancel()
	}
	return pipeline.Continue(), a.write(ctx, r)
}

func (a *audit) record(c *messages.Call, event string, st auditState) AuditRecord {
	r := AuditRecord{
		Record: c.ID + "." + event, Event: event, Time: time.Now().UTC(),
		Call: c.ID, Kind: c.Kind, Tenant: c.Tenant, Role: c.Role, User: c.User, Session: c.Session, Run: c.Run,
		Agent: c.Agent, Parent: c.Parent, RequestID: c.RequestID, Trace: c.Trace.Parent, Model: st.Model,
		Tool: c.Tool, Request: st.Request, stored: c.Flag(messages.NoteStored),
	}
	c.Noted(messages.NoteSessionLabel, &r.SessionLabel)
	return r
}

var errNoAudit = errors.New("nothing here takes audit records")

func (a *audit) write(ctx context.Context, r AuditRecord) error {
	err := errNoAudit
	if a.publish != nil {
		err = a.publish(ctx, "audit", r)
	} else if !a.sync {
		return nil
	}
	switch {
	case err == nil:
		return nil
	case a.sync:
		return messages.NewFault(messages.StoreUnavailable, "stage audit: the record %s is not stored (%v); "+
			"with audit.sync no call goes on without it", r.Event, err).From("audit")
	}
	a.log.ErrorContext(ctx, "audit record lost", "call", r.Call, "event", r.Event, "err", err)
	return nil
}

// digestOf is the digest of a body of the call; nil without one.
func digestOf(c *messages.Call, name string) *AuditBody {
	size, sum := c.Digest(name)
	if sum == "" {
		return nil
	}
	return &AuditBody{Bytes: size, SHA256: sum}
}

func digest(body []byte) *AuditBody {
	if body == nil {
		return nil
	}
	sum := sha256.Sum256(body)
	return &AuditBody{Bytes: len(body), SHA256: hex.EncodeToString(sum[:])}
}
