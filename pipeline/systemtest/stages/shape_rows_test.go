package stages

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/stages"
)

func talk(n, tokens int) []chat.Msg {
	out := make([]chat.Msg, n)
	for i := range out {
		out[i] = messageOf([]string{"user", "assistant"}[i%2], sized(fmt.Sprint(i+1, " "), tokens))
	}
	return out
}

// rounds is a system message and n rounds of user, call, result, assistant.
func rounds(n, tokens int) []chat.Msg {
	out := []chat.Msg{sys("be kind")}
	for i := range n {
		id := fmt.Sprint("c", i)
		out = append(out, user(sized(id, tokens)), calls(id+" f"), result(id, sized(id, tokens)), says(sized(id, tokens)))
	}
	return out
}

func join(parts ...[]chat.Msg) []chat.Msg {
	var out []chat.Msg
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func editRows() []row {
	with := func(yaml string) []made { return []made{{"context-editing", yaml}} }
	const trim = "strategy: TRIM\nmax-tokens: 100"
	gets := func(id, yaml string, in, want []chat.Msg) row {
		return row{id: id, with: with(yaml), turns: one(request(in...)), calls: 1, summary: "they said hello",
			check: func(t *testing.T, o outcome) {
				same(t, o, request(want...))
				require.Empty(t, o.summaries)
			}}
	}
	exact := func(total int) []chat.Msg {
		return join([]chat.Msg{sys(sized("be kind ", 10))}, talk(18, 200), []chat.Msg{user(sized("now ", total-3610))})
	}
	five := []chat.Msg{calls("a f", "b f", "c f", "d f", "e f")}
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		five = append(five, result(id, sized("", 50)))
	}
	talk20, talk12, parallel := talk(20, 50), talk(12, 50), join(talk(12, 50), five, talk(7, 50))
	pinned := join(talk(4, 50), []chat.Msg{messageOf("developer", "rule"), user("the question")})
	for i := range 12 {
		pinned = append(pinned, says(sized(fmt.Sprint(i, " "), 50)))
	}
	long, big := rounds(5, 20), rounds(20, 270)
	summarised := func(id, strategy string, in []chat.Msg, budget int, check func(t *testing.T, in, got []chat.Msg)) row {
		return row{id: id, with: with("strategy: " + strategy), turns: times(2, turn{body: request(in...)}),
			summary: "they said hello", calls: 2, check: func(t *testing.T, o outcome) {
				require.Len(t, o.summaries, 1, "one summary, which the second call finds")
				require.Equal(t, string(o.seen[0]), string(o.seen[1]), "CE-13 stable")
				require.NotContains(t, string(o.summaries[0]), "be kind", "CE-10")
				got := chat.Messages(o.seen[0])
				require.Equal(t, string(in[0].Raw), string(got[0].Raw), "CE-10")
				require.Contains(t, got[1].Text(), "they said hello")
				require.Less(t, len(o.seen[0])/4, budget)
				check(t, in, got)
			}}
	}
	out := []row{
		gets("TRIM over its budget keeps both ends (CE-1)", trim, talk20, join(talk20[:2], talk20[10:])),
		gets("TRIM with nothing in the middle changes nothing (CE-2)", trim, talk12, talk12),
		gets("below its budget no strategy does anything (CE-3)", trim, talk(20, 5), talk(20, 5)),
		gets("SUMMARIZE begins just above its threshold: exactly the threshold (CE-5 CE-3)", "strategy: SUMMARIZE",
			exact(4000), exact(4000)),
		summarised("SUMMARIZE begins just above its threshold: one above (CE-5 CE-6)", "SUMMARIZE", exact(4001), 3000,
			func(t *testing.T, in, got []chat.Msg) {
				require.Equal(t, raws(in[len(in)-len(got)+2:]), raws(got[2:]), "CE-6 the recent part word for word")
			}),
		gets("system and the last three rounds (CE-8)", "strategy: SLIDING_WINDOW\nwindow-rounds: 3\nmax-tokens: 100", long,
			join(long[:1], long[9:])),
		summarised("HYBRID fits the budget unless the newest round alone does not (CE-9)", "HYBRID", big, 8000,
			func(t *testing.T, in, got []chat.Msg) {
				require.Equal(t, "user", got[2].Role())
				require.Equal(t, raws(in[len(in)-len(got)+2:]), raws(got[2:]))
			}),
		gets("pinned messages in the middle stay (CE-10 CE-11)", trim, pinned, join(pinned[:2], pinned[4:6], pinned[8:])),
		gets("a cut inside five parallel results (CE-12)", trim, parallel, join(parallel[:2], parallel[12:])),
		gets("a round starts at a user message (X-21)", "strategy: SLIDING_WINDOW\nwindow-rounds: 1\nmax-tokens: 10", long,
			join(long[:1], long[17:])),
	}
	// The history is cut before tools are chosen and the list is written, so that neither is ever cut.
	out = append(out, row{id: "outside tool selection and todo (X-15)", calls: 1, turns: one(request(long...)),
		with: []made{{"todo-list", ""}, {"tool-selection", ""},
			{"context-editing", "strategy: SLIDING_WINDOW\nwindow-rounds: 1\nmax-tokens: 10"}},
		check: func(t *testing.T, o outcome) {
			for i, want := range []string{"context-editing", "tool-selection", "todo-list", "model"} {
				require.True(t, strings.HasPrefix(o.last().Slip.Path[i], want), o.last().Slip.Path)
			}
			require.True(t, strings.HasPrefix(chat.SystemText(o.seen[0]), "be kind\n\n[当前任务列表]"))
			require.Len(t, chat.Messages(o.seen[0]), 5)
		}})
	for _, fails := range []any{fault(messages.ProviderError), "", " \n"} {
		out = append(out, row{id: fmt.Sprintf("no summary is to be had: %q (CE-6)", fails), with: with("strategy: SUMMARIZE"),
			turns: one(request(exact(4001)...)), summary: fails, calls: 1,
			check: func(t *testing.T, o outcome) {
				require.Len(t, o.summaries, 1)
				same(t, o, request(exact(4001)...))
			}})
	}
	for _, strategy := range []string{"TRIM", "SUMMARIZE", "SLIDING_WINDOW", "HYBRID", "CLEAR_TOOL_USES"} {
		out = append(out,
			row{id: strategy + " keeps the system message, the newest one and whole rounds (CE-10 CE-11 CE-12 CE-13)",
				with: with("strategy: " + strategy +
					"\nmax-tokens: 1000\nsummarize-threshold: 1000\nwindow-rounds: 2\nclear-tool-uses: {trigger: 1000, keep: 1}"),
				turns:   times(2, turn{body: request(join(rounds(6, 100), five, []chat.Msg{user("and now?")})...)}),
				summary: "before", calls: 2,
				check: func(t *testing.T, o outcome) {
					require.Equal(t, string(o.seen[0]), string(o.seen[1]), "CE-13")
					msgs := chat.Messages(o.seen[0])
					require.Equal(t, "be kind", msgs[0].Text(), "CE-10")
					require.Equal(t, "and now?", msgs[len(msgs)-1].Text(), "CE-11")
					require.Less(t, len(o.seen[0]), len(request(join(rounds(6, 100), five)...)))
				}})
	}
	return out
}

func clearRows() []row {
	uses := func(tools ...string) []chat.Msg {
		in := []chat.Msg{user(sized("", 10))}
		for i, tool := range tools {
			id := fmt.Sprint("c", i+1)
			in = append(in, calls(id+" "+tool+` {"q":"`+sized("", 20)+`"}`), result(id, sized(id, 100)))
		}
		return append(in, says("done"))
	}
	five := uses("k", "x", "y", "z", "x")
	cleared := func(request []byte, placeholder string) (ids []string) {
		for _, m := range chat.Messages(request) {
			if m.Role() == "tool" && m.Text() == placeholder {
				ids = append(ids, m.ToolCallID())
			}
		}
		return ids
	}
	clears := func(id, keys string, in []chat.Msg, want ...string) row {
		return row{id: id, with: []made{{"context-editing", "strategy: CLEAR_TOOL_USES\nclear-tool-uses: {" + keys + "}"}},
			turns: one(request(in...)), calls: 1, check: func(t *testing.T, o outcome) {
				require.Equal(t, want, cleared(o.seen[0], "[cleared]"))
				if want == nil {
					same(t, o, request(in...))
				}
				require.Len(t, chat.Messages(o.seen[0]), len(in), "no message is taken or invented")
			}}
	}
	fresh := join(five, []chat.Msg{user("next"), calls("n1 x"), result("n1", "[cleared]"), calls("n2 x"),
		result("n2", "tail")})
	open := join(five[:3], []chat.Msg{calls("o1 x", "o2 x"), result("o1", sized("", 50)), user("go on")})
	inputs := clears("arguments are emptied only on request; ids and names stay: clear-tool-inputs true (CU-8)",
		"trigger: 1, keep: 4, clear-tool-inputs: true", five, "c1")
	check8 := inputs.check
	inputs.check = func(t *testing.T, o outcome) {
		check8(t, o)
		c := chat.Messages(o.seen[0])[1].ToolCalls()[0]
		require.Equal(t, []string{"c1", "k", "{}"}, []string{c.ID(), c.Name(), c.Arguments()})
	}
	untouched := clears("arguments are emptied only on request; ids and names stay: clear-tool-inputs false (CU-8)",
		"trigger: 1, keep: 4", five, "c1")
	checkFalse := untouched.check
	untouched.check = func(t *testing.T, o outcome) {
		checkFalse(t, o)
		require.Equal(t, string(five[1].Raw), string(chat.Messages(o.seen[0])[1].Raw))
	}
	placeholder := clears("the placeholder can be chosen (CU-10)", "trigger: 1, keep: 0, placeholder: X", five)
	placeholder.check = func(t *testing.T, o outcome) {
		require.Equal(t, []string{"c1", "c2", "c3", "c4", "c5"}, cleared(o.seen[0], "X"))
	}
	// The second attempt of an outer stage gets the request as the caller wrote it, and is cleared alike; what the
	// fallback kept is the history as it was.
	kept := clears("a second pass over the caller's history (CU-9 CU-11)", "trigger: 1, keep: 1", five, "c1", "c2", "c3",
		"c4")
	kept.with = append(kept.with, made{"model-fallback", "fallback-models: [m1]\nmax-retries: 1"})
	kept.script, kept.calls = []any{fault(messages.ProviderError), "ok"}, 2
	checkKept := kept.check
	kept.check = func(t *testing.T, o outcome) {
		checkKept(t, o)
		require.Equal(t, strings.Replace(string(o.seen[0]), `"model":"m"`, `"model":"m1"`, 1), string(o.seen[1]))
		require.Contains(t, string(o.last().Request()), `"tool_calls"`)
	}
	unanswered := clears("a call without result (CU-13)", "trigger: 1, keep: 0", open, "c1", "o1")
	unanswered.with = append(unanswered.with, made{"pair-repair", ""})
	unanswered.turns = []turn{{run: "r", body: request(open...)}}
	unanswered.check = func(t *testing.T, o outcome) { // the result is pair repair's, and clearing alone leaves the count
		require.Len(t, chat.Messages(o.seen[0]), len(open)+1)
	}
	// The two counters differ on this history: what is over the trigger by one is not by the other.
	chars := stages.Chars{}.Count("m", five)
	another := func(id string, trigger int, want ...string) row {
		r := clears(id, fmt.Sprintf("trigger: %d, keep: 4", trigger), five, want...)
		r.with[0].yaml += "\ntoken-counter: calibrated"
		return r
	}
	return []row{
		clears("not over the trigger (CU-1)", "trigger: 100000", five),
		clears("no more results than keep (CU-3)", "trigger: 1, keep: 5", five),
		clears("with nothing kept all results are cleared (CU-4)", "trigger: 1, keep: 0", five, "c1", "c2", "c3", "c4", "c5"),
		clears("stops when enough is freed (CU-5)", "trigger: 1, keep: 1, clear-at-least: 150", five, "c1", "c2"),
		clears("clear-at-least cannot be reached (CU-6)", "trigger: 1, keep: 1, clear-at-least: 5000", five),
		clears("excluded tools stay and take no place of others (CU-7)", "trigger: 1, keep: 1, exclude-tools: [k]",
			uses("k", "x", "y", "z"), "c2", "c3"),
		untouched, inputs, kept, placeholder,
		clears("a fresh result says the placeholder (CU-12)", "trigger: 1, keep: 1", fresh, "c1", "c2", "c3", "c4", "c5",
			"n1"),
		unanswered,
		clears("one above by chars (CU-14)", fmt.Sprintf("trigger: %d, keep: 4", chars-1), five, "c1"),
		another("the same trigger by another counter (CU-14 CU-1)", chars-1),
		another("a lower trigger by another counter (CU-14)", chars/3, "c1"),
	}
}

func hintRows() []row {
	const agents = `agents:
- {name: code-review-agent, keywords: [{keyword: 代码审查, weight: 5}, {keyword: review, weight: 4},
    {keyword: 代码质量, weight: 3}]}
- {name: data-analysis-agent, keywords: [{keyword: 数据分析, weight: 5}, {keyword: 统计, weight: 3}]}`
	const hint = "[DELEGATION_HINT] 建议委派给: "
	hints := func(id, want string, in ...chat.Msg) row {
		return row{id: id, with: []made{{"sub-agent", agents}}, turns: one(request(in...)), calls: 1,
			check: func(t *testing.T, o outcome) {
				if want == "" {
					same(t, o, request(in...))
					return
				}
				prompt := chat.SystemText(o.seen[0])
				require.True(t, strings.HasSuffix(prompt, hint+want), prompt)
				require.Equal(t, 1, strings.Count(prompt, hint))
				require.Equal(t, in[0].Role() != "system", prompt == hint+want, "SA-10")
			}}
	}
	kind := sys("be kind")
	tie := hints("of equal agents the first configured one is named, always (SA-6)", "code-review-agent, 匹配度: 5",
		kind, user("数据分析 代码审查"))
	tie.turns, tie.calls = times(20, tie.turns[0]), 20
	english := hints("a hint of the other language gives way (SA-11 CX-8)", "", kind, user("代码审查"))
	english.texts, english.turns = "en", one(request(sys("be kind\n\n"+hint+"data-analysis-agent, 匹配度: 5"),
		user("代码审查")))
	english.check = func(t *testing.T, o outcome) {
		require.Equal(t, "be kind\n\n[DELEGATION_HINT] suggested agent: code-review-agent, match score: 5",
			chat.SystemText(o.seen[0]))
	}
	return []row{
		english,
		hints("a keyword names the agent in the last line of the system prompt (SA-1)", "code-review-agent, 匹配度: 5",
			kind, user("请做代码审查")),
		hints("below the least score (SA-2)", "", kind, user("please review")),
		hints("several keywords add up (SA-3)", "code-review-agent, 匹配度: 7", kind, user("review 一下代码质量")),
		hints("a keyword counts once however often it comes (SA-4)", "", kind, user("review review review")),
		hints("only the best agent is named (SA-5)", "data-analysis-agent, 匹配度: 8", kind,
			user("代码审查后做数据分析和统计")),
		tie,
		hints("only in older messages (SA-7)", "", kind, user("代码审查"), says("代码审查"), user("ok")),
		hints("without a user message nothing happens (SA-8)", "", kind, says("代码审查")),
		hints("case matters by default (SA-9)", "", kind, user("Review 代码质量")),
		hints("without a system prompt one is made (SA-10)", "code-review-agent, 匹配度: 5", user("代码审查")),
		hints("the prompt brings a hint (SA-11)", "data-analysis-agent, 匹配度: 5",
			sys("be kind\n\n"+hint+"code-review-agent, 匹配度: 5"), user("数据分析")),
	}
}

func selectionRows() []row {
	offer := func(text string, tools ...string) []byte {
		var list []string
		for _, tool := range tools {
			name, desc, _ := strings.Cut(tool, " ")
			list = append(list,
				fmt.Sprintf(`{"type":"function","function":{"name":%q,"description":%q,"parameters":{"x":1.50}},"y":null}`, name,
					desc))
		}
		return []byte(`{"model":"m","messages":[` + string(user(text).Raw) + `],"tools":[` + strings.Join(list, ",") + `]}`)
	}
	names := func(request []byte) (out []string) {
		raw, _ := rawjson.Field(request, "tools")
		for _, e := range rawjson.Elements(raw) {
			f, _ := rawjson.Field(e, "function")
			name, _ := rawjson.FieldString(f, "name")
			out = append(out, name)
		}
		return out
	}
	picks := func(id, yaml string, body []byte, want ...string) row {
		return row{id: id, with: []made{{"tool-selection", yaml}}, turns: one(body), calls: 1,
			check: func(t *testing.T, o outcome) {
				for _, raw := range o.seen {
					require.Equal(t, want, names(raw))
				}
			}}
	}
	var all []string
	for i := range 15 {
		all = append(all, fmt.Sprintf("t%02d", i))
	}
	tie := picks("equal tools keep their order (TS-7)", "max-tools: 4\nalways-include: []", offer("t13 t14", all...),
		"t13", "t14", "t00", "t01")
	tie.turns, tie.calls = times(20, tie.turns[0]), 20
	// A score is read off by ranking: before a rival of one point less (two where none exists), behind one more.
	const best, none = "max-tools: 1\nalways-include: []", "max-tools: 10\nalways-include: []"
	reply := []byte(`{"choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"1",` +
		`"type":"function","function":{"name":"t12","arguments":"{}"}},{"id":"2","type":"function",` +
		`"function":{"name":"t01","arguments":"{}"}}]}}]}`)
	memory := func(strict bool) row {
		r := picks(fmt.Sprintf("strict is %v (TS-11)", strict), fmt.Sprintf("strict: %v", strict), offer("t00", all...),
			all[:10]...)
		r.script = []any{reply}
		r.turns[0].run = "r"
		r.check = func(t *testing.T, o outcome) {
			require.Equal(t, string(reply), string(o.last().Reply()), "the reply itself is never changed")
			if strict {
				require.Equal(t, []string{"t12"}, stages.BlockedTools(o.last()))
			} else {
				require.Empty(t, stages.BlockedTools(o.last()))
			}
		}
		return r
	}
	inUse := func(id string, in []chat.Msg, stay ...string) row {
		body := rawjson.SetField(request(in...), "tools",
			func() []byte { raw, _ := rawjson.Field(offer("x", all...), "tools"); return raw }())
		return picks(id, "max-tools: 3\nalways-include: []", body, append([]string{"t00", "t01", "t02"}, stay...)...)
	}
	return []row{
		picks("the full name and its parts are 16 (TS-1)", best,
			offer("用 searchWeb 查 a b c d e f g h", "rival a,b,c,d,e,f,g", "searchWeb", "last a,b,c,d,e,f,g"), "searchWeb"),
		// named, so it stays
		picks("no more than 16 (TS-1)", best, offer("用 searchWeb 查 a b c d e f g h i", "searchWeb",
			"rival a,b,c,d,e,f,g,h,i", "other"), "rival", "searchWeb"),
		picks("a part is 3 (TS-2)", best, offer("search something a", "rival a", "searchWeb"), "searchWeb"),
		picks("two words are 4 (TS-3)", best, offer("search alpha beta", "searchWeb", "zz alpha,beta"), "zz"),
		picks("always-include outside the top (TS-4)", "always-include: [t14, t12, t14]", offer("t00", all...),
			append(append([]string{}, all[:10]...), "t14", "t12")...),
		picks("always-include inside the top (TS-5)", "always-include: [t03, t09]", offer("t00", all...), all[:10]...),
		picks("fewer tools than the limit all stay (TS-6)", none, offer("t06", all[:7]...), all[:7]...),
		tie,
		picks("an unknown name among those always included is a warning (TS-8)", "always-include: [nowhere]",
			offer("t00", all...), all[:10]...),
		picks("nothing matches: all stay (TS-9 CX-5)", "",
			offer("yes", append(append([]string{}, all[:14]...), "getCurrentTime")...),
			append(append([]string{}, all[:14]...), "getCurrentTime")...),
		picks("abbreviations in a name are parts of it: getURLInfo is 3 (TS-10)", best,
			offer("URL a", "rival a", "getURLInfo"), "getURLInfo"),
		memory(false), memory(true),
		inUse("tools that were called stay, also when their results are long ago (CX-5)",
			[]chat.Msg{user("do"), calls("1 t14", "2 t11"), result("1", "a"), result("2", "b"), says("done"),
				user("and t00 now")}, "t11", "t14"),
		inUse("a tool that the last messages name stays (CX-5)",
			[]chat.Msg{user("hi"), says("I can do that with t13, shall I? Not with t120 or xt12."), user("yes, and t00")},
			"t13"),
		inUse("one of a name that the text goes on after is not named (CX-5)",
			[]chat.Msg{says("用t13吧"), user("好, t00")}, "t13"),
	}
}
