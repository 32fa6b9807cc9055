package stages

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages/internal/conversation"
)

// ToolSelectionConfig is agent.interceptor.tool-selection.
type ToolSelectionConfig struct {
	Common           `yaml:",inline"`
	MaxTools         int      `yaml:"max-tools" doc:"Best tools that stay; those of always-include come on top."`
	AlwaysInclude    []string `yaml:"always-include" doc:"Tools that stay whatever their score."`
	Strict           bool     `yaml:"strict" doc:"Records calls of tools that were left out, so that they get an error."`
	CaseSensitive    bool     `yaml:"case-sensitive" doc:"Whether words differ by case."`
	Ties             string   `yaml:"ties" doc:"Of equal scores the order of registration or of name decides."`
	DescriptionWords string   `yaml:"description-words" doc:"How descriptions are split: letters or spaces."`
}

func defaultToolSelection() ToolSelectionConfig {
	return ToolSelectionConfig{
		Common:   Common{ApplyTo: []string{pipeline.ApplyAgent, pipeline.ApplySession}},
		MaxTools: 10, AlwaysInclude: []string{"getCurrentTime", "searchKnowledgeBase"},
		CaseSensitive: true, Ties: "registration", DescriptionWords: "letters",
	}
}

// Validate returns what is wrong, joined, each error with its key in front.
func (c *ToolSelectionConfig) Validate() error {
	var f faults
	f.when(c.MaxTools < 1,
		"max-tools: %d; it must be 1 or more; to offer all tools set enabled: false", c.MaxTools)
	f.when(!slices.Contains([]string{"", "registration", "name"}, c.Ties),
		"ties: %q; known: registration, name", c.Ties)
	f.when(!slices.Contains([]string{"", "letters", "spaces"}, c.DescriptionWords),
		"description-words: %q; known: letters, spaces", c.DescriptionWords)
	return f.join()
}

// newToolSelection makes the stage that offers the model the tools that fit the newest user message best. Tools keep
// every byte. The first max-tools by score go first, best first, then those of always-include that are not among them.
// Kept whatever its score is a tool that tool_choice names, that the conversation has called, or that its last messages
// name, and one without a name, because there is nothing to judge it by. A request with no more than max-tools tools is
// not touched, nor is one whose message speaks for no tool at all.
//
// Strict mode does not change replies: what the model said stays what it said. A call of a tool that was left out is
// written into the note toolSelection.blocked, and whoever executes the reply's calls asks [BlockedTools] and answers
// such a call with a tool error. A caller outside a run executes their own calls, so there the note and a warning are
// all.
func newToolSelection(conf *ToolSelectionConfig, d Deps) (pipeline.Stage, error) {
	t := &toolSelector{conf: *conf, log: d.Log, warned: make([]atomic.Bool, len(conf.AlwaysInclude))}
	t.explicit = d.Explicit == nil || d.Explicit("agent.interceptor.tool-selection.always-include")
	s := pipeline.Stage{
		Before: t.before, Plain: withoutTools,
		Reads: []string{"request.messages", "request.tools"}, Writes: []string{"request.tools"},
	}
	if conf.Strict {
		s.After, s.ReadsAfter = t.after, []string{"reply"}
	}
	return s, nil
}

// withoutTools reports whether there is nothing to select from.
func withoutTools(c *messages.Call) bool {
	_, tools := rawjson.Field(c.Request(), "tools")
	return !c.Slip.Back && !tools
}

type toolSelector struct {
	conf     ToolSelectionConfig
	log      *slog.Logger
	explicit bool          // the operator wrote always-include; the built-in names need not exist
	warned   []atomic.Bool // one for each name of always-include: the warning comes once
}

func (t *toolSelector) before(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
	c.Unnote(messages.NoteToolsAllowed)
	c.Unnote(messages.NoteToolsBlocked)
	c.Edited("tool-selection")
	raw, _ := rawjson.Field(c.Request(), "tools")
	tools := readTools(raw)
	if len(tools) == 0 {
		return pipeline.Continue(), nil
	}
	t.missing(c, tools)
	if len(tools) <= t.conf.MaxTools {
		return pipeline.Continue(), nil
	}
	msgs, _ := conversation.Messages(c.Wire, c.Request())
	text := ""
	if at := view.NewestUser(msgs); at >= 0 {
		text = msgs[at].Text()
	}
	keep := chosen(c.Request())
	inUse(keep, msgs, tools)
	picked := t.pick(tools, text, keep)
	if len(picked) == len(tools) {
		return pipeline.Continue(), nil
	}
	offer := make(map[string]bool, len(picked))
	elems, allowed := make([][]byte, len(picked)), make([]string, 0, len(picked))
	for i, at := range picked {
		elems[i] = tools[at].raw
		offer[tools[at].name] = true
		allowed = append(allowed, tools[at].name)
	}
	c.SetRequest(rawjson.SetField(c.Request(), "tools", rawjson.Array(elems)))
	c.Note(messages.NoteToolsAllowed, allowed)
	c.Edited("tool-selection", fmt.Sprintf("left=%d", len(tools)-len(picked)))
	t.log.Debug("tools selected", "call", c.ID, "of", len(tools), "tools", allowed)
	if !t.conf.Strict {
		return pipeline.Continue(), nil
	}
	var out []string
	for _, tool := range tools {
		if !offer[tool.name] {
			out = append(out, tool.name)
		}
	}
	return pipeline.Continue(), c.SetState(out)
}

// after notes calls of tools that before left out; it exists in strict mode only.
func (t *toolSelector) after(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
	var out []string
	if ok, err := c.State(&out); !ok || err != nil || !c.HasReply() {
		return pipeline.Continue(), err
	}
	left := make(map[string]bool, len(out))
	for _, name := range out {
		left[name] = true
	}
	var blocked []string
	for _, call := range view.Calls(view.Of(c.Wire), c.Reply()) {
		if name := call.Name(); left[name] {
			delete(left, name)
			blocked = append(blocked, name)
		}
	}
	if len(blocked) > 0 {
		c.Note(messages.NoteToolsBlocked, blocked)
		t.log.Warn("model called tools that it was not offered", "call", c.ID, "tools", blocked)
	}
	return pipeline.Continue(), nil
}

// BlockedTools returns the tools that a finished model call asked for although strict tool selection had left them
// out. Whoever executes the calls answers each of them with a tool error instead.
func BlockedTools(c *messages.Call) []string {
	var names []string
	c.Noted(messages.NoteToolsBlocked, &names)
	return names
}

// missing warns of names in always-include that the request does not have; they are ignored.
func (t *toolSelector) missing(c *messages.Call, tools []toolView) {
	have := make(map[string]bool, len(tools))
	for _, tool := range tools {
		have[tool.name] = true
	}
	for i, name := range t.conf.AlwaysInclude {
		if have[name] || !t.explicit || t.warned[i].Swap(true) {
			continue
		}
		t.log.Warn("always-include names a tool that the request does not have; it is ignored", "tool", name, "call", c.ID)
	}
}

// pick returns the places of the tools to offer. A message that speaks for no tool says nothing about which can be
// missed, so then all are offered.
func (t *toolSelector) pick(tools []toolView, text string, keep map[string]bool) []int {
	s := newToolScorer(t.conf, text)
	scores := make([]int, len(tools))
	var ranked []int
	for i, tool := range tools {
		if tool.name != "" {
			scores[i] = s.score(tool.name, tool.description)
			ranked = append(ranked, i)
		}
	}
	if !slices.ContainsFunc(scores, func(n int) bool { return n > 0 }) {
		all := make([]int, len(tools))
		for i := range all {
			all[i] = i
		}
		return all
	}
	slices.SortStableFunc(ranked, func(a, b int) int {
		if scores[a] != scores[b] {
			return scores[b] - scores[a]
		}
		if t.conf.Ties == "name" {
			return strings.Compare(tools[a].name, tools[b].name)
		}
		return 0
	})
	picked := ranked[:min(t.conf.MaxTools, len(ranked))]
	in := make([]bool, len(tools))
	for _, i := range picked {
		in[i] = true
	}
	place := make(map[string]int, len(tools))
	for i := len(tools) - 1; i >= 0; i-- {
		place[tools[i].name] = i // of equal names the first
	}
	for _, name := range t.conf.AlwaysInclude {
		if i, ok := place[name]; ok && name != "" && !in[i] {
			in[i] = true
			picked = append(picked, i)
		}
	}
	for i, tool := range tools {
		if !in[i] && (tool.name == "" || keep[tool.name]) {
			in[i] = true
			picked = append(picked, i)
		}
	}
	return picked
}
