package stages_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/stages"
)

func TestPairRepair(t *testing.T) {
	t.Parallel()
	s := mustShape[stages.PairRepairConfig](t, "pair-repair", stages.Deps{}, nil)
	require.Equal(t, []string{"agent"}, s.ApplyTo)
	type M = []chat.Msg
	u := msg("user", "hi")
	for name, tc := range map[string]struct {
		in, want M
		done     stages.PairRepaired
	}{
		"valid history keeps its bytes, results in their own order": {
			in:   M{u, calling("a f", "b g"), result("b", "2"), result("a", "1"), msg("assistant", "ok")},
			want: M{u, calling("a f", "b g"), result("b", "2"), result("a", "1"), msg("assistant", "ok")},
		},
		"ids counted anew in each message": {
			in:   M{calling("c0 f"), result("c0", "1"), calling("c0 f"), result("c0", "2")},
			want: M{calling("c0 f"), result("c0", "1"), calling("c0 f"), result("c0", "2")},
		},
		"call without result (CU-13)": {
			in:   M{u, calling("a f", "b g"), result("b", "2"), u},
			want: M{u, calling("a f", "b g"), result("b", "2"), result("a", "?"), u},
			done: stages.PairRepaired{Made: []string{"a"}},
		},
		"call at the very end": {
			in: M{u, calling("a f")}, want: M{u, calling("a f"), result("a", "?")},
			done: stages.PairRepaired{Made: []string{"a"}},
		},
		"result without call": {
			in: M{u, result("x", "1"), msg("assistant", "ok")}, want: M{u, msg("assistant", "ok")},
			done: stages.PairRepaired{Dropped: []string{"x"}},
		},
		"an id that is part of another does not match": {
			in: M{calling("call_1 f"), result("call_10", "1")}, want: M{calling("call_1 f"), result("call_1", "?")},
			done: stages.PairRepaired{Dropped: []string{"call_10"}, Made: []string{"call_1"}},
		},
		"duplicate results": {
			in:   M{calling("a f", "b f"), result("a", "1"), result("a", "2"), result("b", "3"), result("a", "4")},
			want: M{calling("a f", "b f"), result("a", "1"), result("b", "3")},
			done: stages.PairRepaired{Duplicates: []string{"a", "a"}},
		},
		"result before its call": {
			in: M{result("a", "1"), u, calling("a f"), u}, want: M{u, calling("a f"), result("a", "1"), u},
			done: stages.PairRepaired{Moved: []string{"a"}},
		},
		"result behind another message": {
			in: M{calling("a f"), u, result("a", "1")}, want: M{calling("a f"), result("a", "1"), u},
			done: stages.PairRepaired{Moved: []string{"a"}},
		},
		"one id for two calls": {
			in:   M{calling("a f", "a g"), result("a", "1"), result("a", "2")},
			want: M{calling("a f", "a_2 g"), result("a", "1"), result("a_2", "2")},
			done: stages.PairRepaired{Renamed: []string{"a_2"}},
		},
		"calls without ids": {
			in:   M{calling(" f", " g"), result("", "1"), result("", "2")},
			want: M{calling("call_0 f", "call_0_2 g"), result("call_0", "1"), result("call_0_2", "2")},
			done: stages.PairRepaired{Renamed: []string{"call_0", "call_0_2"}},
		},
		"result without an id": {
			in:   M{calling("a f", "b g"), result("b", "2"), {Raw: []byte(`{"role":"tool","content":"1"}`)}},
			want: M{calling("a f", "b g"), result("b", "2"), {Raw: []byte(`{"role":"tool","content":"1","tool_call_id":"a"}`)}},
			done: stages.PairRepaired{Matched: []string{"a"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := shape(t, s, request(tc.in...))
			got := chat.Messages(c.Request())
			paired(t, got)
			want := raws(tc.want)
			for i, w := range want {
				if strings.Contains(w, `"?"`) && i < len(got) {
					require.Contains(t, got[i].Text(), "not completed")
					want[i] = string(got[i].Raw)
				}
			}
			require.Equal(t, want, raws(got))
			var done stages.PairRepaired
			noted := c.Noted(messages.NotePairRepair, &done)
			require.Equal(t, tc.done, done)
			again, _ := stages.RepairPairs(got)
			require.Equal(t, raws(got), raws(again), "a second run finds nothing to do")
			if !noted {
				require.Equal(t, string(request(tc.in...)), string(c.Request()))
			}
		})
	}
	t.Run("a real result takes the place of the stand-in", func(t *testing.T) {
		t.Parallel()
		first, _ := stages.RepairPairs(M{calling("a f")})
		got, done := stages.RepairPairs(append(first, result("a", "real")))
		require.Equal(t, []string{"a"}, done.Duplicates)
		require.Equal(t, "real", got[1].Text())
		paired(t, got)
	})
}

// TestShapingStagesLeaveOddBodiesAlone: no messages, an empty list, or what is no list goes on as it is.
func TestShapingStagesLeaveOddBodiesAlone(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"pair-repair", "context-editing", "sub-agent", "tool-selection"} {
		for i, s := range stages.All() {
			if s.Name != name {
				continue
			}
			stage, _, err := stages.All()[i].Make(s.Config(), stages.Deps{})
			require.NoError(t, err)
			for _, body := range []string{`{}`, `null`, `[]`, `"text"`, `7`, `{"messages":null}`, `{"messages":{}}`,
				`{"messages":"x"}`,
				`{"messages":[]}`, `{"messages":[1,null,"x",[{}]]}`, `{"messages":[{}]}`,
				`{"messages":[{"role":7}],"tools":{"a":1}}`,
				`{"messages":[{"role":"assistant","tool_calls":[1,null,{"id":null}]}],"tools":[1,null]}`, `not json`} {
				t.Run(fmt.Sprintf("%s %s", name, body), func(t *testing.T) {
					t.Parallel()
					c := shape(t, stage, []byte(body))
					if name != "pair-repair" {
						require.Equal(t, string(messages.NewCall(messages.Model, "t", []byte(body)).Request()), string(c.Request()))
					}
				})
			}
		}
	}
}

// anyHistory draws histories with every fault of pairing.
func anyHistory(t *rapid.T, valid bool) []chat.Msg {
	var msgs []chat.Msg
	text := rapid.StringMatching(`[a-z 中文]{0,40}`)
	if rapid.Bool().Draw(t, "system") {
		msgs = append(msgs, msg("system", text.Draw(t, "prompt")))
	}
	for n := rapid.IntRange(1, 30).Draw(t, "steps"); n > 0; n-- {
		switch rapid.IntRange(0, 4).Draw(t, "what") {
		case 0:
			msgs = append(msgs, msg("user", text.Draw(t, "u")))
		case 1:
			msgs = append(msgs, msg("assistant", text.Draw(t, "a")))
		case 2, 3:
			ids := rapid.SliceOfNDistinct(rapid.StringMatching(`c[0-9]`), 1, 5, rapid.ID).Draw(t, "ids")
			var calls []string
			for _, id := range ids {
				calls = append(calls, id+" tool"+id+` {"q":"`+text.Draw(t, "args")+`"}`)
			}
			group := []chat.Msg{calling(calls...)}
			for _, id := range ids {
				group = append(group, result(id, text.Draw(t, "r")))
			}
			if !valid {
				group = rapid.Permutation(group).Draw(t, "order")
				group = group[:rapid.IntRange(0, len(group)).Draw(t, "cut")]
			}
			msgs = append(msgs, group...)
		case 4:
			msgs = append(msgs, msg("developer", text.Draw(t, "d")))
		}
	}
	return msgs
}

func TestPairRepairProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		valid := rapid.Bool().Draw(t, "valid")
		in := anyHistory(t, valid)
		out, done := stages.RepairPairs(in)
		paired(t, out)
		again, nothing := stages.RepairPairs(out)
		require.Equal(t, raws(out), raws(again))
		require.Equal(t, stages.PairRepaired{}, nothing)
		if valid {
			require.Equal(t, raws(in), raws(out))
			require.Equal(t, stages.PairRepaired{}, done)
		}
	})
}
