package stages

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages/internal/conversation"
)

// The strategies of context editing: the first four decide by places, rounds and tokens which messages go;
// CLEAR_TOOL_USES takes data out of old tool results and drops no message.
const (
	Trim           = "TRIM"
	Summarize      = "SUMMARIZE"
	SlidingWindow  = "SLIDING_WINDOW"
	Hybrid         = "HYBRID"
	ClearToolUsing = "CLEAR_TOOL_USES"
)

// Strategies is the value of the key strategy: one name or a list; the listed ones run in their order, each on what
// the one before left and by its own threshold.
type Strategies []string

// UnmarshalYAML reads one name, names by comma, or a list.
func (s *Strategies) UnmarshalYAML(read func(any) error) error {
	var list []string
	if read(&list) == nil {
		*s = list
		return nil
	}
	var one string
	if err := read(&one); err != nil {
		return err
	}
	s.set(one)
	return nil
}

func (s *Strategies) set(names string) {
	*s = nil
	for name := range strings.SplitSeq(names, ",") {
		*s = append(*s, strings.TrimSpace(name))
	}
}

// ContextEditingConfig is agent.interceptor.context-editing.
type ContextEditingConfig struct {
	Common `yaml:",inline"`
	// Strategy is one or several of Trim, Summarize, SlidingWindow, Hybrid and ClearToolUsing.
	Strategy Strategies `yaml:"strategy" doc:"TRIM, SUMMARIZE, SLIDING_WINDOW, HYBRID, CLEAR_TOOL_USES, or a list."`

	MaxTokens          int    `yaml:"max-tokens" doc:"Tokens above which messages are edited."`
	TrimKeepFirst      int    `yaml:"trim-keep-first" doc:"Messages at the beginning that TRIM keeps."`
	TrimKeepLast       int    `yaml:"trim-keep-last" doc:"Messages at the end that TRIM and summaries keep."`
	SummarizeThreshold int    `yaml:"summarize-threshold" doc:"Tokens above which a summary is made."`
	WindowRounds       int    `yaml:"window-rounds" doc:"Rounds that SLIDING_WINDOW keeps."`
	SummaryModel       string `yaml:"summary-model" doc:"Model that writes summaries; empty: the model of the call."`
	// A summary leaves SummaryGrowth of the limit free, and the next one is made when the text has grown by so much. In
	// the pause after one that failed the window keeps the limit.
	SummaryGrowth     float64       `yaml:"summary-growth" doc:"Share of the limit that a summary leaves free for growth."`
	SummaryWindow     int           `yaml:"summary-window" doc:"Tokens that the summary model is given at most."`
	SummaryTimeout    time.Duration `yaml:"summary-timeout" doc:"Longest wait for a summary."`
	SummaryRetryAfter time.Duration `yaml:"summary-retry-after" doc:"Pause after a failed summary of a conversation."`

	TokenCounter string `yaml:"token-counter" doc:"chars, calibrated, or tokenizer (needs the build tag tokenizer)."`
	// TokenizerVocabulary is a file in the format of tiktoken, for token-counter: tokenizer (build tag tokenizer).
	TokenizerVocabulary string        `yaml:"tokenizer-vocabulary" doc:"File of the vocabulary for tokenizer."`
	ClearToolUses       ClearToolUses `yaml:"clear-tool-uses"`
}

func defaultEditing() ContextEditingConfig {
	return ContextEditingConfig{
		Common:   Common{ApplyTo: []string{pipeline.ApplyAgent, pipeline.ApplySession}},
		Strategy: Strategies{Hybrid}, MaxTokens: 8000, TrimKeepFirst: 2, TrimKeepLast: 10, SummarizeThreshold: 4000,
		SummaryGrowth: 0.5, SummaryWindow: 16000, SummaryTimeout: 20 * time.Second, SummaryRetryAfter: 10 * time.Minute,
		WindowRounds: 10, TokenCounter: "chars", ClearToolUses: DefaultClearToolUses(),
	}
}

// Validate returns what is wrong, joined, each error with its key in front.
func (c *ContextEditingConfig) Validate() error {
	var f faults
	f.when(len(c.Strategy) == 0, "strategy: none named; known: %s", knownStrategies)
	names := slices.Clone(c.Strategy) // the defaults may be shared
	for i, s := range names {
		names[i] = strings.ToUpper(s)
		f.when(!slices.Contains(knownStrategies, names[i]), "strategy: %q; known: %s", s, knownStrategies)
	}
	c.Strategy = names
	for _, k := range []struct {
		key    string
		n, min int
	}{
		{"max-tokens", c.MaxTokens, 1}, {"trim-keep-first", c.TrimKeepFirst, 0}, {"trim-keep-last", c.TrimKeepLast, 0},
		{"summarize-threshold", c.SummarizeThreshold, 0}, {"window-rounds", c.WindowRounds, 1},
		{"summary-window", c.SummaryWindow, 1000},
	} {
		f.when(k.n < k.min, "%s: %d; it must be %d or more", k.key, k.n, k.min)
	}
	f.when(c.SummaryGrowth < 0.1 || c.SummaryGrowth > 0.9,
		"summary-growth: %v; it is a share from 0.1 to 0.9", c.SummaryGrowth)
	f.when(c.SummaryTimeout < summaryLeast, "summary-timeout: %s; it must be %s or more", c.SummaryTimeout, summaryLeast)
	f.when(c.SummaryRetryAfter < 0, "summary-retry-after: %s; it must not be below 0", c.SummaryRetryAfter)
	c.ClearToolUses.validate(&f)
	return f.join()
}

var knownStrategies = Strategies{Trim, Summarize, SlidingWindow, Hybrid, ClearToolUsing}

// Edited is what one strategy did; the note contextEditing is a list of them.
type Edited struct {
	Strategy string `json:"strategy"`
	Before   int    `json:"tokensBefore"`
	After    int    `json:"tokensAfter"`
	Dropped  int    `json:"droppedMessages,omitempty"`
	Cleared  int    `json:"clearedResults,omitempty"`
	// Summary is "made", "cached", or why there is none.
	Summary string `json:"summary,omitempty"`
	// Over says that the result is still above max-tokens: what is pinned, or the newest round alone, exceeds it.
	Over bool `json:"overBudget,omitempty"`
	// Skipped says why a strategy over its threshold changed nothing.
	Skipped string `json:"skipped,omitempty"`
}

// newContextEditing makes the stage that keeps the history within its budget. System and developer messages and the
// newest user message survive every strategy word for word; calls and results of tools are kept or dropped together. It
// fails open: where it cannot edit, the request goes on as it is.
func newContextEditing(conf *ContextEditingConfig, d Deps) (pipeline.Stage, error) {
	counter, err := conversation.NewTokenCounter(conf.TokenCounter, conf.TokenizerVocabulary)
	if err != nil {
		return pipeline.Stage{}, err
	}
	e := &contextEditor{conf: *conf, counter: counter, deps: d}
	e.conf.ClearToolUses.Counter = counter
	s := pipeline.Stage{Before: e.before, Plain: e.short, Reads: []string{"request.messages"},
		Writes: []string{"request.messages"}}
	if l, ok := counter.(conversation.Learner); ok {
		s.Reads = append(s.Reads, "reply.usage")
		s.After = func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			if c.HasReply() {
				l.Learn(c.Wire, c.Request(), c.Reply())
			}
			return pipeline.Continue(), nil
		}
	}
	return s, nil
}

// short reports whether a request has fewer bytes than any strategy allows tokens.
func (e *contextEditor) short(c *messages.Call) bool {
	least := min(e.conf.MaxTokens, e.conf.SummarizeThreshold, e.conf.ClearToolUses.Trigger)
	return !c.Slip.Back && len(c.Request()) < least
}

type contextEditor struct {
	conf    ContextEditingConfig
	counter conversation.TokenCounter
	deps    Deps
}

func (e *contextEditor) before(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	msgs, ok := conversation.Messages(c.Wire, c.Request())
	if !ok {
		return pipeline.Continue(), nil
	}
	model := view.ModelName(c.Request())
	var done []Edited
	changed := false
	for _, s := range e.conf.Strategy {
		out, ed, acted := e.run(ctx, c, s, model, msgs)
		if !acted {
			continue
		}
		done = append(done, ed)
		if ed.Skipped == "" {
			msgs, changed = out, true
		}
		e.deps.Log.Info("context editing", "call", c.ID, "strategy", s, "before", ed.Before, "after", ed.After,
			"freed", ed.Before-ed.After, "dropped", ed.Dropped, "cleared", ed.Cleared,
			"summary", ed.Summary, "skipped", ed.Skipped, "over", ed.Over)
	}
	c.Edited("context-editing", editedWords(done)...)
	if changed {
		c.SetRequest(view.Of(c.Wire).WithMessages(c.Request(), msgs))
	}
	// A second pass that changes nothing leaves the record of the first.
	if _, noted := c.Notes[messages.NoteContextEditing]; changed || len(done) > 0 && !noted {
		c.Note(messages.NoteContextEditing, done)
	}
	return pipeline.Continue(), nil
}

// editedWords are what a caller is told: messages cut, results cleared, and how it stands with the summary.
func editedWords(done []Edited) (out []string) {
	cut, cleared, summary := 0, 0, ""
	for _, ed := range done {
		cut, cleared = cut+ed.Dropped, cleared+ed.Cleared
		if ed.Summary != "" {
			summary, _, _ = strings.Cut(ed.Summary, ":")
		}
	}
	if cut > 0 {
		out = append(out, fmt.Sprintf("cut=%d", cut))
	}
	if cleared > 0 {
		out = append(out, fmt.Sprintf("cleared=%d", cleared))
	}
	switch summary {
	case summaryMade, summaryCached, "failed":
		out = append(out, "summary="+summary)
	}
	return out
}

// run applies one strategy; acted is false up to its threshold, and then no model is asked either.
func (e *contextEditor) run(
	ctx context.Context, c *messages.Call, strategy, model string, msgs []view.Msg,
) (out []view.Msg, ed Edited, acted bool) {
	if strategy == ClearToolUsing {
		return e.clear(ctx, c, model, msgs)
	}
	ed = Edited{Strategy: strategy, Before: e.counter.Count(model, msgs)}
	ed.After = ed.Before
	limit := e.conf.MaxTokens
	if strategy == Summarize {
		limit = e.conf.SummarizeThreshold
	}
	if ed.Before <= limit {
		e.deps.Log.Debug("context editing: within its limit", "call", c.ID, "strategy", strategy,
			"tokens", ed.Before, "limit", limit)
		return msgs, ed, false
	}
	h := conversation.ReadHistory(msgs)
	h.Count(model, e.counter)
	r := rolling{contextEditor: e, c: c, model: model, strategy: strategy, h: h, ed: &ed}
	out = msgs
	switch strategy {
	case Trim:
		out = e.trim(h, &ed)
	case SlidingWindow:
		out = e.window(h, &ed)
	case Summarize:
		out = r.summarize(ctx)
	case Hybrid:
		out = r.hybrid(ctx)
	}
	if ed.Dropped == 0 {
		out = msgs
		if ed.Skipped == "" {
			ed.Skipped = "nothing to drop"
		}
	} else {
		ed.After = e.counter.Count(model, out)
	}
	ed.Over = ed.After > e.conf.MaxTokens
	return out, ed, true
}

// stays reports whether the tool's definition says that its results must not be cleared. A tool that is not known here
// is the caller's own and says nothing.
func (e *contextEditor) stays(ctx context.Context, tool string) bool {
	if e.deps.Tools == nil {
		return false
	}
	ctx, cancel := openStore(ctx)
	defer cancel()
	def, err := e.deps.Tools.Get(ctx, tool)
	return err == nil && def.Clearable != nil && !*def.Clearable
}

// clear runs the editor of CLEAR_TOOL_USES and keeps its marks in the call.
func (e *contextEditor) clear(
	ctx context.Context, c *messages.Call, model string, msgs []view.Msg,
) (out []view.Msg, ed Edited, acted bool) {
	var ids []string
	c.Noted(messages.NoteCleared, &ids)
	marked := make(map[string]bool, len(ids))
	for _, id := range ids {
		marked[id] = true
	}
	edit := e.conf.ClearToolUses
	edit.Excludes = func(tool string) bool { return e.stays(ctx, tool) }
	out, done := edit.Apply(model, msgs, marked)
	ed = Edited{
		Strategy: ClearToolUsing, Before: done.Before, After: done.After, Cleared: len(done.IDs), Skipped: done.Why,
	}
	ed.Over = ed.After > e.conf.ClearToolUses.Trigger
	if done.Before <= e.conf.ClearToolUses.Trigger {
		e.deps.Log.Debug("context editing: within its limit", "call", c.ID, "strategy", ClearToolUsing,
			"tokens", done.Before)
		return msgs, ed, false
	}
	for _, id := range done.IDs {
		if !marked[id] {
			marked[id] = true
			ids = append(ids, id)
		}
	}
	if len(done.IDs) > 0 {
		c.Note(messages.NoteCleared, ids)
	}
	return out, ed, true
}
