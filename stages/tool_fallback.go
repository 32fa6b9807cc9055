package stages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/texts"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/stages/internal/quota"
)

// ToolFallbackConfig has no keys of its own: `tool.fallback` holds the settings (FallbackRules).
type ToolFallbackConfig struct {
	Common `yaml:",inline"`
}

// FallbackRules are `tool.fallback` of the configuration. Zero values mean the defaults: see
// [FallbackRules.WithDefaults].
type FallbackRules struct {
	StaleTTL time.Duration // how long a success may stand in; 30m
	StaleMax int           // successes that are kept; 5000
	// GracefulIsError is auto (the face decides: MCP says isError, others do not), true or false.
	GracefulIsError string
	// Rungs are the steps of the ladder, in the order in which they are tried: stale_cache, stub_data, graceful_error.
	Rungs []string
}

// WithDefaults fills in what is not set.
func (r FallbackRules) WithDefaults() FallbackRules {
	if r.StaleTTL == 0 {
		r.StaleTTL = tool.StaleTTL
	}
	if r.StaleMax == 0 {
		r.StaleMax = tool.StaleMax
	}
	if r.GracefulIsError == "" {
		r.GracefulIsError = "auto"
	}
	if r.Rungs == nil {
		r.Rungs = []string{tool.StaleCache, tool.StubDataMark, tool.GracefulError}
	}
	return r
}

func (r FallbackRules) validate() error {
	switch {
	case r.StaleTTL < time.Millisecond:
		return fmt.Errorf("tool.fallback.stale-ttl: %s; need at least 1ms", r.StaleTTL)
	case r.StaleMax < 1:
		return fmt.Errorf("tool.fallback.stale-max: %d; need at least 1", r.StaleMax)
	case r.GracefulIsError != "auto" && r.GracefulIsError != "true" && r.GracefulIsError != "false":
		return fmt.Errorf("tool.fallback.graceful-is-error: %q; known: auto, true, false", r.GracefulIsError)
	}
	for _, rung := range r.Rungs {
		if rung != tool.StaleCache && rung != tool.StubDataMark && rung != tool.GracefulError {
			return fmt.Errorf("tool.fallback.rungs: %q; known: stale_cache, stub_data, graceful_error", rung)
		}
	}
	return nil
}

const stalePrefix = "stale."

type toolFallback struct {
	rules FallbackRules
	texts texts.Texts
	tools toolPolicies
	store func(string) pipeline.Store
	log   *slog.Logger
	bound *quota.StoreBound
}

// newToolFallback makes the ladder of stand-ins for a tool that failed: the last success of the same call within
// stale-ttl, the tool's stub data, and a graceful error as JSON. The class of the fault decides: where it is empty -
// stopped, blocked, cancelled, an unknown outcome - nothing is done. Bad arguments skip to the graceful error, because
// a wrong call must not get the data of a right one. So does a fault that another stage made: older data must not be a
// way round a stage that fails closed. A refusal by a limit stays what it is, so that its caller reads when to come
// again. Nothing stands in for a result of which the caller has seen a part. An error result with content of its own
// passes unchanged.
//
// Every stand-in is marked in the metadata (fallback), in the note degraded (header Shallot-Degraded) and in the result
// itself; see messages.MarkField. A graceful error sets the note tool.isError to what graceful-is-error says; with auto
// it stays unset and the face decides. The stage also records successes of cacheable tools, but not cache hits, which
// would make old results young. It fails open: without its store the other rungs stand.
func newToolFallback(_ *ToolFallbackConfig, d Deps) (pipeline.Stage, error) {
	tools, err := newToolPolicies(d)
	if err != nil {
		return pipeline.Stage{}, err
	}
	var rules FallbackRules
	if d.Fallback != nil {
		rules = *d.Fallback
	}
	rules = rules.WithDefaults()
	if err := rules.validate(); err != nil {
		return pipeline.Stage{}, err
	}
	f := &toolFallback{
		rules: rules, texts: texts.In(d.Texts), tools: tools, store: d.Store, log: d.Log,
		bound: quota.NewStoreBound(stalePrefix, rules.StaleMax),
	}
	return pipeline.Stage{
		Role: pipeline.RoleFallback, After: f.after,
		Reads: []string{"tool", "fault", "request", "reply"}, Writes: []string{"reply"},
	}, nil
}

func (t *toolFallback) after(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	fault := c.Fault
	if fault != nil && c.Flag(messages.NoteStreamShown) {
		return pipeline.Continue(), nil // half a text was shown: nothing can stand in for the rest of it
	}
	if fault == nil {
		if !c.Flag(messages.NoteIsError) || !emptyResult(c.Reply()) {
			return pipeline.Continue(), t.record(ctx, c)
		}
		fault = messages.NewFault(messages.ToolError, "").From(messages.TargetOrigin)
	}
	if c.Flag(messages.NoteToolStarted) && !fault.OfTarget() {
		// A result was kept back, by a stage or by the time: no stand-in may invite the model to call again.
		_, e, _ := t.tools.of(ctx, c)
		name, _, _ := cutVersion(c.Tool)
		fault = tool.AfterStart(name, fault, e.Check)
		c.Fail(fault)
	}
	class := tool.ErrorClassOf(fault)
	if class == "" {
		return pipeline.Continue(), nil
	}
	reply, mark := t.climb(ctx, c, fault, class)
	if mark == "" {
		g := *fault
		g.Message = "No fallback available: " + fault.Message
		c.Fail(&g)
		return pipeline.Continue(), nil
	}
	said := redact(fault.Message)
	t.log.WarnContext(ctx, "tool failed; a marked result stands in",
		"call", c.ID, "tool", c.Tool, "fallback", mark, "code", fault.Code, "err", said)
	c.Note(messages.NoteToolFault, map[string]any{
		"code": fault.Code, "message": said, "origin": fault.Origin, "last": fault.Last,
	})
	c.Note(messages.NoteDegraded, mark)
	c.SetReply(reply)
	return pipeline.Continue(), nil
}

// climb returns the first rung that holds, with its mark; no mark if none does.
func (t *toolFallback) climb(
	ctx context.Context, c *messages.Call, fault *messages.Fault, class messages.ErrorClass,
) (reply []byte, mark string) {
	def, e, err := t.tools.of(ctx, c)
	if err != nil {
		def, e = nil, tool.Effective{} // an unknown tool has no data to stand in
	}
	data := def != nil && (fault.OfTarget() || slices.Contains(mayStandIn, fault.Code))
	for _, rung := range t.rules.Rungs {
		switch {
		case rung == tool.StaleCache && data && tool.StaleAllowed(class, e):
			if r := t.stale(ctx, c, def, e); r != nil {
				r.put(c, tool.MarkFallback, rung)
				return marked(c, rung, r.Stored), rung
			}
		case rung == tool.StubDataMark && data && tool.StubAllowed(class, def):
			c.SetReply(def.StubData)
			t.clean(c, rung)
			return marked(c, rung, time.Time{}), rung
		case rung == tool.GracefulError:
			name, _, _ := cutVersion(c.Tool)
			c.SetReply(tool.Graceful(name, class, redact(fault.Message), t.texts.Suggestion(class)))
			t.clean(c, rung)
			if t.rules.GracefulIsError != "auto" {
				c.Note(messages.NoteIsError, t.rules.GracefulIsError == "true")
			}
			return marked(c, rung, time.Time{}), rung
		}
	}
	return nil, ""
}

// mayStandIn are the faults of stages for which data may stand in: nothing was decided about the call but that it is
// not to run now.
var mayStandIn = []messages.Code{messages.DeadlineExceeded, messages.TargetAbsent}

// clean takes what a failed attempt left of itself off the call, and marks the metadata.
func (t *toolFallback) clean(c *messages.Call, mark string) {
	c.Unnote(messages.NoteIsError)
	c.Unnote(messages.NoteStructured)
	c.Unnote(messages.NoteMetadata)
	markMetadata(c, tool.MarkFallback, mark)
}

// marked is the call's reply with the mark where the model reads it.
func marked(c *messages.Call, mark string, stored time.Time) []byte {
	field := struct {
		Fallback string     `json:"fallback"`
		Stored   *time.Time `json:"stored,omitempty"`
	}{Fallback: mark}
	line := "\n[fallback=" + mark + "]"
	if !stored.IsZero() {
		at := stored.UTC().Truncate(time.Second)
		field.Stored = &at
		line = "\n[fallback=" + mark + ", stored " + at.Format(time.RFC3339) + "]"
	}
	raw := c.Reply()
	if text, ok := c.ReplyText(); ok {
		return []byte(text + line)
	}
	if text, ok := rawjson.IsString(raw); ok {
		return rawjson.Encode(text + line)
	}
	if len(raw) == 0 || raw[0] != '{' {
		raw = slices.Concat([]byte(`{"result":`), raw, []byte(`}`))
	}
	return rawjson.SetField(raw, messages.MarkField, rawjson.Encode(field))
}

// emptyResult reports whether a result says nothing.
func emptyResult(raw []byte) bool { return rawjson.IsNull(raw) || string(raw) == `""` }

// identity says what the call is remembered as. Where a stage inner to the cache has changed the arguments since, it is
// nothing: a result must not be found under arguments that nobody asked with.
func (t *toolFallback) identity(c *messages.Call, def *tool.Definition, e tool.Effective) (callIdentity, bool) {
	id, ok := identify(c, def, e)
	var key string
	if ok && c.Noted(messages.NoteToolKey, &key) && key != id.key() {
		return id, false
	}
	return id, ok
}

// stale returns the last success of the same call, if it may still stand in.
func (t *toolFallback) stale(
	ctx context.Context, c *messages.Call, def *tool.Definition, e tool.Effective,
) *toolResult {
	id, ok := t.identity(c, def, e)
	if !ok {
		return nil
	}
	ctx, cancel := openStore(ctx)
	defer cancel()
	got, err := t.store("cache").Get(ctx, stalePrefix+id.key())
	if err != nil {
		if !errors.Is(err, pipeline.ErrNotFound) {
			t.log.WarnContext(ctx, "last successes not readable; the next rung stands", "call", c.ID, "err", err)
		}
		return nil
	}
	var r toolResult
	if json.Unmarshal(got.Value, &r) != nil || !r.same(id) || len(r.Reply) == 0 || !r.fresh(time.Now()) {
		return nil
	}
	return &r
}

// record keeps a success as what may stand in later: the tool's own, not what a stage answered in its place, such as
// the content that a person gave.
func (t *toolFallback) record(ctx context.Context, c *messages.Call) error {
	if _, answered := c.Notes[messages.NoteStopper]; answered {
		return nil
	}
	if !succeeded(c) || c.Flag(messages.NoteCacheHit) || !slices.Contains(t.rules.Rungs, tool.StaleCache) {
		return nil
	}
	def, e, err := t.tools.of(ctx, c)
	if err != nil {
		return nil
	}
	id, ok := t.identity(c, def, e)
	if !ok {
		return nil
	}
	ctx, cancel := quota.AfterCall(ctx)
	defer cancel()
	store := t.store("cache")
	if err := t.bound.Room(ctx, store); err != nil {
		return fmt.Errorf("tool fallback: success not recorded: %w", err)
	}
	r := resultOf(c, id, t.rules.StaleTTL)
	if _, err := store.Put(ctx, stalePrefix+id.key(), rawjson.Encode(r), t.rules.StaleTTL, pipeline.Always()); err != nil {
		return fmt.Errorf("tool fallback: success not recorded: %w", err)
	}
	return nil
}
