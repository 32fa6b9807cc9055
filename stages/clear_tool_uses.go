package stages

import (
	"fmt"
	"slices"

	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/stages/internal/conversation"
)

// TokenCounter estimates how many tokens messages cost a model.
type TokenCounter = conversation.TokenCounter

// Chars is the TokenCounter that holds where none is given: one token for four characters.
type Chars = conversation.Chars

// clearedArguments is what cleared tool-call arguments become: they must be JSON, which a placeholder text is not.
const clearedArguments = "{}"

// ClearToolUses is the editor of strategy CLEAR_TOOL_USES: it takes the data out of old tool results and leaves the
// calls and results themselves in place. It is a value, and its zero fields mean zero: see [DefaultClearToolUses].
type ClearToolUses struct {
	Trigger         int      `yaml:"trigger" doc:"Acts above this many tokens."`
	ClearAtLeast    int      `yaml:"clear-at-least" doc:"Frees so many tokens or changes nothing; 0: clears all but keep."`
	Keep            int      `yaml:"keep" doc:"Latest tool results that stay."`
	ClearToolInputs bool     `yaml:"clear-tool-inputs" doc:"Clears the arguments of the cleared calls too."`
	ExcludeTools    []string `yaml:"exclude-tools" doc:"Tools whose results are never cleared."`
	Placeholder     string   `yaml:"placeholder" doc:"What stands in place of a cleared result."`
	// Excludes says of further tools whether their results stay (clearable: false in the definition); nil: of none.
	Excludes func(tool string) bool `yaml:"-" json:"-"`
	// Counter counts for the trigger and for each candidate; nil means Chars.
	Counter TokenCounter `yaml:"-" json:"-"`
}

// DefaultClearToolUses returns the defaults: above 100,000 tokens all but the latest three results are cleared.
func DefaultClearToolUses() ClearToolUses {
	return ClearToolUses{Trigger: 100000, Keep: 3, Placeholder: "[cleared]"}
}

// Name is the editor's name.
func (ClearToolUses) Name() string { return "clear_tool_uses" }

func (e ClearToolUses) validate(f *faults) {
	for _, k := range []struct {
		key string
		n   int
	}{{"trigger", e.Trigger}, {"clear-at-least", e.ClearAtLeast}, {"keep", e.Keep}} {
		f.when(k.n < 0, "clear-tool-uses.%s: %d; it is a count, 0 or more", k.key, k.n)
	}
}

// Cleared says what one run of the editor did.
type Cleared struct {
	Before, After int      // tokens of the whole list
	Freed         int      // tokens taken out, the placeholders counted against it
	IDs           []string // tool_call_id of each result cleared now, oldest first
	Why           string   // empty if something was cleared, else why not
}

// Apply returns the messages with old tool results cleared. The input is not changed, for it may be somebody's stored
// history. marked holds the ids of results that were cleared before in this call: the mark is this set, never the text,
// so a fresh result that happens to read like the placeholder is still a candidate; and a marked result whose data is
// back, because an outer stage restored the request for another attempt, is one again. Calls without a result are left
// alone: inventing one is the work of pair-repair.
//
// Only the latest Keep candidates are safe from it; excluded and already cleared results take no place among them.
func (e ClearToolUses) Apply(model string, msgs []view.Msg, marked map[string]bool) ([]view.Msg, Cleared) {
	counter := e.Counter
	if counter == nil {
		counter = Chars{}
	}
	done := Cleared{Before: counter.Count(model, msgs)}
	done.After = done.Before
	if done.Before <= e.Trigger {
		done.Why = "not over the trigger"
		return msgs, done
	}
	p := conversation.Pair(msgs)
	all := e.candidates(msgs, p, marked)
	if len(all) <= e.Keep {
		done.Why = "no candidate"
		return msgs, done
	}
	w := clearing{e: e, counter: counter, model: model, p: p, out: slices.Clone(msgs), calls: map[int][]view.ToolCall{}}
	for _, i := range all[:len(all)-e.Keep] {
		if e.ClearAtLeast > 0 && done.Freed >= e.ClearAtLeast {
			break
		}
		done.Freed += w.result(i) + w.arguments(i)
		done.IDs = append(done.IDs, msgs[i].ToolCallID())
	}
	if e.ClearAtLeast > 0 && done.Freed < e.ClearAtLeast {
		done = Cleared{Before: done.Before, After: done.Before,
			Why: fmt.Sprintf("only %d tokens can be freed, clear-at-least is %d", done.Freed, e.ClearAtLeast)}
		return msgs, done
	}
	for i, calls := range w.calls {
		w.out[i] = w.out[i].WithToolCalls(calls)
	}
	done.After = counter.Count(model, w.out)
	return w.out, done
}

// candidates are the results that may be cleared, oldest first.
func (e ClearToolUses) candidates(msgs []view.Msg, p *conversation.Pairing, marked map[string]bool) []int {
	excluded := make(map[string]bool, len(e.ExcludeTools))
	for _, name := range e.ExcludeTools {
		excluded[name] = true
	}
	var out []int
	for i, m := range msgs {
		if r := p.Roles[i]; r != "tool" && r != "function" {
			continue
		}
		tool := p.Tool(i, m)
		if _, asked := excluded[tool]; !asked && e.Excludes != nil {
			excluded[tool] = e.Excludes(tool)
		}
		if excluded[tool] || marked[m.ToolCallID()] && m.Text() == e.Placeholder {
			continue
		}
		out = append(out, i)
	}
	return out
}

// clearing is one run of the editor over a copy of the list.
type clearing struct {
	e       ClearToolUses
	counter TokenCounter
	model   string
	p       *conversation.Pairing
	out     []view.Msg
	calls   map[int][]view.ToolCall // edited calls by message, written back once at the end
}

func (w *clearing) cost(m view.Msg) int { return w.counter.Count(w.model, []view.Msg{m}) }

// result puts the placeholder into a result and returns the tokens that it frees.
func (w *clearing) result(i int) int {
	before := w.cost(w.out[i])
	w.out[i] = w.out[i].WithText(w.e.Placeholder)
	return before - w.cost(w.out[i])
}

// arguments clears the arguments of the call that a result answers, if ClearToolInputs says so, and returns the tokens
// that it frees. Ids and names stay.
func (w *clearing) arguments(i int) int {
	msg, at := w.p.Owner[i], w.p.Slot[i]
	if !w.e.ClearToolInputs || msg < 0 || at < 0 {
		return 0
	}
	calls, ok := w.calls[msg]
	if !ok {
		calls = w.out[msg].ToolCalls()
	}
	if calls[at].Arguments() == clearedArguments {
		return 0
	}
	alone := func() int {
		return w.cost(w.out[msg].CallsOnly(calls[at : at+1]))
	}
	before := alone()
	calls[at] = calls[at].WithArguments(clearedArguments)
	w.calls[msg] = calls
	return before - alone()
}
