package stages

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/systemtest/pace"
	"github.com/shallot-nats/shallot/stages"
)

func TestMain(m *testing.M) {
	pace.Parallel(12)
	_ = os.Setenv("SHALLOT_PII_KEY", "0123456789abcdef0123456789abcdef") // PI-3
	os.Exit(m.Run())
}

func rows() []row {
	var out []row
	for _, family := range [][]row{retryRows(), editRows(), clearRows(), hintRows(), selectionRows(), todoRows(),
		piiRows(), limitRows(), fallbackRows(), fallbackEdgeRows(), contextRows(), privacyRows()} {
		out = append(out, family...)
	}
	return out
}

// The tests below are one table, run by the pipeline alone, and by a node on an embedded server with a hop for each
// phase and without.
func TestRowsInProcess(t *testing.T) {
	t.Parallel()
	for _, r := range rows() {
		t.Run(r.id, func(t *testing.T) {
			t.Parallel()
			inProcess(t, r)
		})
	}
}

func TestRowsOnTheBus(t *testing.T) {
	t.Parallel()
	onBus(t, rows(), false)
}

func TestRowsOnTheBusFused(t *testing.T) {
	t.Parallel()
	onBus(t, rows(), true)
}

// TestDocumentedDefaults holds the orders, names and keys of the specification.
func TestDocumentedDefaults(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]struct {
		stage, class string
		order        int
		keys         string // as a file has them
	}{
		"model-fallback has the order, names and keys of the specification (S0-FALLBACK-1 S0-FALLBACK-7)": {"model-fallback",
			"ModelFallbackInterceptor", 10, `"fallback-models":["qwen-turbo","qwen-plus","gpt-3.5-turbo"],"max-retries":2`},
		"context-editing has the order, names and keys of the specification (S0-CEDIT-1 S0-CEDIT-6 " +
			"X-20 X-21)": {"context-editing", "ContextEditingInterceptor", 30,
			`"strategy":["HYBRID"],"max-tokens":8000,"trim-keep-first":2,"trim-keep-last":10,"summarize-threshold":4000,` +
				`"window-rounds":10`},
		"sub-agent has the order, names and keys of the specification (S0-SUBAG-1 S0-SUBAG-5)": {"sub-agent",
			"SubAgentInterceptor", 60, `"min-match-score":5,"case-sensitive":true`},
		"tool-selection has the order, names and keys of the specification (S0-TSEL-1 S0-TSEL-6)": {"tool-selection",
			"ToolSelectionInterceptor", 70, `"max-tools":10,"always-include":["getCurrentTime","searchKnowledgeBase"]`},
		"todo-list has the order, names and keys of the specification (S0-TODO-1 S0-TODO-8)": {"todo-list",
			"TodoListInterceptor", 80, ``},
		"logging has the order, names and keys of the specification (S0-LOG-1)": {"logging", "LoggingModelInterceptor", 100,
			``},
	} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			s := build(t, row{with: []made{{want.stage, ""}}}, "",
				stages.Deps{Store: memories(), Serves: func(string) bool { return true }})[0]
			require.Equal(t, want.class, s.Alias)
			require.Equal(t, want.order, s.Order)
			for _, spec := range stages.All() {
				if spec.Name != want.stage {
					continue
				}
				_, on, err := spec.Make(spec.Config(), stages.Deps{Store: memories(), Serves: func(string) bool { return true }})
				require.NoError(t, err)
				require.True(t, on, "on by default")
				keys, err := yaml.MarshalWithOptions(spec.Config(), yaml.JSON())
				require.NoError(t, err)
				require.Contains(t, strings.ReplaceAll(string(keys), " ", ""), want.keys)
			}
		})
	}
}

// same is a check that the model got exactly the request.
func same(t *testing.T, o outcome, want []byte) {
	t.Helper()
	require.Equal(t, string(want), string(o.seen[len(o.seen)-1]))
}

func one(body []byte) []turn { return []turn{{body: body}} }

func times(n int, u turn) []turn {
	out := make([]turn, n)
	for i := range out {
		out[i] = u
	}
	return out
}

func fault(code messages.Code) error { return messages.NewFault(code, "upstream: %s", code) }

func ended(want string) func(t *testing.T, o outcome) {
	return func(t *testing.T, o outcome) { require.Equal(t, want, text(t, o.last())) }
}

func failed(code messages.Code, contains string) func(t *testing.T, o outcome) {
	return func(t *testing.T, o outcome) {
		require.NotNil(t, o.last().Fault)
		require.Equal(t, code, o.last().Fault.Code)
		require.Contains(t, o.last().Fault.Message, contains)
	}
}

func retryRows() []row {
	with := []made{{"model-retry", "base-delay: 1ms\njitter: 0"}}
	hello := one(request(user("hi")))
	return []row{
		{id: "text that says timeout (MR-1)", with: with, turns: hello, script: []any{"timeout is a setting"}, calls: 1,
			check: ended("timeout is a setting")},
		{id: "an error that will not go away is not tried again (MR-2)", with: with, turns: hello,
			script: []any{fault(messages.ProviderAuth)}, calls: 1, check: failed(messages.ProviderAuth, "")},
		{id: "MR transient then well", with: with, turns: hello, script: []any{fault(messages.ProviderError), "ok"}, calls: 2,
			check: ended("ok")},
	}
}

func fallbackRows() []row {
	with := func(yaml string) []made { return []made{{"model-fallback", yaml}} }
	hello := one(request(user("hi")))
	models := func(want ...string) func(t *testing.T, o outcome) {
		return func(t *testing.T, o outcome) {
			var got []string
			for _, raw := range o.seen {
				got = append(got, chat.ModelName(raw))
			}
			require.Equal(t, want, got)
			require.NotContains(t, o.last().Notes, messages.NoteIsFallback, "the flag is removed")
		}
	}
	and := func(checks ...func(*testing.T, outcome)) func(*testing.T, outcome) {
		return func(t *testing.T, o outcome) {
			for _, c := range checks {
				c(t, o)
			}
		}
	}
	two := with("fallback-models: [m1, m2]\nmax-retries: 2")
	down := fault(messages.ProviderError)
	return []row{
		{id: "a first model that answers leaves standbys alone (FB-1)", with: two, turns: hello, calls: 1,
			check: and(models("m"), ended("ok"))},
		{id: "the first standby's answer is marked with its name (FB-2)", with: two, turns: hello,
			script: []any{down, "m1 says"}, calls: 2, check: and(models("m", "m1"), ended("m1 says"))},
		{id: "an answer without text and tools counts as a failure (FB-3)", with: two, turns: hello,
			script: []any{"", "m1 says"}, calls: 2, check: and(models("m", "m1"), ended("m1 says"))},
		{id: "a standby that keeps failing gives way to the next (FB-4)", with: two, turns: hello,
			script: []any{down, down, down, "m2 says"}, calls: 4, check: and(models("m", "m1", "m1", "m2"), ended("m2 says"))},
		{id: "when all fail the first error is the answer (FB-5)", with: two, turns: hello,
			script: []any{fault(messages.ProviderQuota), down}, calls: 5,
			check: and(models("m", "m1", "m1", "m2", "m2"), failed(messages.ProviderQuota, ""))},
		{id: "retry inside fallback shows one error for each model (FB-14)",
			with: append(with("fallback-models: [m1]\nmax-retries: 1"),
				made{"model-retry", "base-delay: 1ms\nmax-retries: 1"}),
			turns:  hello,
			script: []any{down, down, down, "m1 says"}, calls: 4, check: and(models("m", "m", "m1", "m1"), ended("m1 says"))},
	}
}

func limitRows() []row {
	with := func(yaml string) []made { return []made{{"call-limit", yaml}} }
	run := turn{run: "r", body: request(user("hi"))}
	return []row{
		{id: "at a run's limit the call ends with a message that names it: END (LM-1)", with: with("run-limit: 2"),
			turns: times(3, run), calls: 2, check: func(t *testing.T, o outcome) {
				ended("Model call limits exceeded: run limit (2/2)")(t, o)
				require.Equal(t, "ok", text(t, o.got[1]))
			}},
		{id: "on request it ends with an error: ERROR (LM-2)", with: with("run-limit: 2\nexit-behavior: ERROR"),
			turns: times(3, run), calls: 2, check: failed(messages.LimitExceeded, "run limit (2/2)")},
		{id: "both limits are named when both are reached (LM-3)", with: with("run-limit: 2\nthread-limit: 2"),
			turns: times(3, run), calls: 2, check: ended("Model call limits exceeded: thread limit (2/2), run limit (2/2)")},
		{id: "a limit of zero lets nothing through (LM-5)", with: with("run-limit: 0"), turns: times(1, run), calls: 0,
			check: ended("Model call limits exceeded: run limit (0/0)")},
		{id: "retries inside count once (LM-6)", with: append(with("run-limit: 2"),
			made{"model-retry", "base-delay: 1ms\nmax-retries: 3"}), turns: times(3, run),
			script: []any{fault(messages.ProviderError), fault(messages.ProviderError), fault(messages.ProviderError), "ok"},
			calls:  5,
			check:  ended("Model call limits exceeded: run limit (2/2)")},
		{id: "a new run begins at 0 (X-44)", with: with("run-limit: 1"), turns: []turn{run, {run: "r2", body: run.body}},
			calls: 2, check: ended("ok")},
	}
}

func piiRows() []row {
	with := func(yaml string) []made { return []made{{"pii", yaml}} }
	ask := func(text string) []turn { return []turn{{session: "-", body: request(user(text))}} }
	model := func(want string) func(t *testing.T, o outcome) {
		return func(t *testing.T, o outcome) {
			require.Equal(t, string(request(user(want))), string(o.seen[0]))
		}
	}
	const rules = "rules: [{type: %s, strategy: %s}]"
	history := []chat.Msg{user("I am joe@example.com"), calls("a f"), result("a", "joe@example.com")}
	return []row{
		{id: "personal data is replaced by its kind: REDACT (PI-1)", with: with(""), turns: ask("mail joe@example.com now"),
			calls: 1, check: model("mail [REDACTED_EMAIL] now")},
		{id: "a mask leaves the last four characters of a long value: MASK 16 (PI-2)",
			with: with(fmt.Sprintf(rules, "credit_card", "MASK")), turns: ask("4111111111111111"), calls: 1,
			check: model("************1111")},
		{id: "a mask leaves the last four characters of a long value: MASK 4 (PI-2)",
			with: with(`rules: [{type: custom, name: code, pattern: 'X\d+', strategy: MASK}]`), turns: ask("is X123."), calls: 1,
			check: model("is ****.")},
		{id: "the same value has the same hash, which cannot be looked up: HASH twice (PI-3)",
			with: with(fmt.Sprintf(rules, "email", "HASH")), turns: times(2, ask("a joe@example.com b")[0]), calls: 2,
			check: func(t *testing.T, o outcome) {
				require.Regexp(t, `"a <email_hash:[0-9a-f]{8}> b"`, string(o.seen[0]))
				require.Equal(t, string(o.seen[0]), string(o.seen[1]))
			}},
		{id: "a forbidden value ends the call before the model: BLOCK (PI-4)",
			with: with(fmt.Sprintf(rules, "email", "BLOCK")), turns: ask("joe@example.com"), calls: 0,
			check: func(t *testing.T, o outcome) {
				failed(messages.Blocked, "email")(t, o)
				require.NotContains(t, o.last().Fault.Message, "joe")
			}},
		{id: "a card that fails the checksum (PI-5)", with: with(fmt.Sprintf(rules, "credit_card", "REDACT")),
			turns: ask("4111111111111112"), calls: 1, check: model("4111111111111112")},
		{id: "what only looks like personal data stays, and nobody is asked about it: no addresses (PI-5)",
			with: with(fmt.Sprintf(rules, "ip", "REDACT")), turns: ask("999.1.1.1 and 1.2.3"), calls: 1,
			check: model("999.1.1.1 and 1.2.3")},
		{id: "by default only what goes in is searched (PI-6)", with: with(""), turns: one(request(history...)),
			script: []any{"to joe@example.com"}, calls: 1, check: func(t *testing.T, o outcome) {
				msgs := chat.Messages(o.seen[0])
				require.Equal(t, "I am [REDACTED_EMAIL]", msgs[0].Text())
				require.Equal(t, "joe@example.com", msgs[2].Text())
				ended("to joe@example.com")(t, o)
			}},
		{id: "tool calls stay intact (PI-7)", with: with("apply-to-output: true"), turns: ask("x"), calls: 1,
			script: []any{[]byte(`{"choices":[{"index":0,"message":{"role":"assistant","content":"to joe@example.com",` +
				`"tool_calls":[{"id":"1","type":"function","function":{"name":"f",` +
				`"arguments":"{\"to\":\"joe@example.com\"}"}}]}}]}`)},
			check: func(t *testing.T, o outcome) {
				require.Equal(t,
					`{"choices":[{"index":0,"message":{"role":"assistant","content":"to [REDACTED_EMAIL]",`+
						`"tool_calls":[{"id":"1","type":"function","function":{"name":"f",`+
						`"arguments":"{\"to\":\"joe@example.com\"}"}}]}}]}`,
					string(o.last().Reply()))
			}},
		{id: "finds that overlap are replaced once (PI-8)", with: with("rules: [{type: phone}, {type: credit_card}]"),
			turns: ask("tel 4111 1111 1111 1111."), calls: 1, check: model("tel [REDACTED_CREDIT_CARD].")},
		{id: "personal data in messages is found, and marked or removed: REPLACE and back (S4-PII-1)",
			with: with(fmt.Sprintf(rules, "email", "REPLACE")), turns: ask("joe@example.com"),
			model: func(testing.TB) pipeline.Target { return echoes("Dear ") }, calls: 1, check: func(t *testing.T, o outcome) {
				require.Regexp(t, `^<EMAIL_[a-z]{10}>$`, chat.Messages(o.seen[0])[0].Text())
				ended("Dear joe@example.com")(t, o)
			}},
	}
}

// echoes is a model that says a text and then what it was asked.
func echoes(before string) pipeline.Target {
	return pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		msgs := chat.Messages(c.Request())
		c.SetReply(chat.TextReply("x", "m", before+msgs[len(msgs)-1].Text(), 1))
		return nil
	})
}

func todoRows() []row {
	with := []made{{"todo-list", ""}}
	body := request(sys("Be kind."), user("hello"))
	// Each script line is the reply of one turn; a last turn shows the list in the prompt.
	todo := func(id string, wantText string, list string, invalid int, replies ...string) row {
		r := row{id: id, with: with, turns: times(len(replies)+1, turn{body: body}), calls: len(replies) + 1}
		for _, s := range replies {
			r.script = append(r.script, s)
		}
		r.script = append(r.script, "ok")
		r.check = func(t *testing.T, o outcome) {
			last := o.got[len(replies)-1]
			require.Equal(t, wantText, text(t, last))
			var report struct {
				Invalid []any `json:"invalid"`
			}
			last.Noted("todo", &report)
			require.Len(t, report.Invalid, invalid)
			prompt := chat.SystemText(o.seen[len(replies)])
			require.True(t, strings.HasPrefix(prompt, "Be kind.\n\n[当前任务列表]\n"+list), prompt)
			require.Equal(t, strings.Count(list, "\n"), strings.Count(prompt, "\n#"), prompt)
			require.True(t, strings.HasSuffix(prompt, "[TODO_UPDATE: id=N, status=S]"), "TD-12")
		}
		return r
	}
	const a = "#1 [PENDING] a\n"
	calling := []byte(`{"choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"1",` +
		`"type":"function","function":{"name":"f","arguments":"{}"}}]}}]}`)
	return []row{
		todo("ADD makes a pending item and leaves the text (TD-1)", "", "#1 [PENDING] 实现用户登录接口\n", 0,
			"[TODO_ADD: title=实现用户登录接口]"),
		todo("UPDATE moves an item through its states: in progress (TD-2)", "", "#1 [IN_PROGRESS] a\n", 0,
			"[TODO_ADD: title=a]", "[TODO_UPDATE: id=1, status=IN_PROGRESS]"),
		todo("UPDATE moves an item through its states: completed (TD-2)", "", "#1 [COMPLETED] a\n", 0, "[TODO_ADD: title=a]",
			"[TODO_UPDATE: id=1, status=COMPLETED]"),
		todo("UPDATE moves an item through its states: cancelled (TD-2)", "", "#1 [CANCELLED] a\n", 0, "[TODO_ADD: title=a]",
			"[TODO_UPDATE: id=1, status=CANCELLED]"),
		todo("an unknown state is a warning, and later directives still count (TD-3)", "xy", a+"#2 [PENDING] b\n", 1,
			"[TODO_ADD: title=a]", "x[TODO_UPDATE: id=1, status=DONE]y[TODO_ADD: title=b]"),
		todo("an unknown or odd id is a warning (TD-4)", "", a, 2, "[TODO_ADD: title=a]",
			"[TODO_UPDATE: id=abc, status=COMPLETED][TODO_UPDATE: id=99, status=COMPLETED]"),
		todo("a title is required (TD-5)", "ab", "", 2, "a[TODO_ADD: title=][TODO_ADD: foo]b"),
		todo("several directives in one text work, and the text closes around them (TD-6)", "前中后", a+"#2 [PENDING] b\n",
			0, "前[TODO_ADD: title=a]中[TODO_ADD: title=b]后"),
		todo("commas belong to a title (TD-7)", "", "#1 [PENDING] a, b=c\n", 0, "[TODO_ADD: title=a, b=c]"),
		todo("a directive ends at its first closing bracket (TD-8)", " now]", "#1 [PENDING] fix [x\n", 0,
			"[TODO_ADD: title=fix [x] now]"),
		todo("states are written exactly (TD-9)", "", a, 1, "[TODO_ADD: title=a]", "[TODO_UPDATE: id=1, status=completed]"),
		todo("what is not a directive stays in the text (TD-10)", "[TODO_ADD title=x] [TODO_DEL: id=1] TODO_ADD: title=x", "",
			0, "[TODO_ADD title=x] [TODO_DEL: id=1] TODO_ADD: title=x"),
		todo("an item can be added and updated in one text (TD-11 TD-12)", "", "#1 [COMPLETED] a\n", 0,
			"[TODO_ADD: title=a][TODO_UPDATE: id=1, status=COMPLETED]"),
		{id: "each session has its own list (TD-13)", with: with,
			turns:  []turn{{session: "a", body: body}, {session: "b", body: body}, {session: "a", body: body}},
			script: []any{"[TODO_ADD: title=a]", "ok"}, calls: 3,
			check: func(t *testing.T, o outcome) {
				require.NotContains(t, string(o.seen[1]), "#1 [")
				require.Contains(t, string(o.seen[2]), "#1 [PENDING] a")
			}},
		{id: "tool calls and no text (TD-14)", with: with, turns: one(body), script: []any{calling}, calls: 1,
			check: func(t *testing.T, o outcome) {
				require.Nil(t, o.last().Fault)
				require.Equal(t, string(calling), string(o.last().Reply()))
			}},
		todo("the fields of a directive come in any order (TD-15)", "", "#1 [COMPLETED] a\n", 0, "[TODO_ADD: title=a]",
			"[TODO_UPDATE: status=COMPLETED, id=1]"),
		todo("one valid, one not (TD-16b)", "z", a, 1, "[TODO_ADD: title=a][TODO_UPDATE: id=x, status=COMPLETED]z"),
		{id: "without a session", with: with, turns: []turn{{session: "-", body: body}},
			script: []any{"[TODO_ADD: title=z]"}, calls: 1, check: func(t *testing.T, o outcome) {
				ended("[TODO_ADD: title=z]")(t, o)
			}},
	}
}
