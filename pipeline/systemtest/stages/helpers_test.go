package stages

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
)

func messageOf(role, text string) chat.Msg { return chat.NewMsg(role, text) }

func sys(text string) chat.Msg  { return messageOf("system", text) }
func user(text string) chat.Msg { return messageOf("user", text) }
func says(text string) chat.Msg { return messageOf("assistant", text) }

// calls is an assistant message with tool calls "id name arguments".
func calls(list ...string) chat.Msg {
	var out []string
	for _, c := range list {
		f := strings.SplitN(c+" {}", " ", 3)
		f[2] = strings.TrimSuffix(f[2], " {}")
		out = append(out, fmt.Sprintf(`{"id":%q,"type":"function","function":{"name":%q,"arguments":%q}}`, f[0], f[1], f[2]))
	}
	return chat.Msg{Raw: []byte(`{"role":"assistant","content":null,"tool_calls":[` + strings.Join(out, ",") + `]}`)}
}

func result(id, text string) chat.Msg {
	return chat.Msg{Raw: []byte(fmt.Sprintf(`{"role":"tool","tool_call_id":%q,"content":%q}`, id, text))}
}

func request(msgs ...chat.Msg) []byte {
	return chat.WithMessages([]byte(`{"model":"m","temperature":0,"messages":[],"big":9007199254740993}`), msgs)
}

// sized is a text of so many tokens of four characters.
func sized(head string, tokens int) string { return head + strings.Repeat("x", tokens*4-len(head)) }

func raws(msgs []chat.Msg) []string {
	var out []string
	for _, m := range msgs {
		out = append(out, string(m.Raw))
	}
	return out
}

func text(t *testing.T, c *messages.Call) string {
	t.Helper()
	require.Nil(t, c.Fault)
	return chat.Choices(c.Reply())[0].Message().Text()
}

// unpaired says what an upstream that checks the pairs of calls and results would say.
func unpaired(request []byte) string {
	open := map[string]bool{}
	for i, m := range chat.Messages(request) {
		if m.Role() == "tool" {
			if !open[m.ToolCallID()] {
				return fmt.Sprintf("message %d: result %q without its call", i, m.ToolCallID())
			}
			delete(open, m.ToolCallID())
			continue
		}
		if len(open) > 0 {
			return fmt.Sprintf("message %d: calls without result: %v", i, open)
		}
		for _, c := range m.ToolCalls() {
			open[c.ID()] = true
		}
	}
	if len(open) > 0 {
		return fmt.Sprintf("at the end: calls without result: %v", open)
	}
	return ""
}
