package chat_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

func TestSplitChunk(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("onion \u0001 世界 🧅 ", 500)
	text := string(rawjson.Encode(long))
	for name, tt := range map[string]struct{ chunk, path string }{
		"content": {`{"id":"x","choices":[{"index":1,"delta":{"role":"assistant","content":` + text +
			`},"finish_reason":"stop"}],"usage":{"n":1}}`, "choices.0.delta.content"},
		"arguments": {`{"id":"x","choices":[{"index":1,"delta":{"tool_calls":[{"index":2,"id":"a","function":{` +
			`"name":"f","arguments":` + text + `}}]},"finish_reason":"stop"}],"usage":{"n":1}}`,
			"choices.0.delta.tool_calls.0.function.arguments"},
		"input": {`{"id":"x","choices":[{"index":1,"delta":{"tool_calls":[{"index":2,"id":"a","custom":{` +
			`"name":"f","input":` + text + `}}]},"finish_reason":"stop"}],"usage":{"n":1}}`,
			"choices.0.delta.tool_calls.0.custom.input"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const most = 2000
			pieces := chat.SplitChunk([]byte(tt.chunk), most)
			require.Greater(t, len(pieces), 5)
			var said strings.Builder
			for i, p := range pieces {
				require.LessOrEqual(t, len(p), most)
				require.True(t, gjson.ValidBytes(p), "%s", p)
				said.WriteString(gjson.GetBytes(p, tt.path).Str)
				last := i == len(pieces)-1
				require.Equal(t, last, gjson.GetBytes(p, "usage").Exists())
				require.Equal(t, last, gjson.GetBytes(p, "choices.0.finish_reason").Str == "stop")
				require.Equal(t, int64(1), gjson.GetBytes(p, "choices.0.index").Int())
				if strings.Contains(tt.path, "tool_calls") {
					require.Equal(t, int64(2), gjson.GetBytes(p, "choices.0.delta.tool_calls.0.index").Int())
					require.Equal(t, i == 0, gjson.GetBytes(p, "choices.0.delta.tool_calls.0.id").Exists())
				} else {
					require.Equal(t, i == 0, gjson.GetBytes(p, "choices.0.delta.role").Exists())
				}
			}
			require.Equal(t, long, said.String())
		})
	}
	for _, whole := range []string{
		`{"choices":[]}`, `{}`, `[` + text + `]`, text, ``, `{"choices":[{"delta":null}],"x":` + text + `}`,
		`{"choices":[{"delta":{"content":` + text + `}},{"delta":{}}]}`, `{"choices":[{"delta":{"audio":{"data":` +
			text + `}}}]}`,
	} {
		require.Equal(t, [][]byte{[]byte(whole)}, chat.SplitChunk([]byte(whole), 100))
	}
}
