package stages_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/stages"
	"github.com/shallot-nats/shallot/stages/internal/conversation"
)

type editing = stages.ContextEditingConfig

func editor(t testing.TB, d stages.Deps, set func(*editing)) func(body []byte) *messages.Call {
	s := mustShape(t, "context-editing", d, set)
	return func(body []byte) *messages.Call { return shape(t, s, body) }
}

// talk is n messages, user and assistant in turn, of so many tokens each.
func talk(n, tokens int) []chat.Msg {
	out := make([]chat.Msg, n)
	for i := range out {
		role := []string{"user", "assistant"}[i%2]
		out[i] = msg(role, sized(fmt.Sprintf("%d ", i+1), tokens))
	}
	return out
}

func sized(head string, tokens int) string { return head + strings.Repeat("x", tokens*4-len(head)) }

func edits(t testing.TB, c *messages.Call) []stages.Edited {
	var out []stages.Edited
	require.True(t, c.Noted(messages.NoteContextEditing, &out))
	return out
}

func TestTrim(t *testing.T) {
	t.Parallel()
	edit := editor(t, stages.Deps{}, func(c *editing) { c.Strategy = stages.Strategies{stages.Trim}; c.MaxTokens = 100 })
	t.Run("the middle goes (CE-1)", func(t *testing.T) {
		t.Parallel()
		in := talk(20, 50)
		c := edit(request(in...))
		require.Equal(t, append(raws(in[:2]), raws(in[10:])...), lines(c))
		require.Equal(t, []stages.Edited{{Strategy: stages.Trim, Before: 1000, After: 600, Dropped: 8, Over: true}},
			edits(t, c))
		require.True(t, strings.HasSuffix(string(c.Request()), `"x-big":9007199254740993}`), "other fields stay")
	})
	t.Run("nothing in the middle (CE-2)", func(t *testing.T) {
		t.Parallel()
		body := request(talk(12, 50)...)
		require.Equal(t, string(body), string(edit(body).Request()))
	})
	t.Run("within max-tokens (CE-3)", func(t *testing.T) {
		t.Parallel()
		body := request(talk(20, 5)...)
		c := edit(body)
		require.Equal(t, string(body), string(c.Request()))
		require.NotContains(t, c.Notes, messages.NoteContextEditing)
		require.NotEqual(t, string(request(talk(20, 6)...)), string(edit(request(talk(20, 6)...)).Request()))
	})
	t.Run("a cut inside five parallel results (CE-12)", func(t *testing.T) {
		t.Parallel()
		in := talk(12, 50)
		in = append(in, calling("a f", "b f", "c f", "d f", "e f"))
		for _, id := range []string{"a", "b", "c", "d", "e"} {
			in = append(in, result(id, sized("", 50)))
		}
		in = append(in, talk(7, 50)...) // the last ten begin at the third result
		c := edit(request(in...))
		require.Equal(t, append(raws(in[:2]), raws(in[12:])...), lines(c))
	})
	t.Run("pinned in the middle (CE-10 CE-11)", func(t *testing.T) {
		t.Parallel()
		in := append(talk(4, 50), msg("developer", "rule"), msg("user", "the question"))
		for i := range 12 {
			in = append(in, msg("assistant", sized(fmt.Sprint(i, " "), 50)))
		}
		c := edit(request(in...))
		require.Equal(t, append(append(raws(in[:2]), raws(in[4:6])...), raws(in[8:])...), lines(c))
	})
}

func TestSlidingWindow(t *testing.T) {
	t.Parallel()
	var in []chat.Msg
	in = append(in, msg("system", "be kind"))
	for i := range 5 {
		id := fmt.Sprint("c", i)
		in = append(in, msg("user", sized(id, 20)), calling(id+" f"), result(id, sized(id, 20)),
			msg("assistant", sized(id, 20)))
	}
	edit := editor(t, stages.Deps{}, func(c *editing) {
		c.Strategy, c.MaxTokens, c.WindowRounds = stages.Strategies{stages.SlidingWindow}, 100, 3
	})
	t.Run("system and the last three rounds (CE-8)", func(t *testing.T) {
		t.Parallel()
		c := edit(request(in...))
		require.Equal(t, append(raws(in[:1]), raws(in[9:])...), lines(c))
	})
	t.Run("fewer rounds than the window (CE-3)", func(t *testing.T) {
		t.Parallel()
		body := request(in[:13]...)
		c := edit(body)
		require.Equal(t, string(body), string(c.Request()))
		require.Equal(t, "nothing to drop", edits(t, c)[0].Skipped)
		require.True(t, edits(t, c)[0].Over)
	})
}

func TestStrategyLists(t *testing.T) {
	t.Parallel()
	t.Run("clear first, then trim by what is left (X-14)", func(t *testing.T) {
		t.Parallel()
		edit := editor(t, stages.Deps{}, func(c *editing) {
			c.Strategy = stages.Strategies{stages.ClearToolUsing, stages.Trim}
			c.MaxTokens, c.ClearToolUses.Trigger, c.ClearToolUses.Keep = 500, 500, 0
		})
		in := []chat.Msg{msg("user", "go"), calling("a f"), result("a", sized("", 1000)), msg("user", "and")}
		c := edit(request(in...))
		require.Len(t, lines(c), 4)
		require.Equal(t, "[cleared]", chat.Messages(c.Request())[2].Text())
		require.Len(t, edits(t, c), 1, "trim was within its limit then")
	})
	for name, set := range map[string]func(*editing){
		"no strategy":      func(c *editing) { c.Strategy = nil },
		"unknown strategy": func(c *editing) { c.Strategy = stages.Strategies{"SQUASH"} },
		"max-tokens 0":     func(c *editing) { c.MaxTokens = 0 },
		"window 0":         func(c *editing) { c.WindowRounds = 0 },
		"keep -1":          func(c *editing) { c.ClearToolUses.Keep = -1 },
		"counter":          func(c *editing) { c.TokenCounter = "guess" },
	} {
		t.Run("refused: "+name, func(t *testing.T) {
			t.Parallel()
			_, err := shaping(t, "context-editing", stages.Deps{}, set)
			require.ErrorContains(t, err, "agent.interceptor.context-editing: ")
		})
	}
	t.Run("reads one name, a list, and names by comma", func(t *testing.T) {
		t.Parallel()
		for _, text := range []string{`"HYBRID,TRIM"`, `["HYBRID","TRIM"]`, `"HYBRID, TRIM"`} {
			var s stages.Strategies
			require.NoError(t, s.UnmarshalYAML(func(v any) error { return json.Unmarshal([]byte(text), v) }))
			require.Equal(t, stages.Strategies{"HYBRID", "TRIM"}, s, text)
		}
	})
}

// TestStrategyProperties holds CE-10..CE-13 for every strategy over any valid history.
func TestStrategyProperties(t *testing.T) {
	t.Parallel()
	for _, name := range []string{stages.Trim, stages.Summarize, stages.SlidingWindow, stages.Hybrid,
		stages.ClearToolUsing} {
		t.Run(name+" (CE-10 CE-11 CE-12 CE-13)", func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(r *rapid.T) {
				n := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(r, name) }
				max, sum, first, last := n("max", 1, 200), n("sum", 0, 100), n("first", 0, 5), n("last", 0, 8)
				window, keep := n("window", 1, 5), n("keep", 0, 4)
				d := stages.Deps{Store: memories(), Caller: &summariser{text: "what was said before"}}
				s, err := shaping(t, "context-editing", d, func(c *editing) {
					c.Strategy = stages.Strategies{name}
					c.MaxTokens, c.SummarizeThreshold, c.TrimKeepFirst, c.TrimKeepLast, c.WindowRounds = max, sum, first, last, window
					c.ClearToolUses.Trigger, c.ClearToolUses.Keep, c.ClearToolUses.ClearToolInputs = max, keep, n("in", 0, 1) == 1
				})
				require.NoError(r, err)
				in := anyHistory(r, true)
				var out [2]*messages.Call
				for i := range out {
					out[i] = call(request(in...))
					_, err = s.Before(t.Context(), out[i])
					require.NoError(r, err)
				}
				require.Equal(r, string(out[0].Request()), string(out[1].Request()), "CE-13")
				got := chat.Messages(out[0].Request())
				require.Empty(r, unpaired(got), "CE-12")
				var pinned, kept []string
				newest := chat.NewestUser(in)
				for i, m := range in {
					if m.System() || i == newest {
						pinned = append(pinned, string(m.Raw))
					}
				}
				newest = chat.NewestUser(got)
				for i, m := range got {
					if m.System() || i == newest && len(kept) < len(pinned) {
						kept = append(kept, string(m.Raw))
					}
				}
				if chat.NewestUser(in) >= 0 {
					require.Equal(r, pinned, kept, "(CE-10 CE-11)")
				}
				if name == stages.Hybrid && out[0].Notes[messages.NoteContextEditing] != nil {
					e := edits(t, out[0])[0]
					require.Equal(r, e.After > max, e.Over, "what is over is reported (CE-9)")
					least, start := 0, chat.NewestUser(in)
					if start == firstUser(in) {
						start = 0 // what stands before the first user message belongs to the first round
					}
					for i, m := range in {
						if i >= start || m.System() {
							least += conversation.Chars{}.Count("", in[i:i+1])
						}
					}
					if least <= max {
						require.False(r, e.Over, "only what is pinned and the newest round may exceed the budget (CE-9)")
					}
				}
			})
		})
	}
}

func firstUser(msgs []chat.Msg) int {
	return slices.IndexFunc(msgs, func(m chat.Msg) bool { return m.Role() == "user" })
}

// long is a history of 200 messages and about 300 KB with parallel tool calls.
func long(n int) []chat.Msg {
	in := []chat.Msg{msg("system", "be kind")}
	for i := 0; len(in) < n-1; i++ {
		in = append(in, msg("user", sized(fmt.Sprint("question 中 ", i), 200)))
		a, b, c := fmt.Sprint("a", i), fmt.Sprint("b", i), fmt.Sprint("c", i)
		in = append(in, calling(a+` read {"path":"/x"}`, b+" search {}", c+" list {}"))
		for _, id := range []string{c, a, b} {
			in = append(in, result(id, sized(id, 600)))
		}
		in = append(in, msg("assistant", sized(fmt.Sprint("answer ", i), 200)))
	}
	return append(in[:n-1], msg("user", "and now?"))
}

func TestLongHistoryThroughAllStages(t *testing.T) {
	t.Parallel()
	in, _ := stages.RepairPairs(long(200))
	require.Greater(t, len(request(in...)), 300_000)
	for _, strategy := range [][]string{{stages.Trim}, {stages.Summarize}, {stages.SlidingWindow}, {stages.Hybrid},
		{stages.ClearToolUsing},
		{stages.ClearToolUsing, stages.Hybrid}} {
		t.Run(strings.Join(strategy, "+"), func(t *testing.T) {
			t.Parallel()
			d := stages.Deps{Store: memories(), Caller: &summariser{text: "before"}}
			edit := mustShape(t, "context-editing", d, func(c *editing) {
				c.Strategy = strategy
				c.ClearToolUses.Trigger = 10000
			})
			repair := mustShape[stages.PairRepairConfig](t, "pair-repair", d, nil)
			hint := mustShape(t, "sub-agent", d, func(c *stages.SubAgentConfig) { c.Agents = reviewers })
			pick := mustShape(t, "tool-selection", d, func(c *stages.ToolSelectionConfig) { c.Strict = true })
			_, got := through(t, call(request(in...)), nil, repair, edit, hint, pick)
			msgs := chat.Messages(got)
			paired(t, msgs)
			require.Equal(t, "be kind", msgs[0].Text())
			require.Equal(t, "and now?", msgs[len(msgs)-1].Text())
			require.Less(t, len(got), len(request(in...)))
		})
	}
}

func BenchmarkContextEditing(b *testing.B) {
	for _, strategy := range []string{stages.Trim, stages.SlidingWindow, stages.Hybrid, stages.ClearToolUsing} {
		for _, n := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/%d", strategy, n), func(b *testing.B) {
				d := stages.Deps{Store: memories(), Caller: &summariser{text: "before"}}
				s := mustShape(b, "context-editing", d, func(c *editing) {
					c.Strategy, c.MaxTokens, c.ClearToolUses.Trigger = stages.Strategies{strategy}, 1000, 0
				})
				body := request(long(n)...)
				b.SetBytes(int64(len(body)))
				for b.Loop() {
					_, _ = s.Before(b.Context(), call(body))
				}
			})
		}
	}
}

// TestContextEditingYAML reads the section as a file has it: what is not named keeps its default.
func TestContextEditingYAML(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]stages.Strategies{
		"strategy: TRIM":                      {"TRIM"},
		"strategy: [CLEAR_TOOL_USES, HYBRID]": {"CLEAR_TOOL_USES", "HYBRID"},
		"max-tokens: 8000":                    {"HYBRID"},
	} {
		for _, s := range stages.All() {
			if s.Name != "context-editing" {
				continue
			}
			c := s.Config().(*editing)
			text += "\nenabled: true\nwindow-rounds: 3\nclear-tool-uses: {keep: 1}\n"
			require.NoError(t, yaml.UnmarshalWithOptions([]byte(text), c, yaml.Strict()))
			require.Equal(t, want, c.Strategy)
			require.True(t, *c.Enabled)
			require.Equal(t, []string{"agent", "session"}, c.ApplyTo)
			require.Equal(t, []int{8000, 2, 10, 4000, 3},
				[]int{c.MaxTokens, c.TrimKeepFirst, c.TrimKeepLast, c.SummarizeThreshold, c.WindowRounds})
			require.Equal(t, stages.ClearToolUses{Trigger: 100000, Keep: 1, Placeholder: "[cleared]"}, c.ClearToolUses)
		}
	}
}
