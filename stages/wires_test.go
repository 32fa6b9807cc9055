package stages_test

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
)

// wireBodies is one conversation on each wire, with what must survive whatever a stage edits: a field that nobody
// knows, a cache breakpoint, signed reasoning. %s stands in for the text of the newest user message.
var wireBodies = map[messages.Wire]string{
	messages.ChatWire: `{"model":"p","x-big":9007199254740993,"messages":[{"role":"system","content":[{"type":"text",` +
		`"text":"Be kind.","cache_control":{"type":"ephemeral"}}]},{"role":"user","content":"Weather?"},` +
		`{"role":"assistant","content":"I look.","reasoning_details":[{"type":"reasoning.text",` +
		`"text":"ask joe@example.com","signature":"U0lH"}],"tool_calls":[{"id":"a","type":"function",` +
		`"function":{"name":"weather","arguments":` +
		`"{\"city\":\"Paris\"}"}},{"id":"b","type":"function","function":{"name":"weather","arguments":"{}"}}]},` +
		`{"role":"tool","tool_call_id":"a","content":"sun and more sun"},{"role":"tool","tool_call_id":"b","content":` +
		`"rain and more rain"},{"role":"user","content":%q}],"tools":[{"type":"function","function":{"name":"weather",` +
		`"description":"weather of a city"}},{"type":"function","function":{"name":"mail"}},{"type":"function","function":{` +
		`"name":"calc"}}]}`,
	messages.ResponsesWire: `{"model":"p","x-big":9007199254740993,"instructions":"Be kind.","input":[{"role":"user",` +
		`"content":"Weather?"},{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":` +
		`"ask joe@example.com"}],"encrypted_content":"U0lH"},{"type":"message","role":"assistant","id":"msg_1","status":` +
		`"completed","content":[{"type":"output_text","text":"I look.","annotations":[]}]},{"type":"function_call","id":` +
		`"fc_1","call_id":"a","name":"weather","arguments":"{\"city\":\"Paris\"}"},{"type":"function_call","id":"fc_2",` +
		`"call_id":"b","name":"weather","arguments":"{}"},{"type":"function_call_output","call_id":"a","output":` +
		`"sun and more sun"},{"type":"function_call_output","call_id":"b","output":[{"type":"input_text","text":` +
		`"rain and more rain"}]},{"role":"user","content":%q}],"tools":[{"type":"function","name":"weather","description":` +
		`"weather of a city"},{"type":"function","name":"mail"},{"type":"function","name":"calc"}]}`,
	messages.MessagesWire: `{"model":"p","max_tokens":99,"x-big":9007199254740993,"system":[{"type":"text","text":` +
		`"x-anthropic-billing-header: a"},{"type":"text","text":"Be kind.","cache_control":{"type":"ephemeral"}}],` +
		`"messages":[{"role":"user","content":"Weather?"},{"role":"assistant","content":[{"type":"thinking","thinking":` +
		`"ask joe@example.com","signature":"U0lH"},{"type":"text","text":"I look."},{"type":"tool_use","id":"a","name":` +
		`"weather","input":{"city":"Paris"}},{"type":"tool_use","id":"b","name":"weather","input":{}}]},{"role":"user",` +
		`"content":[{"type":"tool_result","tool_use_id":"a","content":"sun and more sun"},{"type":"tool_result",` +
		`"tool_use_id":"b","content":[{"type":"text","text":"rain and more rain"}]},{"type":"text","text":%q}]}],"tools":[{` +
		`"name":"weather","description":"weather of a city","input_schema":{"type":"object"}},{"name":"mail",` +
		`"input_schema":{"type":"object"}},{"name":"calc","input_schema":{"type":"object"}}]}`,
}

// survives is what no stage may change, by wire.
var survives = map[messages.Wire][]string{
	messages.ChatWire: {`"x-big":9007199254740993`, `{"type":"ephemeral"}`},
	messages.ResponsesWire: {`"x-big":9007199254740993`, `{"type":"reasoning","id":"rs_1","summary":[{"type":` +
		`"summary_text","text":"ask joe@example.com"}],"encrypted_content":"U0lH"}`},
	messages.MessagesWire: {`"x-big":9007199254740993`, `[{"type":"text","text":"x-anthropic-billing-header: a"},{`,
		`{"type":"thinking","thinking":"ask joe@example.com","signature":"U0lH"}`},
}

// wireRun is a run of one stage on one wire.
type wireRun struct {
	v    view.View
	body []byte   // the request as it came
	seen [][]byte // the requests that reached models
	call *messages.Call
}

func (r wireRun) sent() []byte     { return r.seen[len(r.seen)-1] }
func (r wireRun) msgs() []view.Msg { return r.v.Messages(r.sent()) }
func (r wireRun) said() string {
	text := ""
	for _, c := range r.v.Choices(r.call.Reply()) {
		text += c.Message().Text()
	}
	return text
}

func (r wireRun) results() (out []string) {
	for _, m := range r.msgs() {
		if m.Role() == "tool" {
			out = append(out, m.ToolCallID()+": "+m.Text())
		}
	}
	return out
}

// replyOn is a reply that says a text, calls a tool and was charged 10 tokens.
func replyOn(w messages.Wire, text string) []byte {
	reply := view.Of(w).TextReply("1", "p", text, 7)
	usage := `{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}`
	if w != messages.ChatWire {
		usage = `{"input_tokens":7,"output_tokens":3}`
	}
	return rawjson.SetField(reply, "usage", []byte(usage))
}

// Every model stage of the chain does the same on each wire.
func TestStagesOnEveryWire(t *testing.T) {
	t.Parallel()
	rows := []struct {
		name, stage, config string
		text                string                    // of the newest user message
		edit                func(body string) string  // of the request
		replies             []string                  // of the model; one that is empty says nothing
		calls               int                       // how often the call is made; 0: once
		moved               bool                      // messages go: not everything survives
		want                func(*testing.T, wireRun) // beside what survives
	}{
		{name: "the audit leaves every byte", stage: "audit", want: func(t *testing.T, r wireRun) {
			require.Equal(t, string(r.body), string(r.sent()))
			require.Equal(t, string(replyOn(r.v.Wire(), "ok")), string(r.call.Reply()))
		}},
		{name: "what failed is asked again, byte for byte", stage: "model-retry", config: "base-delay: 1ms\njitter: 0",
			replies: []string{"overloaded", "ok"}, want: func(t *testing.T, r wireRun) {
				require.Len(t, r.seen, 2)
				require.Equal(t, string(r.body), string(r.sent()))
				require.Equal(t, "ok", r.said())
			}},
		{name: "logging leaves every byte", stage: "logging", want: func(t *testing.T, r wireRun) {
			require.Equal(t, string(r.body), string(r.sent()))
		}},
		{name: "pair repair leaves a right history alone", stage: "pair-repair", want: func(t *testing.T, r wireRun) {
			require.Equal(t, string(r.body), string(r.sent()))
		}},
		{name: "pair repair makes the result that is missing", stage: "pair-repair",
			edit: func(body string) string {
				for _, cut := range []string{
					`,{"role":"tool","tool_call_id":"b","content":"rain and more rain"}`,
					`,{"type":"function_call_output","call_id":"b","output":[{"type":"input_text","text":"rain and more rain"}]}`,
					`,{"type":"tool_result","tool_use_id":"b","content":[{"type":"text","text":"rain and more rain"}]}`,
				} {
					body = strings.Replace(body, cut, "", 1)
				}
				return body
			}, want: func(t *testing.T, r wireRun) {
				require.Len(t, r.results(), 2)
				require.Equal(t, "a: sun and more sun", r.results()[0])
				require.Contains(t, r.results()[1], "b: The tool call was not completed")
				if r.v.Wire() == messages.MessagesWire { // all results of a turn stand in one message
					list, _ := rawjson.Field(r.sent(), "messages")
					require.Len(t, rawjson.Elements(list), 3)
				}
			}},
		{name: "context editing trims whole groups", stage: "context-editing", moved: true,
			config: "strategy: TRIM\nmax-tokens: 1\ntrim-keep-first: 1\ntrim-keep-last: 1",
			want: func(t *testing.T, r wireRun) {
				require.Empty(t, r.results())
				require.Contains(t, view.SystemText(r.v, r.sent()), "Be kind.")
				require.Equal(t, "And Oslo?", r.msgs()[len(r.msgs())-1].Text())
			}},
		{name: "context editing clears old results", stage: "context-editing",
			config: "strategy: CLEAR_TOOL_USES\nclear-tool-uses: {trigger: 1, keep: 1, clear-tool-inputs: true, " +
				"placeholder: \"[cleared]\"}",
			want: func(t *testing.T, r wireRun) {
				require.Equal(t, []string{"a: [cleared]", "b: rain and more rain"}, r.results())
				for _, m := range r.msgs() {
					for _, c := range m.ToolCalls() {
						require.Equal(t, "{}", c.Arguments())
					}
				}
			}},
		{name: "a hint stands at the end of the system prompt", stage: "sub-agent",
			config: "min-match-score: 1\nagents: [{name: geo, keywords: [{keyword: Oslo, weight: 9}]}]",
			want: func(t *testing.T, r wireRun) {
				text := view.SystemText(r.v, r.sent())
				require.Contains(t, text, "Be kind.")
				require.Contains(t, text[len("Be kind."):], "geo")
				require.Greater(t, strings.Index(text, "[DELEGATION_HINT]"), strings.Index(text, "Be kind."))
			}},
		{name: "the todo list is shown and directives are taken out", stage: "todo-list",
			replies: []string{"Done.\n[TODO_ADD: title=Call Oslo]\nBye."},
			want: func(t *testing.T, r wireRun) {
				require.Contains(t, view.SystemText(r.v, r.sent()), "[TODO_ADD: title=...]")
				require.NotContains(t, r.said(), "TODO_ADD")
				require.Contains(t, r.said(), "Bye.")
				require.Contains(t, string(r.call.Notes[messages.NoteTodo]), `"replayed":true`, "the harness runs each phase twice")
			}},
		{name: "tools that fit are offered", stage: "tool-selection", config: "max-tools: 1\nalways-include: []",
			text: "calc please", want: func(t *testing.T, r wireRun) {
				raw, _ := rawjson.Field(r.sent(), "tools")
				require.Len(t, rawjson.Elements(raw), 2, "calc, and weather, which is in use")
				require.NotContains(t, string(raw), "mail")
			}},
		{name: "private values are hidden", stage: "pii", text: "I am jane@example.com", want: func(t *testing.T, r wireRun) {
			require.NotContains(t, string(r.sent()), "jane@example.com")
			require.Equal(t, "I am [REDACTED_EMAIL]", r.msgs()[len(r.msgs())-1].Text())
		}},
		{name: "private values come back in the reply", stage: "pii", text: "I am jane@example.com",
			config:  "hash-key-env: PATH\nrules: [{type: email, strategy: REPLACE}]",
			replies: []string{"echo"},
			want: func(t *testing.T, r wireRun) {
				require.NotContains(t, string(r.sent()), "jane@example.com")
				require.Equal(t, "I am jane@example.com", r.said())
			}},
		{name: "private values in results of tools", stage: "pii",
			config: "apply-to-input: false\napply-to-tool-results: true",
			edit:   func(body string) string { return strings.Replace(body, "sun and more sun", "jane@example.com", 1) },
			text:   "I am jim@example.com", want: func(t *testing.T, r wireRun) {
				require.Equal(t, "a: [REDACTED_EMAIL]", r.results()[0])
				require.Equal(t, "I am jim@example.com", r.msgs()[len(r.msgs())-1].Text())
			}},
		{name: "private values in a reply", stage: "pii", config: "apply-to-input: false\napply-to-output: true",
			replies: []string{"Ask jane@example.com"}, want: func(t *testing.T, r wireRun) {
				require.Equal(t, "Ask [REDACTED_EMAIL]", r.said())
			}},
		{name: "the same question is answered from the cache", stage: "model-cache", calls: 2,
			want: func(t *testing.T, r wireRun) {
				require.Len(t, r.seen, 1)
				require.Equal(t, string(replyOn(r.v.Wire(), "ok")), string(r.call.Reply()))
			}},
		{name: "beyond the limit a text of the wire", stage: "call-limit", config: "run-limit: 1", calls: 2,
			want: func(t *testing.T, r wireRun) {
				require.Len(t, r.seen, 1)
				require.Contains(t, r.said(), "Model call limits exceeded")
			}},
		{name: "the budget counts the usage of the wire", stage: "budget", config: "tokens-per-day: 10", calls: 2,
			want: func(t *testing.T, r wireRun) {
				require.Len(t, r.seen, 1)
				require.Equal(t, messages.LimitExceeded, r.call.Fault.Code)
				require.Contains(t, r.call.Fault.Message, "10 of 10 tokens")
			}},
		{name: "an empty reply goes to a standby", stage: "model-fallback", config: "fallback-models: [q]",
			replies: []string{""}, moved: true, want: func(t *testing.T, r wireRun) {
				require.Len(t, r.seen, 2)
				require.Equal(t, "q", view.ModelName(r.sent()))
				require.Equal(t, "standby", r.said())
				require.NotContains(t, string(r.sent()), "cache_control", "it is of the first provider")
			}},
	}
	for _, spec := range stages.All() {
		in := spec.Kind != messages.Model
		for _, row := range rows {
			in = in || row.stage == spec.Name
		}
		require.True(t, in, "the stage %s has no row", spec.Name)
	}
	for _, row := range rows {
		for w, form := range wireBodies {
			t.Run(fmt.Sprintf("%s on %s", row.name, w), func(t *testing.T) {
				t.Parallel()
				body := fmt.Sprintf(form, cmp.Or(row.text, "And Oslo?"))
				if row.edit != nil {
					edited := row.edit(body)
					require.NotEqual(t, body, edited)
					body = edited
				}
				m := &wireModel{wire: w, replies: row.replies}
				deps := harnessDeps()
				deps.Texts = "en"
				h := &harness{Stages: []pipeline.Stage{harnessModel(t, row.stage, row.config, deps)}, Target: m}
				r := wireRun{v: view.Of(w), body: []byte(body)}
				for range max(row.calls, 1) {
					c := messages.NewCall(messages.Model, "t", []byte(body))
					c.Wire, c.Session, c.Run, c.Deadline = w, "s", "r", time.Now().Add(time.Minute)
					r.call = h.Call(t, context.Background(), c)
				}
				r.seen = m.seen
				for _, keep := range survives[w] {
					if !row.moved {
						require.Contains(t, string(r.sent()), keep)
					}
				}
				require.Equal(t, w, r.call.Wire)
				row.want(t, r)
			})
		}
	}
}

// wireModel answers on a wire. The reply echo says the newest user message; the standby q says so.
type wireModel struct {
	wire    messages.Wire
	replies []string
	seen    [][]byte
}

func (m *wireModel) Do(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
	m.seen = append(m.seen, c.Request())
	text := "ok"
	if n := len(m.replies); n > 0 {
		text = m.replies[min(len(m.seen), n)-1]
	}
	if text == "overloaded" {
		return messages.NewFault(messages.ProviderLimited, "overloaded").From(messages.TargetOrigin)
	}
	if text == "echo" {
		msgs := view.Of(m.wire).Messages(c.Request())
		text = msgs[len(msgs)-1].Text()
	}
	if view.ModelName(c.Request()) == "q" {
		text = "standby"
	}
	c.SetReply(replyOn(m.wire, text))
	return nil
}
