package stream_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

func toolEnd(reply string, fault *messages.Fault) *messages.Call {
	c := messages.NewCall(messages.Tool, "t", []byte(`{}`))
	if fault != nil {
		c.Fail(fault)
	} else {
		c.SetReply([]byte(reply))
	}
	return c
}

func toolTexts(t require.TestingT, chunks [][]byte) (out string) {
	for _, c := range chunks {
		text, ok := chat.ToolChunkText(c)
		require.True(t, ok)
		out += text
	}
	return out
}

func TestToolFollower(t *testing.T) {
	t.Parallel()
	type d struct {
		source string
		n      int
		text   string
	}
	broken := messages.NewFault(messages.ToolError, "boom").From(messages.TargetOrigin)
	unknown := messages.NewFault(messages.OutcomeUnknown, "may have happened").From(messages.TargetOrigin)
	for name, row := range map[string]struct {
		deltas []d
		before string
		reply  string
		fault  *messages.Fault
		whole  string
		code   messages.Code
	}{
		"in order": {[]d{{"a", 1, "x"}, {"a", 2, "y"}}, "xy", "xyz", nil, "xyz", ""},
		"twice": {[]d{{"a", 1, "x"}, {"a", 1, "x"}, {"a", 2, "y"}}, "xy", "xy", nil, "xy",
			""},
		"a gap": {[]d{{"a", 1, "x"}, {"a", 3, "z"}, {"a", 2, "y"}}, "x", "xyz", nil, "xyz",
			""},
		"another source after the first": {[]d{{"a", 1, "x"}, {"b", 1, "x"}, {"b", 2, "y"}, {"a", 2, "y"}}, "xy",
			"xyz", nil, "xyz", ""},
		"another source while none showed": {[]d{{"a", 2, "y"}, {"b", 1, "x"}, {"a", 1, "q"}}, "x", "xyz", nil, "xyz",
			""},
		"not a prefix":                    {[]d{{"a", 1, "x"}}, "x", "yz", nil, "x", messages.StreamCut},
		"shorter":                         {[]d{{"a", 1, "xyz"}}, "xyz", "xy", nil, "xyz", messages.StreamCut},
		"nothing shown":                   {nil, "", "xyz", nil, "xyz", ""},
		"JSON of which nothing was shown": {nil, "", `{"a":1}`, nil, "", ""},
		"JSON of which a part was shown":  {[]d{{"a", 1, `{"a"`}}, `{"a"`, `{"a":1}`, nil, `{"a":1}`, ""},
		"a fault before":                  {nil, "", "", broken, "", messages.ToolError},
		"a fault after":                   {[]d{{"a", 1, "x"}}, "x", "", broken, "x", messages.StreamCut},
		"an unknown outcome after":        {[]d{{"a", 1, "x"}}, "x", "", unknown, "x", messages.OutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var f stream.ToolFollower
			seen := ""
			for _, d := range row.deltas {
				seen += toolTexts(t, f.Delta(pipeline.Delta{Source: d.source, N: d.n, Chunk: chat.ToolChunk(d.text)}))
			}
			require.Equal(t, row.before, seen)
			require.Equal(t, seen != "", f.Released())
			chunks, fault := f.End(toolEnd(row.reply, row.fault))
			require.Equal(t, row.whole, seen+toolTexts(t, chunks))
			if row.code == "" {
				require.Nil(t, fault)
				return
			}
			require.Equal(t, row.code, fault.Code)
			require.Empty(t, chunks)
			if row.fault != nil {
				require.Contains(t, fault.Message, row.fault.Message)
			}
		})
	}
	t.Run("a stand-in names what it stands in for", func(t *testing.T) {
		t.Parallel()
		var f stream.ToolFollower
		f.Delta(pipeline.Delta{Source: "a", N: 1, Chunk: chat.ToolChunk("half")})
		c := toolEnd(`{"error":true}`, nil)
		c.Note(messages.NoteToolFault, map[string]any{"code": messages.ToolTimeout, "message": "Tool 'x' timed out"})
		chunks, fault := f.End(c)
		require.Empty(t, chunks)
		require.Equal(t, []any{messages.StreamCut, messages.ToolTimeout}, []any{fault.Code, fault.Last})
		require.Contains(t, fault.Message, "timed out")
	})
	t.Run("signs of life count and show nothing", func(t *testing.T) {
		t.Parallel()
		var f stream.ToolFollower
		sign := chat.ToolProgress([]byte(`{"progress":1}`))
		require.Equal(t, [][]byte{sign}, f.Delta(pipeline.Delta{Source: "a", N: 1, Chunk: sign}))
		require.False(t, f.Released())
		require.Len(t, f.Delta(pipeline.Delta{Source: "a", N: 2, Chunk: chat.ToolChunk("x")}), 1)
	})
}

// Whatever order, loss and doubling of deltas of two runs: what a caller saw is the result, or he is told that it is
// not.
func TestToolFollowerProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		first := rapid.SliceOfN(rapid.StringMatching(`[a-c]{1,2}`), 0, 6).Draw(rt, "first")
		second := rapid.SliceOfN(rapid.StringMatching(`[a-c]{1,2}`), 0, 6).Draw(rt, "second")
		if rapid.Bool().Draw(rt, "same") {
			second = first
		}
		reply := "." + strings.Join(second, "")
		var all []pipeline.Delta
		for s, run := range [][]string{first, second} {
			for i, text := range run {
				if i == 0 {
					text = "." + text
				}
				d := pipeline.Delta{Source: fmt.Sprint(s), N: i + 1, Chunk: chat.ToolChunk(text)}
				for range rapid.SampledFrom([]int{1, 1, 1, 0, 2}).Draw(rt, "times") {
					all = append(all, d)
				}
			}
		}
		if rapid.Bool().Draw(rt, "mixed") {
			all = rapid.Permutation(all).Draw(rt, "order")
		}
		var f stream.ToolFollower
		seen := ""
		for _, d := range all {
			seen += toolTexts(rt, f.Delta(d))
		}
		chunks, fault := f.End(toolEnd(reply, nil))
		if fault != nil {
			require.False(rt, strings.HasPrefix(reply, seen), "%q is the beginning of %q", seen, reply)
			return
		}
		require.Equal(rt, reply, seen+toolTexts(rt, chunks))
	})
}
