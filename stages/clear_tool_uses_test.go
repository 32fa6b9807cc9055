package stages_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/stages"
	"github.com/shallot-nats/shallot/stages/internal/conversation"
)

// uses is a history of tool results of 100 tokens, one for each tool name.
func uses(tools ...string) []chat.Msg {
	in := []chat.Msg{msg("user", sized("", 10))}
	for i, tool := range tools {
		id := fmt.Sprint("c", i+1)
		in = append(in, calling(id+" "+tool+` {"q":"`+sized("", 20)+`"}`), result(id, sized(id, 100)))
	}
	return append(in, msg("assistant", "done"))
}

func cleared(msgs []chat.Msg, placeholder string) (ids []string) {
	for _, m := range msgs {
		if m.Role() == "tool" && m.Text() == placeholder {
			ids = append(ids, m.ToolCallID())
		}
	}
	return ids
}

func TestClearToolUses(t *testing.T) {
	t.Parallel()
	in := uses("k", "x", "y", "z", "x")
	total := conversation.Chars{}.Count("", in)
	for name, tc := range map[string]struct {
		set  func(*stages.ClearToolUses)
		want []string
		why  string
	}{
		"equal to the trigger (CU-1)": {set: func(e *stages.ClearToolUses) { e.Trigger = total },
			why: "not over"},
		"one above the trigger (CU-1)": {set: func(e *stages.ClearToolUses) { e.Trigger = total - 1 },
			want: []string{"c1", "c2"}},
		"no more results than keep (CU-3)": {set: func(e *stages.ClearToolUses) { e.Keep = 5 }, why: "no candidate"},
		"keep 0 (CU-4)": {set: func(e *stages.ClearToolUses) { e.Keep = 0 },
			want: []string{"c1", "c2", "c3", "c4", "c5"}},
		"stops when enough is freed (CU-5)": {
			set: func(e *stages.ClearToolUses) { e.Keep = 1; e.ClearAtLeast = 150 }, want: []string{"c1", "c2"}},
		"clear-at-least cannot be reached (CU-6)": {
			set: func(e *stages.ClearToolUses) { e.Keep = 1; e.ClearAtLeast = 5000 }, why: "clear-at-least is 5000"},
		"excluded tools take no place in keep (CU-7)": {
			set: func(e *stages.ClearToolUses) { e.Keep = 1; e.ExcludeTools = []string{"k", "z"} }, want: []string{"c2", "c3"}},
		"keep counts clearable results (X-18)": {
			set: func(e *stages.ClearToolUses) { e.Keep = 2; e.ExcludeTools = []string{"x"} }, want: []string{"c1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := stages.DefaultClearToolUses()
			e.Trigger = 0
			tc.set(&e)
			before := raws(in)
			out, done := e.Apply("m", in, nil)
			require.Equal(t, tc.want, cleared(out, "[cleared]"))
			require.Equal(t, tc.want, done.IDs)
			require.Contains(t, done.Why, tc.why)
			require.Equal(t, before, raws(in), "the input is not changed (CU-11)")
			paired(t, out)
			if tc.want == nil {
				require.Equal(t, before, raws(out))
				require.NotEmpty(t, done.Why)
			} else {
				require.InDelta(t, done.Before-done.After, done.Freed, 5, "but for rounding")
			}
		})
	}
	t.Run("defaults (S3-CLEAR-1 X-20)", func(t *testing.T) {
		t.Parallel()
		e := stages.DefaultClearToolUses()
		require.Equal(t, stages.ClearToolUses{Trigger: 100000, Keep: 3, Placeholder: "[cleared]"}, e)
		require.Equal(t, "clear_tool_uses", e.Name())
	})
	t.Run("arguments (CU-8 X-16 X-17)", func(t *testing.T) {
		t.Parallel()
		e := stages.ClearToolUses{Keep: 1, Placeholder: "[cleared]"}
		in := []chat.Msg{msg("user", "u"), calling(`a f {"q":"long long long"}`, `b g {"q":2}`), result("b", "2"),
			result("a", "1")}
		out, _ := e.Apply("", in, nil)
		require.Equal(t, string(in[1].Raw), string(out[1].Raw), "false: arguments untouched")
		e.ClearToolInputs = true
		out, _ = e.Apply("", in, nil)
		calls := out[1].ToolCalls()
		require.Equal(t, []string{"a", "f", `{"q":"long long long"}`},
			[]string{calls[0].ID(), calls[0].Name(), calls[0].Arguments()})
		require.Equal(t, []string{"b", "g", `{}`}, []string{calls[1].ID(), calls[1].Name(), calls[1].Arguments()})
		require.Equal(t, []string{"b"}, cleared(out, "[cleared]"))
	})
	t.Run("placeholder (CU-10)", func(t *testing.T) {
		t.Parallel()
		e := stages.ClearToolUses{Placeholder: "X"}
		out, _ := e.Apply("", in, nil)
		require.Equal(t, []string{"c1", "c2", "c3", "c4", "c5"}, cleared(out, "X"))
	})
	t.Run("a call without result (CU-13)", func(t *testing.T) {
		t.Parallel()
		e := stages.ClearToolUses{Placeholder: "X", ClearToolInputs: true}
		in := []chat.Msg{calling("a f", `b g {"x":1}`), result("a", "1"), msg("user", "u")}
		out, done := e.Apply("", in, nil)
		require.Len(t, out, 3)
		require.Equal(t, []string{"a"}, done.IDs)
		require.Equal(t, `{"x":1}`, out[0].ToolCalls()[1].Arguments())
	})
	t.Run("a counter of one's own (CU-14)", func(t *testing.T) {
		t.Parallel()
		counted := 0
		e := stages.ClearToolUses{Trigger: 20, Placeholder: "X", Keep: 1, ClearAtLeast: 2,
			Counter: conversation.TokenCounterFunc(
				func(model string, msgs []chat.Msg) int {
					require.Equal(t, "m", model)
					counted++
					n := 0
					for _, m := range msgs {
						if n += 2; m.Text() == "X" {
							n--
						}
					}
					return n
				})}
		out, done := e.Apply("m", in, nil)
		require.Equal(t, []string{"c1", "c2"}, cleared(out, "X"), "each clearing frees one")
		require.Equal(t, 2, done.Freed)
		require.Greater(t, counted, 4)
		e.Trigger = 24
		_, done = e.Apply("m", in, nil)
		require.Equal(t, "not over the trigger", done.Why)
	})
	t.Run("content parts become the placeholder", func(t *testing.T) {
		t.Parallel()
		parts := chat.Msg{Raw: []byte(`{"role":"tool","tool_call_id":"a",` +
			`"content":[{"type":"text","text":"long"}],"extra":1}`)}
		out, _ := stages.ClearToolUses{Placeholder: "X"}.Apply("", []chat.Msg{calling("a f"), parts}, nil)
		require.Equal(t, `{"role":"tool","tool_call_id":"a","content":"X","extra":1}`, string(out[1].Raw))
	})
}

func TestClearToolUsesStage(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := mustShape(t, "context-editing", stages.Deps{Log: logger(&log)}, func(c *editing) {
		c.Strategy = stages.Strategies{stages.ClearToolUsing}
		c.ClearToolUses.Trigger, c.ClearToolUses.Keep = 100, 1
	})
	c := call(request(uses("x", "y", "z")...))
	c.Keep("outer")
	kept := string(c.Request())
	run := func() string {
		c = harnessWire(t, c)
		_, err := s.Before(t.Context(), c)
		require.NoError(t, err)
		return string(c.Request())
	}
	first := run()
	require.Equal(t, []string{"c1", "c2"}, cleared(chat.Messages(c.Request()), "[cleared]"))
	note := edits(t, c)
	require.Equal(t, 2, note[0].Cleared)
	require.Contains(t, log.String(), "strategy=CLEAR_TOOL_USES", "S3-CLEAR-10")
	require.Contains(t, log.String(), fmt.Sprintf("freed=%d", note[0].Before-note[0].After))

	require.Equal(t, first, run(), "second pass (CU-9)")
	require.Equal(t, note, edits(t, c), "not counted again (CU-9)")

	c.SetRequest(chat.WithMessages(c.Request(), append(chat.Messages(c.Request()),
		calling("n1 x"), result("n1", "[cleared]"), calling("n2 x"), result("n2", "tail"))))
	run()
	require.Equal(t, []string{"c1", "c2", "c3", "n1"}, cleared(chat.Messages(c.Request()), "[cleared]"))
	require.Equal(t, 2, edits(t, c)[0].Cleared, "the fresh result is a candidate: c3 and n1 were cleared, n2 kept (CU-12)")

	require.True(t, c.Restore("outer"))
	require.Equal(t, kept, string(c.Request()), "what was kept is unchanged (CU-11)")
	require.Equal(t, first, run(), "the next attempt of an outer stage is cleared like the first")
}

// someTools are the definitions of tools by name.
type someTools map[string]tool.Definition

func (s someTools) Get(_ context.Context, name string) (*tool.Definition, error) {
	d, ok := s[name]
	if !ok {
		return nil, messages.NewFault(messages.ToolNotFound, "there is no tool '%s'", name)
	}
	return &d, nil
}

// TestClearableIsTheToolsToSay: clearable: false in a definition keeps its results, as exclude-tools does.
func TestClearableIsTheToolsToSay(t *testing.T) {
	t.Parallel()
	no, yes := false, true
	tools := someTools{"x": {Policy: tool.Policy{Clearable: &no}}, "y": {Policy: tool.Policy{Clearable: &yes}}}
	s := mustShape(t, "context-editing", stages.Deps{Tools: tools}, func(c *editing) {
		c.Strategy = stages.Strategies{stages.ClearToolUsing}
		c.ClearToolUses.Trigger, c.ClearToolUses.Keep = 100, 0
	})
	c := call(request(uses("x", "y", "z")...))
	_, err := s.Before(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, []string{"c2", "c3"}, cleared(chat.Messages(c.Request()), "[cleared]"))
}
