package stages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
)

// ModelFallbackConfig is agent.interceptor.model-fallback.
type ModelFallbackConfig struct {
	Common `yaml:",inline"`
	// Of the default only the names count that a provider lists by name, not by a pattern. A name that was written and
	// that no provider serves is an error.
	FallbackModels []string `yaml:"fallback-models" doc:"Standby models, in this order; of the default those listed."`
	MaxRetries     int      `yaml:"max-retries" doc:"Tries of each standby model."`
	// FallbackOn is "target", for the codes whose [messages.CodeInfo] says so, and/or codes. An empty reply is a failure
	// whatever it says.
	FallbackOn []string `yaml:"fallback-on" doc:"target (what the table of faults says), or codes of faults."`
	// MaxTargetRuns bounds what one call may cost, whichever stages let the model run again.
	MaxTargetRuns int `yaml:"max-target-runs" doc:"Runs of models in one call, over all stages; also if this one is off."`
}

func defaultModelFallback() ModelFallbackConfig {
	return ModelFallbackConfig{
		FallbackModels: []string{"qwen-turbo", "qwen-plus", "gpt-3.5-turbo"}, MaxRetries: 2, FallbackOn: []string{"target"},
		MaxTargetRuns: 10,
	}
}

// neverFallback are codes after which another model must not run: nobody waits for it, somebody decided so, or the
// caller has seen a part of the first answer.
var neverFallback = []messages.Code{
	messages.Cancelled, messages.Stopped, messages.StreamCut, messages.DeadlineExceeded, messages.OutcomeUnknown,
}

type modelFallback struct {
	name   string
	models []string
	tries  int
	on     map[messages.Code]bool
	deps   Deps
}

// fallbackState is what the stage remembers over the attempts of one call: how often each standby was tried, and the
// primary's end, which goes out if they all fail. The reply is bytes and not raw JSON, so that it stays verbatim.
type fallbackState struct {
	Tries map[string]int  `json:"tries"`
	Model string          `json:"model"` // the standby that ran last
	Fault *messages.Fault `json:"fault,omitempty"`
	Reply []byte          `json:"reply,omitempty"`
}

// newModelFallback makes the stage that lets standby models answer when the model asked for fails or says nothing. Each
// standby runs through the inner stages again, on the request as it was here with only the model changed and marks of
// another provider taken out. A reply of a standby is marked degraded. Only the model fails: after a fault of a stage,
// a cancel or a hold no standby is tried. It fails open: its store is only a record.
func newModelFallback(cfg *ModelFallbackConfig, d Deps) (pipeline.Stage, error) {
	m := &modelFallback{name: "model-fallback", tries: cfg.MaxRetries, deps: d}
	if err := m.configure(cfg, d); err != nil {
		return pipeline.Stage{}, err
	}
	return pipeline.Stage{
		Role: pipeline.RoleFallback, After: m.after, Keep: true, Standbys: m.standbysLeft, Plain: answered,
		Reads:  []string{"fault", "request.model", "reply", pipeline.ReadKept},
		Writes: []string{"request.model", "reply", "retry.fallback"},
	}, nil
}

func (m *modelFallback) configure(cfg *ModelFallbackConfig, d Deps) error {
	on, err := fallbackCodes(cfg.FallbackOn)
	if err != nil {
		return err
	}
	m.on = on
	if cfg.MaxRetries < 0 || cfg.MaxRetries*len(cfg.FallbackModels) >= pipeline.MaxAttempts {
		return fmt.Errorf("max-retries: %d with %d fallback-models; need at least 0, and fewer than %d tries in all",
			cfg.MaxRetries, len(cfg.FallbackModels), pipeline.MaxAttempts)
	}
	if cfg.MaxTargetRuns < 1 || cfg.MaxTargetRuns > pipeline.MaxAttempts {
		return fmt.Errorf("max-target-runs: %d; need 1 to %d", cfg.MaxTargetRuns, pipeline.MaxAttempts)
	}
	if cfg.Enabled != nil && !*cfg.Enabled {
		m.models = slices.Clone(cfg.FallbackModels) // may be switched on later; names are not checked for what is off
		return nil
	}
	if len(cfg.FallbackModels) == 0 {
		return errors.New("fallback-models: the list is empty; name at least one model or set enabled: false")
	}
	explicit := d.Explicit != nil && d.Explicit("agent.interceptor.model-fallback.fallback-models")
	var skipped []string
	for _, name := range cfg.FallbackModels {
		switch {
		case strings.TrimSpace(name) == "":
			return errors.New("fallback-models: a name is empty")
		case !explicit && (d.Lists == nil || d.Lists(name)), explicit && (d.Serves == nil || d.Serves(name)):
			if !slices.Contains(m.models, name) {
				m.models = append(m.models, name)
			}
		case explicit:
			return fmt.Errorf("fallback-models: no provider serves %q; add it to models.providers[].models or take it out", name)
		default:
			skipped = append(skipped, name)
		}
	}
	if len(skipped) > 0 {
		d.Log.Info("default standby models that no provider lists by name are skipped", "skipped", skipped, "left", m.models)
	}
	return nil
}

func fallbackCodes(names []string) (map[messages.Code]bool, error) {
	on := map[messages.Code]bool{}
	for _, name := range names {
		code := messages.Code(name)
		switch {
		case name == "target":
			for _, c := range messages.Codes() {
				if c.Info().Fallback {
					on[c] = true
				}
			}
		case !code.Known():
			return nil, fmt.Errorf("fallback-on: %q is not a fault code; use target or codes such as provider_error", name)
		case slices.Contains(neverFallback, code):
			return nil, fmt.Errorf("fallback-on: %s can never fall back: the caller left, somebody stopped the call, "+
				"or part of the answer is out", name)
		default:
			on[code] = true
		}
	}
	return on, nil
}

func (m *modelFallback) after(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	var st fallbackState
	ours, err := c.State(&st)
	if err != nil {
		c.Unnote(messages.NoteIsFallback)
		return pipeline.Continue(), err
	}
	if !ours && c.Flag(messages.NoteIsFallback) {
		return pipeline.Continue(), nil // a stage further out falls back already
	}
	_, emptied := c.Notes[messages.NoteEmptied] // the model did answer, and a stage took its words out
	empty := c.Fault == nil && !emptied && view.EmptyReply(view.Of(c.Wire), c.Reply())
	switch {
	case c.Fault == nil && !empty:
		if ours {
			c.Note(messages.NoteDegraded, messages.StandbyMark(st.Model))
		}
		return m.end(c), nil
	case !failedTarget(c), c.Fault != nil && slices.Contains(neverFallback, c.Fault.Code):
		return m.end(c), nil
	case !ours && !empty && !m.on[c.Fault.Code]:
		return m.end(c), nil // a standby, once tried, fails by whatever the target says
	case c.Past(time.Now()):
		f := messages.NewFault(messages.DeadlineExceeded,
			"the call's time was over before a standby model could be tried; %s", describeFailure(c)).From("deadline")
		if c.Fault != nil {
			f.Detail, f.Last = c.Fault.Detail, c.Fault.Code
		}
		c.Fail(f)
		return m.end(c), nil
	case ctx.Err() != nil:
		return m.end(c), nil // the caller is gone
	}
	return m.next(ctx, c, st, ours)
}

// answered reports whether the model has answered: then there is nothing to do.
func answered(c *messages.Call) bool {
	return c.Fault == nil && !view.EmptyReply(view.Of(c.Wire), c.Reply())
}

// next sends the call inward with the next standby, or ends it with what the primary said.
func (m *modelFallback) next(
	ctx context.Context, c *messages.Call, st fallbackState, ours bool,
) (pipeline.Verdict, error) {
	stage, _ := c.Slip.Stage()
	kept := c.Kept(stage)
	primary := view.ModelName(kept)
	standby, delay, ok := m.choose(c, st, learnRoutes(c, m.deps), primary)
	if len(kept) == 0 || kept[0] != '{' || !ok {
		if ours {
			restoreOriginal(c, stage, st)
		}
		return m.end(c), nil
	}
	var last messages.Code
	if c.Fault != nil {
		last = c.Fault.Code
	}
	if !ours {
		st.Fault, st.Reply = c.Fault, c.Reply()
		if text, ok := c.ReplyText(); ok {
			st.Reply = []byte(text)
		}
		st.Tries = map[string]int{}
	}
	st.Model = standby
	st.Tries[standby]++
	record := retryRecord{Max: 1 + len(m.models)*m.tries, Last: last, Model: standby}
	delay, _ = decideRetry(ctx, m.deps, c, record, delay)
	if err := c.SetState(st); err != nil {
		return pipeline.Continue(), err
	}
	c.Note(messages.NoteIsFallback, true)
	clearAttempt(c)
	m.deps.Log.InfoContext(ctx, "model failed; a standby is tried", "call", c.ID, "primary", primary, "standby", standby,
		"try", st.Tries[standby], "code", last, "delayMs", delay.Milliseconds())
	return pipeline.AgainWith(delay, m.request(kept, primary, standby)), nil
}

// choose returns the next standby and the pause before it: the first in order that has tries left and whose provider
// may be asked. One whose provider asked for patience comes after all others, and only if the wait is worth it.
func (m *modelFallback) choose(
	c *messages.Call, st fallbackState, r routes, primary string,
) (next string, delay time.Duration, ok bool) {
	if c.Slip.Spent() {
		return "", 0, false
	}
	for _, s := range m.models {
		if s == primary || !c.MayModel(s) || st.Tries[s] >= m.tries || !r.open(m.deps, s) {
			continue
		}
		switch d, asked, may := r.wait(c, m.deps, s); {
		case !may:
		case !asked:
			return s, d, true
		case !ok || d < delay:
			next, delay, ok = s, d, true
		}
	}
	return next, delay, ok
}

func readFallbackState(raw []byte) (st fallbackState, ok bool) {
	if len(raw) == 0 {
		return st, true
	}
	return st, json.Unmarshal(raw, &st) == nil
}

func (m *modelFallback) request(kept []byte, primary, standby string) []byte {
	out := rawjson.SetFieldString(kept, "model", standby)
	if p := m.deps.Provider; p != nil && p(primary) != "" && p(primary) == p(standby) {
		return out
	}
	return dropCacheMarks(out)
}

// end closes the stage's part in the call. The flag goes away on every path, and so does the kept request.
func (m *modelFallback) end(c *messages.Call) pipeline.Verdict {
	c.Unnote(messages.NoteIsFallback)
	forget(c)
	return pipeline.Continue()
}

// restoreOriginal puts the primary's request and end back, so that outer stages see the two together.
func restoreOriginal(c *messages.Call, stage string, st fallbackState) {
	c.Restore(stage)
	if st.Fault != nil {
		c.Fail(st.Fault)
		return
	}
	c.SetReply(st.Reply)
}

func describeFailure(c *messages.Call) string {
	if c.Fault == nil {
		return "the model gave an empty reply"
	}
	return fmt.Sprintf("the model failed with %s: %s", c.Fault.Code, c.Fault.Message)
}

// cacheMarks are fields by which callers steer the prompt cache of one provider; another one refuses them as unknown
// or, worse, reads them as something else.
var cacheMarks = []string{
	"cache_control", "cachePoint", "cache_point", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
	"prompt_cache_breakpoint", "cached_content", "cachedContent",
}

// dropCacheMarks removes the marks where providers read them: on the request, its system prompt, its messages or items,
// their content parts and tool calls, and the tool definitions. Everything else keeps its bytes. A part that was
// nothing but a mark goes.
func dropCacheMarks(request []byte) []byte {
	message := func(m []byte) []byte {
		for _, key := range []string{"content", "output"} {
			m = eachElement(dropMarks(m), key, func(p []byte) []byte { // a result of a tool has parts of its own
				return eachElement(dropMarks(p), "content", dropMarks)
			})
		}
		return eachElement(m, "tool_calls", dropMarks)
	}
	out := eachElement(dropMarks(request), "system", dropMarks)
	out = eachElement(eachElement(out, "messages", message), "input", message)
	return eachElement(out, "tools", func(t []byte) []byte {
		t = dropMarks(t)
		if f, ok := rawjson.Field(t, "function"); ok {
			if g := dropMarks(f); len(g) != len(f) {
				t = rawjson.SetField(t, "function", g)
			}
		}
		return t
	})
}

func dropMarks(obj []byte) []byte {
	for _, mark := range cacheMarks {
		obj = rawjson.DropField(obj, mark)
	}
	return obj
}

// eachElement edits the elements of an array field; the field is only written if one changed.
func eachElement(obj []byte, key string, edit func([]byte) []byte) []byte {
	raw, _ := rawjson.Field(obj, key)
	elems := rawjson.Elements(raw)
	out := make([][]byte, 0, len(elems))
	changed := false
	for _, e := range elems {
		n := edit(e)
		if len(n) != len(e) {
			changed = true
			if string(n) == "{}" {
				continue
			}
		}
		out = append(out, n)
	}
	if !changed {
		return obj
	}
	return rawjson.SetField(obj, key, rawjson.Array(out))
}
