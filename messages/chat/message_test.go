package chat_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages/chat"
)

func TestAppendSystem(t *testing.T) {
	t.Parallel()
	req := []byte(`{"messages":[{"role":"system","content":"be kind"},{"role":"user","content":"hi"}]}`)
	require.Equal(t, "be kind\n\nhint", chat.SystemText(chat.AppendSystem(req, "hint")))
	req = []byte(`{"messages":[{"role":"user","content":"hi"}]}`)
	require.Equal(t, "hint", chat.SystemText(chat.AppendSystem(req, "hint")))
	req = []byte(`{"messages":[{"role":"developer","content":[{"type":"text","text":"p","cache_control":{` +
		`"type":"e"}}]}]}`)
	out := chat.AppendSystem(req, "hint")
	require.Contains(t, string(out), `"cache_control":{"type":"e"}`)
	require.Equal(t, "p\nhint", chat.SystemText(out))
}

func FuzzViews(f *testing.F) {
	for _, s := range []string{`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}`,
		`{"choices":[{"message":{"tool_calls":[{"function":{"arguments":"{"}}]}}]}`,
		`{"messages":{}}`, `{"messages":[1,null,"x",[]]}`, `{"choices":[null]}`, `[]`, ``,
		`{"messages":[{"content":7,"tool_calls":3}]}`, `[{}`, `{"a`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		valid := json.Valid(body)
		was := bytes.Clone(body)
		for _, m := range chat.Messages(body) {
			m.Text()
			m.MapText(strings.ToUpper)
			for _, c := range m.ToolCalls() {
				c.Arguments()
				c.WithArguments("{}")
			}
		}
		for _, c := range chat.Choices(body) {
			c.Message().Text()
			c.WithMessage(chat.NewMsg("assistant", "x"))
		}
		chat.EmptyReply(body)
		out := chat.AppendSystem(body, "hint")
		if valid {
			require.True(t, json.Valid(out), "%s", out)
		}
		require.Equal(t, was, body)
	})
}
