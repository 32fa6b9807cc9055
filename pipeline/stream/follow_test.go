package stream_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

func piece(text string) []byte {
	return fmt.Appendf(nil, `{"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{`+
		`"index":0,"delta":{"content":%q},"finish_reason":null}]}`, text)
}

const (
	roleChunk = `{"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,` +
		`"delta":{"role":"assistant","content":""},"finish_reason":null}]}`
	finishChunk = `{"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,` +
		`"delta":{},"finish_reason":"stop"}]}`
	usageChunk = `{"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","choices":[],"usage":{` +
		`"total_tokens":3}}`
	plainAsk = `{"model":"m","stream":true}`
	usageAsk = `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`
)

func reply(text string) string {
	return fmt.Sprintf(`{"id":"c1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,`+
		`"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],"usage":{"total_tokens":3}}`, text)
}

func finished(body string, tail ...string) *messages.Call {
	c := messages.NewCall(messages.Model, "t", []byte(plainAsk))
	c.SetReply([]byte(body))
	if len(tail) > 0 {
		raw := []json.RawMessage{}
		for _, x := range tail {
			raw = append(raw, json.RawMessage(x))
		}
		c.Note(messages.NoteStreamTail, raw)
	}
	return c
}

func texts(t *testing.T, chunks [][]byte) string {
	t.Helper()
	r, err := chat.Assemble(chunks)
	require.NoError(t, err)
	return chat.Choices(r)[0].Message().Text()
}

func TestFollowerStream(t *testing.T) {
	t.Parallel()
	f := stream.NewFollower([]byte(usageAsk))
	d := func(n int, chunk []byte) [][]byte { return f.Delta(pipeline.Delta{Source: "1.1", N: n, Chunk: chunk}) }
	require.Empty(t, d(1, []byte(roleChunk)), "a role alone waits")
	require.False(t, f.Released())
	out := d(2, piece("Hel"))
	require.Len(t, out, 2)
	require.Equal(t, roleChunk, string(out[0]), "chunks go out byte for byte")
	require.Empty(t, d(2, piece("Hel")), "a delta that comes twice")
	out = append(out, d(3, piece("lo"))...)
	end, fault := f.End(finished(reply("Hello"), finishChunk, usageChunk))
	require.Nil(t, fault)
	require.Equal(t, []string{finishChunk, usageChunk}, []string{string(end[0]), string(end[1])})
	require.Equal(t, "Hello", texts(t, append(out, end...)))
}

func TestFollowerWithoutUsage(t *testing.T) {
	t.Parallel()
	f := stream.NewFollower([]byte(plainAsk))
	f.Delta(pipeline.Delta{Source: "1", N: 1, Chunk: piece("Hello")})
	end, fault := f.End(finished(reply("Hello"), finishChunk, usageChunk))
	require.Nil(t, fault)
	require.Len(t, end, 1)
}

func TestFollowerSources(t *testing.T) {
	t.Parallel()
	t.Run("a standby's stream replaces one that had said nothing (FB-9)", func(t *testing.T) {
		t.Parallel()
		f := stream.NewFollower([]byte(plainAsk))
		require.Empty(t, f.Delta(pipeline.Delta{Source: "1", N: 1, Chunk: []byte(roleChunk)}))
		out := f.Delta(pipeline.Delta{Source: "2", N: 1, Chunk: piece("B")})
		require.Len(t, out, 1)
		require.Empty(t, f.Delta(pipeline.Delta{Source: "1", N: 2, Chunk: piece("A")}))
		end, fault := f.End(finished(reply("Bc")))
		require.Nil(t, fault)
		require.Equal(t, "Bc", texts(t, append(out, end...)))
	})
	t.Run("after the first chunk no second stream is shown (FB-9)", func(t *testing.T) {
		t.Parallel()
		f := stream.NewFollower([]byte(plainAsk))
		f.Delta(pipeline.Delta{Source: "1", N: 1, Chunk: piece("A")})
		require.Empty(t, f.Delta(pipeline.Delta{Source: "2", N: 1, Chunk: piece("A")}))
		_, fault := f.End(finished(reply("other")))
		require.Equal(t, messages.StreamCut, fault.Code)
		require.True(t, fault.OfTarget())
	})
	t.Run("a re-run that says the same goes on where the first stopped", func(t *testing.T) {
		t.Parallel()
		f := stream.NewFollower([]byte(plainAsk))
		out := f.Delta(pipeline.Delta{Source: "1", N: 1, Chunk: piece("Hel")})
		require.Empty(t, f.Delta(pipeline.Delta{Source: "1", N: 3, Chunk: piece("!")}), "a gap")
		require.Empty(t, f.Delta(pipeline.Delta{Source: "1", N: 4, Chunk: piece("!")}))
		end, fault := f.End(finished(reply("Hello!"), finishChunk))
		require.Nil(t, fault)
		require.Equal(t, "Hello!", texts(t, append(out, end...)))
	})
	t.Run("a source that begins with a gap shows nothing", func(t *testing.T) {
		t.Parallel()
		f := stream.NewFollower([]byte(plainAsk))
		require.Empty(t, f.Delta(pipeline.Delta{Source: "1", N: 2, Chunk: piece("x")}))
		end, fault := f.End(finished(reply("yes")))
		require.Nil(t, fault)
		require.Equal(t, "yes", texts(t, end))
	})
}

func TestFollowerFaults(t *testing.T) {
	t.Parallel()
	c := messages.NewCall(messages.Model, "t", []byte(plainAsk))
	c.Fail(messages.NewFault(messages.ProviderError, "boom").From(messages.TargetOrigin))
	f := stream.NewFollower(c.Request())
	out, fault := f.End(c)
	require.Empty(t, out)
	require.Same(t, c.Fault, fault, "nothing was shown: an ordinary error")
	f.Delta(pipeline.Delta{Source: "1", N: 1, Chunk: piece("x")})
	_, fault = f.End(c)
	require.Equal(t, messages.StreamCut, fault.Code)
	require.Equal(t, messages.ProviderError, fault.Last)
	require.Contains(t, fault.Message, "boom")
	c.Fail(fault)
	_, again := f.End(c)
	require.Same(t, fault, again, "a stream is cut once")
}

func TestFollowerReplaysWhatWasNeverStreamed(t *testing.T) {
	t.Parallel()
	f := stream.NewFollower([]byte(usageAsk))
	end, fault := f.End(finished(reply("cached"), finishChunk)) // a tail of an earlier attempt has no say
	require.Nil(t, fault)
	back, err := chat.Assemble(end)
	require.NoError(t, err)
	require.JSONEq(t, reply("cached"), string(back))
}

func TestFollowerToolCalls(t *testing.T) {
	t.Parallel()
	ask := func(args1, args2 string) string {
		return fmt.Sprintf(`{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,`+
			`"message":{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{`+
			`"name":"f","arguments":%q}},{"id":"b","type":"function","function":{"name":"g","arguments":%q}}]},`+
			`"finish_reason":"tool_calls"}]}`, args1, args2)
	}
	show := func(f *stream.Follower) [][]byte {
		return f.Delta(pipeline.Delta{Source: "1", N: 1,
			Chunk: []byte(`{"id":"c","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant",` +
				`"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":"{` +
				`\"x\""}}]}}]}`)})
	}
	f := stream.NewFollower([]byte(plainAsk))
	out := show(f)
	require.Contains(t, string(out[0]), `"finish_reason":null`, "present until the end")
	end, fault := f.End(finished(ask(`{"x":1}`, `{}`)))
	require.Nil(t, fault)
	back, err := chat.Assemble(append(out, end...))
	require.NoError(t, err)
	require.JSONEq(t, ask(`{"x":1}`, `{}`), string(back))

	f = stream.NewFollower([]byte(plainAsk))
	show(f)
	_, fault = f.End(finished(ask(`{"y":1}`, `{}`)))
	require.Equal(t, messages.StreamCut, fault.Code)
}

func TestFollowerOneIdentity(t *testing.T) {
	t.Parallel()
	f := stream.NewFollower([]byte(usageAsk))
	out := f.Delta(pipeline.Delta{Source: "1", N: 1, Chunk: piece("a")})
	out = append(out, f.Delta(pipeline.Delta{Source: "1", N: 2,
		Chunk: []byte(`{"id":"c2","created":8,"model":"m-2","choices":[{"index":0,"delta":{"content":"b"}}]}`)})...)
	end, fault := f.End(finished(reply("abc"), `{"id":"zz","created":0,"model":"","choices":[{"index":0,`+
		`"delta":{"content":"x"},"finish_reason":"stop"}],"x_groq":{"a":1}}`))
	require.Nil(t, fault)
	for _, c := range append(out, end...) {
		id, _ := rawjson.FieldString(c, "id")
		require.Equal(t, "c1", id)
		created, _ := rawjson.Field(c, "created")
		require.Equal(t, "7", string(created))
		require.Equal(t, "m", chat.ModelName(c))
	}
	require.Equal(t, "abc", texts(t, append(out, end...)))
	require.Contains(t, string(end[len(end)-2]), "x_groq")
	require.Contains(t, string(end[len(end)-1]), `"choices":[],"usage":{"total_tokens":3}`)
}

func FuzzFollower(f *testing.F) {
	f.Add([]byte(roleChunk), piece("x"), []byte(reply("xy")))
	f.Add([]byte(`{"choices":[{"index":1,"delta":{"content":[1],"tool_calls":[{}]}}]}`), []byte(`{"choices":[3]}`),
		[]byte(`{"choices":[{},{"message":null}]}`))
	f.Fuzz(func(t *testing.T, a, b, r []byte) {
		if !json.Valid(a) || !json.Valid(b) {
			return
		}
		w := stream.NewFollower([]byte(usageAsk))
		for i, c := range [][]byte{a, b} {
			for _, out := range w.Delta(pipeline.Delta{Source: "1", N: i + 1, Chunk: c}) {
				require.True(t, json.Valid(out), "%s", out)
			}
		}
		c := messages.NewCall(messages.Model, "t", []byte(plainAsk))
		c.SetReply(r)
		out, _ := w.End(c)
		for _, o := range out {
			require.True(t, json.Valid(o), "%s", o)
		}
	})
}
