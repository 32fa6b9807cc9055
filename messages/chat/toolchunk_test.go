package chat_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
)

// FuzzJoin: however a text is cut, joined it is what the whole is.
func FuzzJoin(f *testing.F) {
	f.Add([]byte("a中🧅b"), 1)
	f.Add([]byte("\xe4\xb8\xff\xff\xf0\x9f\xa7"), 2)
	f.Fuzz(func(t *testing.T, in []byte, n int) {
		n = 1 + max(0, n%7)
		var j chat.TextJoiner
		out := ""
		for rest := string(in); rest != ""; rest = rest[min(n, len(rest)):] {
			piece := j.Add(rest[:min(n, len(rest))])
			require.True(t, utf8.ValidString(piece))
			out += piece
		}
		require.Equal(t, strings.ToValidUTF8(string(in), "\uFFFD"), out+j.End())
	})
}

func TestSplitToolChunk(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("onion \u0001 世界 🧅 ", 500)
	said := ""
	pieces := chat.SplitChunk(chat.ToolChunk(long), 2000)
	require.Greater(t, len(pieces), 5)
	for _, p := range pieces {
		require.LessOrEqual(t, len(p), 2000)
		text, ok := chat.ToolChunkText(p)
		require.True(t, ok)
		said += text
	}
	require.Equal(t, long, said)
	_, ok := chat.ToolChunkText(chat.ToolProgress([]byte(`{"text":"x"}`)))
	require.False(t, ok)
}

// A text of which a part was shown stays as it is, on the wire too.
func TestReplyText(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{"a": 1}`, `"x"`, "42", "", "a\nb"} {
		c := messages.NewCall(messages.Tool, "t", []byte(`{}`))
		c.SetReply([]byte(`1`))
		c.SetReplyText(text)
		wire, err := c.Marshal()
		require.NoError(t, err)
		c, err = messages.Unmarshal(wire)
		require.NoError(t, err)
		out, isText, ok := c.ReplyPlain()
		require.Equal(t, []any{text, true, true}, []any{out, isText, ok})
	}
}
