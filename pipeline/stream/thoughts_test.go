package stream_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

func thought(text string) []byte {
	return fmt.Appendf(nil, `{"id":"c1","object":"chat.completion.chunk","created":7,"model":"m",`+
		`"choices":[{"index":0,"delta":{"reasoning_content":%q},"finish_reason":null}]}`, text)
}

func thinking(thoughts, text string) string {
	return fmt.Sprintf(`{"id":"c1","choices":[{"index":0,"message":{"role":"assistant","content":%q,"reasoning_content":%q},`+
		`"finish_reason":"stop"}]}`, text, thoughts)
}

func TestFollowerShowsThoughts(t *testing.T) { // (FO-9)
	t.Parallel()
	follow := func() (*stream.Follower, func(source string, n int, chunk []byte) [][]byte) {
		f := stream.NewFollower([]byte(plainAsk))
		return f, func(source string, n int, chunk []byte) [][]byte {
			return f.Delta(pipeline.Delta{Source: source, N: n, Chunk: chunk})
		}
	}
	t.Run("as they come, and the end says each word once", func(t *testing.T) {
		t.Parallel()
		f, d := follow()
		out := d("1", 1, thought("hm"))
		require.Len(t, out, 1)
		require.False(t, f.Released())
		rest, fault := f.End(finished(thinking("hm so", "hi")))
		require.Nil(t, fault)
		r, err := chat.Assemble(append(out, rest...))
		require.NoError(t, err)
		require.JSONEq(t, `"hm so"`, string(field(t, r, "reasoning_content")))
		require.JSONEq(t, `"hi"`, string(field(t, r, "content")))
	})
	t.Run("another run takes their place", func(t *testing.T) {
		t.Parallel()
		f, d := follow()
		d("1", 1, thought("hm"))
		require.Len(t, d("2", 1, thought("oh")), 1)
		require.Len(t, d("2", 2, piece("hi")), 1)
		require.True(t, f.Released())
		require.Empty(t, d("1", 2, thought(" late")))
		rest, fault := f.End(finished(thinking("oh", "hi")))
		require.Nil(t, fault)
		require.Len(t, rest, 1, "only the finish")
	})
	t.Run("a failure after them is the call's own", func(t *testing.T) {
		t.Parallel()
		f, d := follow()
		d("1", 1, thought("hm"))
		c := finished(thinking("", ""))
		c.Fail(messages.NewFault(messages.ProviderError, "down"))
		rest, fault := f.End(c)
		require.Empty(t, rest)
		require.Equal(t, messages.ProviderError, fault.Code)
	})
}

func field(t *testing.T, reply []byte, key string) []byte {
	t.Helper()
	raw, ok := rawjson.Field(chat.Choices(reply)[0].Message().Raw, key)
	require.True(t, ok, "%s", reply)
	return raw
}
