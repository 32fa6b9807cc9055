package view_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/view"
)

var wires = []messages.Wire{messages.ChatWire, messages.ResponsesWire, messages.MessagesWire}

func TestAppendSystem(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		wire messages.Wire
		body string
		want string
	}{
		{"a text", messages.ResponsesWire, `{"instructions":"Be kind.","input":"x"}`,
			`{"instructions":"Be kind.\n\nhint","input":"x"}`},
		{"none", messages.ResponsesWire, `{"input":"x"}`, `{"input":"x","instructions":"hint"}`},
		{"items", messages.ResponsesWire, `{"input":[{"role":"developer","content":"Be kind."},{"role":"user","content":` +
			`"x"}]}`, `{"input":[{"role":"developer","content":"Be kind.\n\nhint"},{"role":"user","content":"x"}]}`},
		{"an item that is not a message", messages.ResponsesWire, `{"input":[{"type":"compaction","encrypted_content":"e"}]}`,
			`{"input":[{"type":"compaction","encrypted_content":"e"}],"instructions":"hint"}`},
		{"a text", messages.MessagesWire, `{"system":"Be kind.","messages":[]}`,
			`{"system":"Be kind.\n\nhint","messages":[]}`},
		{"blocks", messages.MessagesWire, `{"system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}`,
			`{"system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":"hint"}]}`},
		{"none", messages.MessagesWire, `{"messages":[]}`, `{"messages":[],"system":"hint"}`},
	} {
		t.Run(string(row.wire)+" "+row.name, func(t *testing.T) {
			t.Parallel()
			v := view.Of(row.wire)
			out := v.AppendSystem([]byte(row.body), "hint")
			require.Equal(t, row.want, string(out))
			require.Contains(t, view.SystemText(v, out), "hint")
		})
	}
}

func TestTurnsOfTheMessagesWire(t *testing.T) {
	t.Parallel()
	v := view.Of(messages.MessagesWire)
	body := []byte(`{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{"x":1}},` +
		`{"type":"tool_use","id":"b","name":"f","input":{}}]},{"role":"user","x":1,"content":[{"type":"tool_result",` +
		`"tool_use_id":"a","content":"1"},{"type":"text","text":"go"},{"type":"image","source":{}}]}]}`)
	msgs := v.Messages(body)
	require.Len(t, msgs, 3)
	require.Equal(t, []string{"assistant", "tool", "user"}, []string{msgs[0].Role(), msgs[1].Role(), msgs[2].Role()})
	require.Equal(t, []string{"image"}, msgs[2].Kinds())
	result := msgs[0].NewResult(msgs[0].ToolCalls()[1], "2")
	out := v.WithMessages(body, []view.Msg{msgs[0], msgs[1], result, msgs[2]})
	require.Contains(t, string(out), `{"role":"user","x":1,"content":[{"type":"tool_result","tool_use_id":"a","content":`+
		`"1"},{"type":"tool_result","tool_use_id":"b","content":"2"},{"type":"text","text":"go"},`,
		"results stand in one message, before the text")
	out = v.WithMessages(body, []view.Msg{msgs[0], result, msgs[1], msgs[2]})
	require.Len(t, v.Messages(out), 4)
	require.NotContains(t, string(out), `{"role":"tool"`)
	call := msgs[0].ToolCalls()[0].WithArguments(`{"y":2}`)
	require.Equal(t, `{"type":"tool_use","id":"a","name":"f","input":{"y":2}}`, string(call.Raw))
	require.Equal(t, string(call.Raw), string(call.WithArguments("no object").Raw))
}

func TestEcho(t *testing.T) {
	t.Parallel()
	request := []byte(`{"instructions":"mine","metadata":{"a": "b"},"input":"x"}`)
	right := `{"id":"r","instructions":"mine","metadata":{"a":"b"},"user":null,"output":[]}`
	require.Equal(t, right, string(view.Echo(request, []byte(right))))
	require.Equal(t, right, string(view.Echo(request, []byte(`{"id":"r","instructions":"mine and more","metadata":{`+
		`"a":"[REDACTED]"},"user":"u","output":[]}`))))
	require.Equal(t, `{"instructions":null,"metadata":{}}`, string(view.Echo([]byte(`{"input":"x"}`),
		[]byte(`{"instructions":"a list","metadata":{}}`))))
}

func TestUsageOfEachWire(t *testing.T) {
	t.Parallel()
	want := view.Usage{Input: 20, CacheRead: 8, CacheWrite: 3, Output: 5, Reasoning: 2, Total: 25}
	for w, reply := range map[messages.Wire]string{
		messages.ChatWire: `{"usage":{"prompt_tokens":20,"completion_tokens":5,"total_tokens":25,"prompt_tokens_details":{` +
			`"cached_tokens":8,"cache_write_tokens":3},"completion_tokens_details":{"reasoning_tokens":2}}}`,
		messages.ResponsesWire: `{"usage":{"input_tokens":20,"input_tokens_details":{"cached_tokens":8,` +
			`"cache_write_tokens":3},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":25}}`,
		messages.MessagesWire: `{"usage":{"input_tokens":9,"cache_read_input_tokens":8,"cache_creation_input_tokens":3,` +
			`"output_tokens":5,"output_tokens_details":{"thinking_tokens":2}}}`,
	} {
		require.Equal(t, want, view.Of(w).Usage([]byte(reply)), w)
		require.Zero(t, view.Of(w).Usage([]byte(`{"usage":{"input_tokens":-1,"prompt_tokens":"x"}}`)), w)
	}
}

func TestHowAnswersEnd(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]string{
		`{"status":"completed","output":[]}`:                                                      view.FinishStop,
		`{"status":"completed","output":[{"type":"function_call"}]}`:                              view.FinishTools,
		`{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[]}`: view.FinishLength,
		`{"status":"incomplete","incomplete_details":{"reason":"steered"},"output":[]}`:           "steered",
		`{"status":"failed","output":[]}`:                                                         view.FinishError,
		`{"stop_reason":"end_turn","content":[]}`:                                                 view.FinishStop,
		`{"stop_reason":"pause_turn","content":[]}`:                                               "pause_turn",
		`{"choices":[{"finish_reason":"content_filter"}]}`:                                        view.FinishFilter,
	} {
		for _, w := range wires {
			for _, c := range view.Of(w).Choices([]byte(reply)) {
				require.Equal(t, want, c.Finish(), reply)
			}
		}
	}
}

func FuzzView(f *testing.F) {
	for _, s := range []string{`{"messages":[{"role":"user","content":[{"type":"tool_result","content":[]},{}]}]}`,
		`{"input":[{"type":"function_call"},{},1,null]}`, `{"system":[{}],"instructions":1,"input":"x"}`, `[]`,
		`{"messages":{},"content":[1],"output":[null]}`, `{"choices":[{"message":{"tool_calls":[1]}}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var compact bytes.Buffer // as bodies are since their entry
		if json.Compact(&compact, body) != nil {
			return
		}
		body = compact.Bytes()
		for _, w := range wires {
			v := view.Of(w)
			msgs := v.Messages(body)
			require.Equal(t, string(body), string(v.WithMessages(body, msgs)), "nothing was edited")
			for i, m := range msgs {
				m.Kinds()
				upper, _ := m.MapText(strings.ToUpper)
				calls := m.ToolCalls()
				for j, c := range calls {
					calls[j] = c.WithID("id").WithArguments(`{"a":1}`)
				}
				msgs[i] = upper.WithToolCalls(calls).WithText("x").WithToolCallID("y")
			}
			require.True(t, json.Valid(v.WithMessages(body, msgs)))
			require.True(t, json.Valid(v.AppendSystem(body, "hint")))
			choices := v.Choices(body)
			require.Equal(t, string(body), string(v.WithChoices(body, choices)))
			view.EmptyReply(v, body)
			require.GreaterOrEqual(t, view.Estimate(v, body), int64(0))
		}
	})
}
