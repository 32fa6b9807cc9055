package stages

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
)

// LoggingConfig is agent.interceptor.logging.
type LoggingConfig struct {
	Common `yaml:",inline"`
	Bodies bool    `yaml:"bodies" json:"bodies" doc:"Write the bodies themselves to the log and the audit stream."`
	Sample float64 `yaml:"sample" json:"sample" doc:"Share of the calls that are logged, 0 to 1."`
}

// LogRecord is one model call as the model really got and gave it, once for each attempt. Bodies are there
// only with bodies: true.
type LogRecord struct {
	Record  string    `json:"record"` // "<call>.log.<attempt>", the same on a redelivery
	Event   string    `json:"event"`  // model
	Time    time.Time `json:"time"`
	Call    string    `json:"call"`
	Tenant  string    `json:"tenant"`
	Session string    `json:"session,omitempty"`
	Run     string    `json:"run,omitempty"`
	Attempt int       `json:"attempt"`

	Model        string          `json:"model"`
	Messages     int             `json:"messages"`
	Tools        int             `json:"tools"`
	Stream       bool            `json:"stream,omitempty"`
	Request      *AuditBody      `json:"request,omitempty"`
	Reply        *AuditBody      `json:"reply,omitempty"`
	RequestBody  json.RawMessage `json:"requestBody,omitempty"`
	ReplyBody    json.RawMessage `json:"replyBody,omitempty"`
	AnsweredBy   string          `json:"answeredBy,omitempty"` // the model as the reply names it
	Finish       []string        `json:"finish,omitempty"`     // by choice
	ToolCalls    int             `json:"toolCalls,omitempty"`
	InputTokens  int64           `json:"inputTokens,omitempty"`
	OutputTokens int64           `json:"outputTokens,omitempty"`
	Code         messages.Code   `json:"code,omitempty"`
	Origin       string          `json:"origin,omitempty"`
	Reason       string          `json:"reason,omitempty"` // of a fault, as operators may know it
	DurationMs   int64           `json:"durationMs"`

	stored bool // of a call that is stored
}

// RecordID says how the record is known where it comes again; see [AuditRecord.RecordID].
func (r LogRecord) RecordID() (id string, likely bool) { return r.Record, r.stored }

type logging struct {
	cfg  LoggingConfig
	deps Deps
}

// loggingState is when the attempt began; nil state means that the call is not in the sample.
type loggingState struct {
	Begin time.Time `json:"begin"`
}

// Validate returns what is wrong, joined, each error with its key in front.
func (c *LoggingConfig) Validate() error {
	var f faults
	f.when(!(c.Sample >= 0 && c.Sample <= 1), "sample: %v; need 0 to 1", c.Sample)
	return f.join()
}

// newLogging makes the innermost stage: one log line when a request goes to the model and one, with a record for the
// audit stream, when it comes back, for each attempt of retry and fallback. Without bodies the lines are of level
// DEBUG. Which calls are in the sample follows from the call id, so both lines of a call, and all its attempts, are
// there or are not. It fails open.
func newLogging(cfg *LoggingConfig, d Deps) (pipeline.Stage, error) {
	l := &logging{cfg: *cfg, deps: d}
	return pipeline.Stage{Before: l.before, After: l.after, Plain: l.plain, Reads: []string{"request", "reply", "fault"},
		Writes: []string{"log"}}, nil
}

// plain reports whether the phase writes nothing.
func (l *logging) plain(c *messages.Call) bool {
	return !l.sampled(c) || !c.Slip.Back && !l.deps.Log.Enabled(context.Background(), l.level())
}

func (l *logging) sampled(c *messages.Call) bool {
	return unitHash("logging", c.ID) < l.cfg.Sample
}

// level is that of both lines. Who wants the bodies reads them in the log; else the log has one line for a call, that
// of its request, and these are for a closer look.
func (l *logging) level() slog.Level {
	if l.cfg.Bodies {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

func (l *logging) before(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	if !l.sampled(c) {
		return pipeline.Continue(), nil
	}
	if l.deps.Log.Enabled(ctx, l.level()) {
		attrs := []slog.Attr{
			slog.String("call", c.ID), slog.String("tenant", c.Tenant), slog.Int("attempt", c.Slip.Tries+1),
			slog.String("model", view.ModelName(c.Request())), slog.Int("bytes", len(c.Request())),
		}
		if l.cfg.Bodies {
			attrs = append(attrs, slog.String("body", string(c.Request())))
		}
		l.deps.Log.LogAttrs(ctx, l.level(), "model request", attrs...)
	}
	return pipeline.Continue(), c.SetState(loggingState{Begin: time.Now()})
}

func (l *logging) after(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	if !l.sampled(c) {
		return pipeline.Continue(), nil
	}
	r := l.record(c)
	if l.deps.Log.Enabled(ctx, l.level()) {
		l.deps.Log.LogAttrs(ctx, l.level(), "model reply", l.told(r)...)
	}
	if l.deps.Publish == nil {
		return pipeline.Continue(), nil
	}
	if err := l.deps.Publish(context.WithoutCancel(ctx), "audit", r); err != nil {
		return pipeline.Continue(), fmt.Errorf("logging: publish: %w", err)
	}
	return pipeline.Continue(), nil
}

// told is what the log says of a reply.
func (l *logging) told(r LogRecord) []slog.Attr {
	attrs := []slog.Attr{
		slog.String("call", r.Call), slog.String("tenant", r.Tenant), slog.Int("attempt", r.Attempt),
		slog.String("model", r.Model), slog.Int64("ms", r.DurationMs), slog.Any("finish", r.Finish),
		slog.Int("toolCalls", r.ToolCalls), slog.Int64("inputTokens", r.InputTokens),
		slog.Int64("outputTokens", r.OutputTokens),
	}
	if r.Reply != nil {
		attrs = append(attrs, slog.Int("bytes", r.Reply.Bytes))
	}
	if l.cfg.Bodies && r.ReplyBody != nil {
		attrs = append(attrs, slog.String("body", string(r.ReplyBody)))
	}
	if r.Code != "" {
		attrs = append(attrs,
			slog.String("code", string(r.Code)), slog.String("origin", r.Origin), slog.String("reason", r.Reason))
	}
	return attrs
}

func (l *logging) record(c *messages.Call) LogRecord {
	v := view.Of(c.Wire)
	r := LogRecord{
		Record: fmt.Sprintf("%s.log.%d", c.ID, c.Slip.Tries), Event: "model", Time: time.Now().UTC(),
		Call: c.ID, Tenant: c.Tenant, Session: c.Session, Run: c.Run, Attempt: c.Slip.Tries, Stream: c.Stream,
		Model: view.ModelName(c.Request()), Messages: len(v.Messages(c.Request())),
		Request: digestOf(c, messages.RequestBody), stored: c.Flag(messages.NoteStored),
	}
	tools, _ := rawjson.Field(c.Request(), "tools")
	r.Tools = len(rawjson.Elements(tools))
	var st loggingState
	if ok, err := c.State(&st); ok && err == nil {
		r.DurationMs = r.Time.Sub(st.Begin).Milliseconds()
	}
	if l.cfg.Bodies {
		r.RequestBody = c.Request()
	}
	if c.Fault != nil {
		r.Code, r.Origin, r.Reason = c.Fault.Code, c.Fault.Origin, cutText(c.Fault.Reason(), longestReason)
		return r
	}
	reply := c.Reply()
	r.Reply = digestOf(c, messages.ReplyBody)
	if l.cfg.Bodies {
		r.ReplyBody = reply
	}
	r.AnsweredBy = view.ModelName(reply)
	for _, ch := range v.Choices(reply) {
		r.Finish = append(r.Finish, ch.Finish())
		r.ToolCalls += len(ch.Message().ToolCalls())
	}
	usage := v.Usage(reply)
	r.InputTokens, r.OutputTokens = usage.Input, usage.Output
	return r
}
