package chat_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

func chunks(lines ...string) [][]byte {
	out := make([][]byte, len(lines))
	for i, l := range lines {
		out[i] = []byte(l)
	}
	return out
}

func TestAssemble(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		chunks []string
		want   string
	}{
		"text, unknown fields, big numbers": {
			[]string{
				`{"id":"c1","object":"chat.completion.chunk","created":9007199254740993,"model":"m",` +
					`"system_fingerprint":"fp","service_tier":"default","choices":[{"index":0,"delta":{` +
					`"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}],` +
					`"usage":null}`,
				`{"id":"c1","created":1,"model":"m","choices":[{"index":0,"delta":{"reasoning_content":"hm "}}]}`,
				`{"id":"c1","created":1,"model":"m","choices":[{"index":0,"delta":{"reasoning_content":"so"}}]}`,
				`{"id":"c1","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"Hal"},"logprobs":{` +
					`"content":[{"token":"Hal","logprob":-0.10}]}}]}`,
				`{"id":"c1","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"lo"},"logprobs":{` +
					`"content":[{"token":"lo","logprob":-2e-3}]}}]}`,
				`{"id":"c1","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop",` +
					`"content_filter_results":{"hate":{"filtered":false}}}]}`,
				`{"id":"c1","created":1,"model":"m","choices":[],"usage":{"total_tokens":3,"cost":0.10}}`,
			},
			`{"id":"c1","object":"chat.completion","created":9007199254740993,"model":"m",` +
				`"system_fingerprint":"fp","service_tier":"default","choices":[{"index":0,"message":{` +
				`"role":"assistant","content":"Hallo","refusal":null,"reasoning_content":"hm so"},"logprobs":{` +
				`"content":[{"token":"Hal","logprob":-0.10},{"token":"lo","logprob":-2e-3}]},` +
				`"finish_reason":"stop","content_filter_results":{"hate":{"filtered":false}}}],"usage":{` +
				`"total_tokens":3,"cost":0.10}}`,
		},
		"interleaved tool calls, signatures, custom tools": {
			[]string{
				`{"id":"","created":0,"model":"","choices":[],"prompt_filter_results":[1]}`,
				`{"id":"c","object":"chat.completion.chunk","created":5,"model":"m","choices":[{"index":0,` +
					`"delta":{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"a",` +
					`"type":"function","function":{"name":"f","arguments":""},"extra_content":{"google":{` +
					`"thought_signature":"s=="}}}]},"finish_reason":null}]}`,
				`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"b","type":"custom","custom":{` +
					`"name":"g","input":"x"}}]}}]}`,
				`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"z\": 1,` +
					`"}},{"index":1,"custom":{"input":"y"}}]}}]}`,
				`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":" ` +
					`\"a\":2}"}}]},"finish_reason":"tool_calls"}]}`,
			},
			`{"id":"c","created":5,"model":"m","prompt_filter_results":[1],"object":"chat.completion",` +
				`"choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"a",` +
				`"type":"function","function":{"name":"f","arguments":"{\"z\": 1, \"a\":2}"},"extra_content":{` +
				`"google":{"thought_signature":"s=="}}},{"id":"b","type":"custom","custom":{"name":"g",` +
				`"input":"xy"}}]},"finish_reason":"tool_calls"}]}`,
		},
		"two choices, out of order, audio": {
			[]string{
				`{"id":"c","object":"chat.completion.chunk","choices":[{"index":1,"delta":{"role":"assistant",` +
					`"content":"B"}}]}`,
				`{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","audio":{"id":"au","data":"QU",` +
					`"transcript":"a"}}},{"index":1,"delta":{"content":"b"},"finish_reason":"length"}]}`,
				`{"id":"c","choices":[{"index":0,"delta":{"audio":{"data":"JD","transcript":"b",` +
					`"expires_at":7}},"finish_reason":"stop"}]}`,
			},
			`{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant",` +
				`"content":null,"audio":{"id":"au","data":"QUJD","transcript":"ab","expires_at":7}},` +
				`"finish_reason":"stop"},{"index":1,"message":{"role":"assistant","content":"Bb"},` +
				`"finish_reason":"length"}]}`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := chat.Assemble(chunks(tt.chunks...))
			require.NoError(t, err)
			require.Equal(t, tt.want, string(got))
		})
	}
	_, err := chat.Assemble(nil)
	require.ErrorIs(t, err, chat.ErrNoChunks)
}

func TestToolDeltasWithoutIndex(t *testing.T) {
	t.Parallel()
	got, err := chat.Assemble(chunks(
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"id":"a","function":{"name":"f","arguments":"1"}}]}}]}`,
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"arguments":"2"}},{"id":"b","function":{`+
			`"name":"g","arguments":"3"}}]}}]}`,
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"id":"a","function":{"arguments":"4"}}]}}]}`,
	))
	require.NoError(t, err)
	calls := chat.Choices(got)[0].Message().ToolCalls()
	require.Len(t, calls, 2)
	require.Equal(t, "124", calls[0].Arguments())
	require.Equal(t, "3", calls[1].Arguments())
}

func TestReplayAddsUpToTheReply(t *testing.T) {
	t.Parallel()
	replies := []string{
		`{"id":"c","object":"chat.completion","created":9007199254740993,"model":"m","choices":[{"index":0,` +
			`"message":{"role":"assistant","content":"Hi <b> \u00e4","refusal":null,"annotations":[{"a":1}],` +
			`"reasoning_content":"r"},"logprobs":{"content":[{"token":"H","logprob":-1.0}],"refusal":null},` +
			`"finish_reason":"stop"}],"usage":{"total_tokens":3},"system_fingerprint":"fp","x":{"y":[1.50]}}`,
		`{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant",` +
			`"content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{ ` +
			`\"a\":1}"},"extra_content":{"s":"t"}},{"id":"b","type":"custom","custom":{"name":"g",` +
			`"input":"q"}}]},"logprobs":null,"finish_reason":"tool_calls"},{"index":1,"message":{` +
			`"role":"assistant","content":"","refusal":"no"},"finish_reason":"stop"}]}`,
	}
	for _, reply := range replies {
		out := chat.Replay([]byte(reply), true)
		for _, c := range out {
			require.True(t, json.Valid(c), "%s", c)
			v, _ := rawjson.FieldString(c, "object")
			require.Equal(t, "chat.completion.chunk", v)
		}
		back, err := chat.Assemble(out)
		require.NoError(t, err)
		require.JSONEq(t, reply, string(back))
		for _, c := range chat.Replay([]byte(reply), false) {
			_, usage := rawjson.Field(c, "usage")
			require.False(t, usage, "usage only if asked for")
		}
	}
	require.Empty(t, chat.Replay([]byte(`{"choices":[]}`), true))
	require.Empty(t, chat.Replay([]byte(`[]`), true))
}

func TestReplayRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String()
		choices := []any{}
		for i := range rapid.IntRange(1, 3).Draw(t, "n") {
			m := map[string]any{"role": "assistant", "content": text.Draw(t, "content")}
			if rapid.Bool().Draw(t, "tools") {
				var calls []any
				for range rapid.IntRange(1, 3).Draw(t, "calls") {
					calls = append(calls, map[string]any{"id": text.Draw(t, "id"), "type": "function",
						"function": map[string]any{"name": text.Draw(t, "name"), "arguments": text.Draw(t, "args")}})
				}
				m["tool_calls"] = calls
			}
			choices = append(choices, map[string]any{"index": i, "message": m, "finish_reason": "stop"})
		}
		reply := rawjson.Encode(map[string]any{"id": "x", "object": "chat.completion", "created": 1, "model": "m",
			"choices": choices, "usage": map[string]any{"total_tokens": 1}})
		back, err := chat.Assemble(chat.Replay(reply, true))
		if err != nil {
			t.Fatal(err)
		}
		var a, b any
		_ = json.Unmarshal(reply, &a)
		_ = json.Unmarshal(back, &b)
		x, y := rawjson.Encode(a), rawjson.Encode(b)
		if string(x) != string(y) {
			t.Fatalf("%s\n%s", x, y)
		}
	})
}

func FuzzAssemble(f *testing.F) {
	f.Add([]byte(`{"id":"c","choices":[{"index":0,"delta":{"content":"x"}}]}`),
		[]byte(`{"choices":[{"index":0,"delta":{"content":[{"type":"text"}],"tool_calls":[{`+
			`"index":2000000000}]},"finish_reason":"stop"}]}`))
	f.Add([]byte(`{"choices":[{"delta":{"content":{"a":1}}},3,null]}`),
		[]byte(`{"choices":[{"message":{"content":"x"},"logprobs":[]}]}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if !json.Valid(a) || !json.Valid(b) {
			return
		}
		reply, err := chat.Assemble([][]byte{a, b, a})
		if err != nil {
			return
		}
		require.True(t, json.Valid(reply), "%s", reply)
		for _, c := range chat.Replay(reply, true) {
			require.True(t, json.Valid(c), "%s", c)
		}
	})
}

func BenchmarkAssemble(b *testing.B) {
	var in [][]byte
	for range 200 {
		in = append(in, []byte(`{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{`+
			`"index":0,"delta":{"content":"word "},"finish_reason":null}]}`))
	}
	for b.Loop() {
		_, _ = chat.Assemble(in)
	}
}
