package stages_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/stages"
)

// offer is a request with tools "name description" and one user message.
func offer(text, extra string, tools ...string) []byte {
	var list []string
	for _, tool := range tools {
		name, desc, _ := strings.Cut(tool, " ")
		list = append(list,
			fmt.Sprintf(`{"type":"function","function":{"name":%q,"description":%q,"parameters":{"x":1.50}},"y":null}`, name,
				desc))
	}
	return []byte(`{"messages":[{"role":"user","content":"old searchWeb"},` + string(msg("user", text).Raw) +
		`],"tools":[` + strings.Join(list, ",") + `]` + extra + `}`)
}

func offered(request []byte) (names []string) {
	raw, _ := rawjson.Field(request, "tools")
	for _, e := range rawjson.Elements(raw) {
		f, _ := rawjson.Field(e, "function")
		name, _ := rawjson.FieldString(f, "name")
		names = append(names, name)
	}
	return names
}

func numbered(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("t%02d", i))
	}
	return names
}

func TestToolScores(t *testing.T) {
	t.Parallel()
	// A score is read off by ranking: the tool stands before a rival of one point less and behind one of one more.
	for name, tc := range map[string]struct {
		tool, text string
		set        func(*stages.ToolSelectionConfig)
		want       int
	}{
		"full name and parts (TS-1)": {tool: "searchWeb", text: "用 searchWeb 查", want: 16},
		"with two description words (TS-1)": {tool: "searchWeb finds pages", text: "用 searchWeb 查 pages finds",
			want: 20},
		"a part (TS-2)":                   {tool: "searchWeb", text: "search something", want: 3},
		"description words (TS-3)":        {tool: "zz alpha,beta", text: "beta and alpha", want: 4},
		"a word twice counts once (TS-3)": {tool: "zz alpha alpha", text: "alpha", want: 2},
		"getURLInfo (TS-10)":              {tool: "getURLInfo", text: "URL", want: 3},
		"last part (TS-10)":               {tool: "getURLInfo", text: "Info", want: 3},
		"snake case (X-46)":               {tool: "send_mail", text: "mail", want: 3},
		"case (X-46)":                     {tool: "searchWeb", text: "SEARCH", want: 0},
		"case-sensitive false (X-46)": {tool: "searchWeb", text: "SEARCHWEB",
			set: func(c *stages.ToolSelectionConfig) { c.CaseSensitive = false }, want: 16},
		"CJK runs whole (X-46)": {tool: "zz 查询天气, weather数据", text: "天气 数据 weather",
			want: 4},
		"CJK run in the message (X-46)": {tool: "zz 查询天气", text: "请查询天气吧", want: 2},
		"words by spaces (X-46)": {tool: "zz alpha,beta x", text: "alpha beta x",
			set: func(c *stages.ToolSelectionConfig) { c.DescriptionWords = "spaces" }, want: 2},
		"letters split at digits (X-46)":     {tool: "zz a1b", text: "b a", want: 4},
		"only the newest user message":       {tool: "searchWeb", text: "nothing", want: 0},
		"an empty description and no letter": {tool: "a1", text: "1", want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, stages.ToolScore(conf(tc.set), tc.text, toolName(tc.tool), toolDesc(tc.tool)))
		})
	}
}

func toolName(s string) string { n, _, _ := strings.Cut(s, " "); return n }
func toolDesc(s string) string { _, d, _ := strings.Cut(s, " "); return d }

func conf(set func(*stages.ToolSelectionConfig)) stages.ToolSelectionConfig {
	c := stages.ToolSelectionConfig{MaxTools: 10, CaseSensitive: true}
	if set != nil {
		set(&c)
	}
	return c
}

func TestToolSelection(t *testing.T) {
	t.Parallel()
	pick := func(t *testing.T, body []byte, set func(*stages.ToolSelectionConfig)) []string {
		s := mustShape(t, "tool-selection", stages.Deps{}, set)
		return offered(shape(t, s, body).Request())
	}
	always := func(names ...string) func(*stages.ToolSelectionConfig) {
		return func(c *stages.ToolSelectionConfig) { c.AlwaysInclude = names }
	}
	all := numbered(15)
	t.Run("always-include outside the top (TS-4)", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, append(numbered(10), "t14", "t12"), pick(t, offer("t00", "", all...), always("t14", "t12", "t14")))
	})
	t.Run("always-include inside the top (TS-5)", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, numbered(10), pick(t, offer("t00", "", all...), always("t03", "t09")))
	})
	t.Run("seven tools keep every byte (TS-6)", func(t *testing.T) {
		t.Parallel()
		body := offer("t06", "", numbered(7)...)
		s := mustShape[stages.ToolSelectionConfig](t, "tool-selection", stages.Deps{}, nil)
		require.Equal(t, string(body), string(shape(t, s, body).Request()))
	})
	t.Run("equal scores (TS-7)", func(t *testing.T) {
		t.Parallel()
		for range 100 {
			require.Equal(t, []string{"t13", "t14", "t00", "t01"}, pick(t, offer("t13 t14", "", all...),
				func(c *stages.ToolSelectionConfig) { c.MaxTools = 4; c.AlwaysInclude = nil }))
		}
	})
	t.Run("ties by name (TS-7 X-46)", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, []string{"d", "a"}, pick(t, offer("d", "", "c", "b", "a", "d"),
			func(c *stages.ToolSelectionConfig) { c.MaxTools = 2; c.Ties = "name" }))
	})
	t.Run("a missing tool (TS-8)", func(t *testing.T) {
		t.Parallel()
		var log bytes.Buffer
		s := mustShape(t, "tool-selection", stages.Deps{Log: logger(&log)}, always("nowhere"))
		for range 3 {
			_, err := s.Before(t.Context(), call(offer("t00", "", all...)))
			require.NoError(t, err)
		}
		require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
		require.Contains(t, log.String(), "tool=nowhere")
	})
	t.Run("nothing matches (TS-9 CX-5)", func(t *testing.T) {
		t.Parallel()
		tools := append(numbered(14), "getCurrentTime")
		require.Equal(t, tools, pick(t, offer("yes", "", tools...), nil), "nothing says which can be missed")
	})
	t.Run("tool_choice keeps the tool that it names", func(t *testing.T) {
		t.Parallel()
		for _, choice := range []string{`{"type":"function","function":{"name":"t12"}}`,
			`{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"t12"}}]}}`,
			`{"type":"function","name":"t12"}`} {
			require.Equal(t, append(numbered(10), "t12"), pick(t, offer("t00", `,"tool_choice":`+choice, all...), nil), choice)
		}
		require.Equal(t, numbered(10), pick(t, offer("t00", `,"tool_choice":"required"`, all...), nil))
	})
	t.Run("kept tools keep every byte, nameless ones stay", func(t *testing.T) {
		t.Parallel()
		body := []byte(`{"messages":[{"role":"user","content":"b"}],"tools":[{"type":"web_search","big":9007199254740993},` +
			`{"type":"custom","custom":{"name":"b"}},{"type":"function","function":{"name":"a","x":1.0}}]}`)
		s := mustShape(t, "tool-selection", stages.Deps{}, func(c *stages.ToolSelectionConfig) { c.MaxTools = 1 })
		require.Equal(t, `{"messages":[{"role":"user","content":"b"}],"tools":[{"type":"custom","custom":{"name":"b"}},`+
			`{"type":"web_search","big":9007199254740993}]}`,
			string(shape(t, s, body).Request()))
	})
	for name, set := range map[string]func(*stages.ToolSelectionConfig){
		"max-tools": func(c *stages.ToolSelectionConfig) { c.MaxTools = 0 },
		"ties":      func(c *stages.ToolSelectionConfig) { c.Ties = "coin" },
	} {
		_, err := shaping(t, "tool-selection", stages.Deps{}, set)
		require.ErrorContains(t, err, "agent.interceptor.tool-selection: "+name)
	}
}

func TestToolSelectionStrict(t *testing.T) {
	t.Parallel()
	const reply = `{"choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[` +
		`{"id":"1","type":"function","function":{"name":"t12","arguments":"{}"}},` +
		`{"id":"2","type":"function","function":{"name":"t01","arguments":"{}"}}]}},` +
		`{"index":1,"message":{"role":"assistant","tool_calls":[{"id":"3","type":"function","function":{"name":"t12",` +
		`"arguments":"{}"}},{"id":"4","type":"function","function":{"name":"unheard","arguments":"{}"}}]}}]}`
	for _, strict := range []bool{false, true} {
		t.Run(fmt.Sprintf("strict %v (TS-11)", strict), func(t *testing.T) {
			t.Parallel()
			s := mustShape(t, "tool-selection", stages.Deps{}, func(c *stages.ToolSelectionConfig) { c.Strict = strict })
			c, _ := through(t, call(offer("t00", "", numbered(15)...)), []byte(reply), s)
			require.Equal(t, reply, string(c.Reply()), "replies are never changed")
			var allowed []string
			require.True(t, c.Noted(messages.NoteToolsAllowed, &allowed))
			require.Equal(t, numbered(10), allowed)
			if strict {
				require.Equal(t, []string{"t12"}, stages.BlockedTools(c))
			} else {
				require.Empty(t, stages.BlockedTools(c))
			}
		})
	}
}

func FuzzToolNames(f *testing.F) {
	f.Add("getURLInfo", "a 查询b", "URL")
	f.Fuzz(func(t *testing.T, name, desc, text string) {
		require.GreaterOrEqual(t, stages.ToolScore(conf(nil), text, name, desc), 0)
	})
}

func BenchmarkToolSelection(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := mustShape(b, "tool-selection", stages.Deps{}, func(c *stages.ToolSelectionConfig) { c.MaxTools = 5 })
			var tools []string
			for i := range n {
				tools = append(tools, fmt.Sprintf("getThing%d finds the thing with number %d", i, i))
			}
			body := offer("find the thing 7", "", tools...)
			for b.Loop() {
				_, _ = s.Before(b.Context(), call(body))
			}
		})
	}
}
