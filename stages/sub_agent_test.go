package stages_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
)

var reviewers = []stages.SubAgentSpec{
	{Name: "code-review-agent", Keywords: []stages.SubAgentKeyword{{"代码审查", 5}, {"review", 4},
		{"代码质量", 3}}},
	{Name: "data-analysis-agent", Keywords: []stages.SubAgentKeyword{{"数据分析", 5}, {"统计", 3}}},
}

func TestSubAgent(t *testing.T) {
	t.Parallel()
	const hint = "[DELEGATION_HINT] 建议委派给: "
	s := mustShape(t, "sub-agent", stages.Deps{}, func(c *stages.SubAgentConfig) { c.Agents = reviewers })
	require.Equal(t, []string{"agent", "session"}, s.ApplyTo)
	sys := msg("system", "be kind")
	for name, tc := range map[string]struct {
		in   []chat.Msg
		want string // end of the system prompt; empty: unchanged
	}{
		"one keyword (SA-1)": {[]chat.Msg{sys, msg("user", "请做代码审查")},
			hint + "code-review-agent, 匹配度: 5"},
		"below the least score (SA-2)": {[]chat.Msg{sys, msg("user", "please review")}, ""},
		"two keywords (SA-3)": {[]chat.Msg{sys, msg("user", "review 一下代码质量")},
			hint + "code-review-agent, 匹配度: 7"},
		"three times (SA-4)": {[]chat.Msg{sys, msg("user", "review review review")}, ""},
		"the best agent (SA-5)": {[]chat.Msg{sys, msg("user", "代码审查后做数据分析和统计")},
			hint + "data-analysis-agent, 匹配度: 8"},
		"a tie (SA-6)": {[]chat.Msg{sys, msg("user", "数据分析 代码审查")},
			hint + "code-review-agent, 匹配度: 5"},
		"only in older messages (SA-7)": {[]chat.Msg{sys, msg("user", "代码审查"), msg("assistant", "代码审查"),
			msg("user", "ok")}, ""},
		"no user message (SA-8)":   {[]chat.Msg{sys, msg("assistant", "代码审查")}, ""},
		"case (SA-9)":              {[]chat.Msg{sys, msg("user", "Review 代码质量")}, ""},
		"no system prompt (SA-10)": {[]chat.Msg{msg("user", "代码审查")}, hint + "code-review-agent, 匹配度: 5"},
		"content parts": {[]chat.Msg{sys,
			{Raw: []byte(`{"role":"user","content":[{"type":"text","text":"请做"},` +
				`{"type":"image_url","image_url":{"url":"x"}},{"type":"text","text":"代码审查"}]}`)}},
			hint + "code-review-agent, 匹配度: 5"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 20 {
				c := shape(t, s, request(tc.in...))
				if tc.want == "" {
					require.Equal(t, string(request(tc.in...)), string(c.Request()))
					return
				}
				text := chat.SystemText(c.Request())
				require.True(t, strings.HasSuffix(text, tc.want), text)
				require.Equal(t, name == "no system prompt (SA-10)", text == tc.want)
				got := chat.Messages(c.Request())
				require.Equal(t, string(tc.in[len(tc.in)-1].Raw), string(got[len(got)-1].Raw))
			}
		})
	}
	for name, prompt := range map[string]chat.Msg{
		"text": sys,
		"parts": {Raw: []byte(`{"role":"system","content":[{"type":"text","text":"be kind",` +
			`"cache_control":{"type":"ephemeral"}}]}`)},
		"none": {},
	} {
		t.Run("one hint however often, prompt "+name+" (SA-11)", func(t *testing.T) {
			t.Parallel()
			in := []chat.Msg{msg("user", "代码审查")}
			if prompt.Raw != nil {
				in = append([]chat.Msg{prompt}, in...)
			}
			c := shape(t, s, request(in...))
			once := string(c.Request())
			c = shape(t, s, c.Request())
			require.Equal(t, once, string(c.Request()), "the second call of a run brings the first one's prompt")
			next := append(chat.Messages(c.Request()), msg("user", "数据分析"))
			c = shape(t, s, request(next...))
			text := chat.SystemText(c.Request())
			require.Equal(t, 1, strings.Count(text, hint), text)
			require.True(t, strings.HasSuffix(text, hint+"data-analysis-agent, 匹配度: 5"), text)
			require.NotContains(t, string(c.Request()), `"text":""`)
		})
	}
	t.Run("ties: last (SA-6)", func(t *testing.T) {
		t.Parallel()
		s := mustShape(t, "sub-agent", stages.Deps{},
			func(c *stages.SubAgentConfig) { c.Agents = reviewers; c.Ties = "last" })
		require.Contains(t, chat.SystemText(shape(t, s, request(msg("user", "数据分析 代码审查"))).Request()),
			"data-analysis-agent")
	})
	t.Run("case-sensitive false (SA-9)", func(t *testing.T) {
		t.Parallel()
		s := mustShape(t, "sub-agent", stages.Deps{},
			func(c *stages.SubAgentConfig) { c.Agents = reviewers; c.CaseSensitive = false })
		require.Contains(t, chat.SystemText(shape(t, s, request(msg("user", "REVIEW 代码质量"))).Request()),
			"匹配度: 7")
	})
	for name, bad := range map[string]stages.SubAgentSpec{
		"agents[0].name":                {Name: " "},
		"agents[0].keywords[0].keyword": {Name: "a", Keywords: []stages.SubAgentKeyword{{"", 1}}},
		"agents[0].keywords[1].keyword": {Name: "a", Keywords: []stages.SubAgentKeyword{{"x", 1}, {"x", 2}}},
	} {
		_, err := shaping(t, "sub-agent", stages.Deps{},
			func(c *stages.SubAgentConfig) { c.Agents = []stages.SubAgentSpec{bad} })
		require.ErrorContains(t, err, name)
	}
}

// TestSubAgentOnAgain: an outer stage's next attempt starts from the request as it was outside.
func TestSubAgentOnAgain(t *testing.T) {
	t.Parallel()
	s := mustShape(t, "sub-agent", stages.Deps{}, func(c *stages.SubAgentConfig) { c.Agents = reviewers })
	outer := again(2)
	_, got := through(t, call(request(msg("user", "代码审查"))), nil, outer, s)
	require.Equal(t, 1, strings.Count(string(got), "DELEGATION_HINT"), "SA-11")
}

// again is a stage whose after re-enters the inner stages until the given attempt.
func again(attempts int) pipeline.Stage {
	return pipeline.Stage{Name: "outer", Kind: messages.Model, Keep: true,
		After: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			if c.Attempt() < attempts {
				return pipeline.Again(0), nil
			}
			return pipeline.Continue(), nil
		}}
}
