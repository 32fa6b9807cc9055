package stages_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/evicted"
	"github.com/shallot-nats/shallot/pipeline/stream"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/stages"
)

// seen is what the caller of a stream got.
type seen struct {
	before string // before the call's end
	whole  string
	fault  *messages.Fault
	call   *messages.Call
}

// Stream sends a streamed call through the chain in process and reads what its caller sees.
func (c *toolChain) Stream(t testing.TB, call *messages.Call) seen {
	t.Helper()
	call.Stream = true
	var f stream.ToolFollower
	var s seen
	var text strings.Builder
	read := func(chunks [][]byte) {
		for _, chunk := range chunks {
			piece, ok := chat.ToolChunkText(chunk)
			require.True(t, ok, "%s", chunk)
			require.True(t, utf8.ValidString(piece))
			text.WriteString(piece)
		}
	}
	n := 0
	l := pipeline.Chain(c.Stages, c.Target)
	l.Emit = func(chunk []byte) error {
		n++
		read(f.Delta(pipeline.Delta{Source: fmt.Sprint(call.Slip.Tries), N: n, Chunk: chunk}))
		return nil
	}
	out, err := l.Call(t.Context(), call)
	require.NoError(t, err)
	s.before, s.call = text.String(), out
	chunks, fault := f.End(out)
	read(chunks)
	s.whole, s.fault = text.String(), fault
	if fault == nil {
		if reply, isText, _ := out.ReplyPlain(); isText || s.whole != "" {
			require.Equal(t, reply, s.whole, "what the caller saw is the reply")
		}
	}
	return s
}

// pieces gives a text in pieces of n bytes, which cut characters too, and then ends with err.
func pieces(d tool.Definition, text string, n int, err error) chainTool {
	return streams(d, func(_ context.Context, _ int, inv toolbox.Invocation) (toolbox.Result, error) {
		for rest := text; rest != ""; rest = rest[min(n, len(rest)):] {
			inv.Chunk(rest[:min(n, len(rest))])
		}
		return toolbox.Result{}, err
	})
}

func TestEvictionOfStreams(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("a", 85000)
	bothEvictions(t, func(t *testing.T, make func(string, ...chainTool) evictions) {
		t.Run("the beginning passes, the rest is replaced (EV-13 EV-3 EV-4)", func(t *testing.T) {
			e := make("enabled: true", pieces(reading("t"), big, 1000, nil))
			c := toolCall("t", `{}`)
			c.Tenant, c.Agent = "default", "g1"
			s := e.Stream(t, c)
			require.Nil(t, s.fault)
			require.Equal(t, big[:len(s.before)], s.before)
			require.Greater(t, len(s.before), 79000, "chunks before the limit pass at once")
			at := path(t, s.call)
			require.Equal(t, s.before+"...\n[完整结果已保存至: "+at+"]\n[原始大小: 85000 chars, Token≈21250]",
				s.whole, "the rest is replaced")
			require.LessOrEqual(t, utf8.RuneCountInString(s.whole)/4, 20000, "X-5")
			require.Equal(t, big, whole(t, e.reader, "default", at), "EV-4")
			again := e.Stream(t, toolCall("t", `{"other":1}`))
			require.NotEqual(t, at, path(t, again.call))
		})
		t.Run("a hit is shown whole (EV-13 X-5)", func(t *testing.T) {
			e := make("enabled: true", pieces(reading("t"), big, 5000, nil))
			first, second := e.Stream(t, toolCall("t", `{}`)), e.Stream(t, toolCall("t", `{}`))
			require.True(t, second.call.Flag(messages.NoteCacheHit))
			require.Empty(t, second.before)
			require.Equal(t, first.whole, second.whole)
			require.Equal(t, 1, e.Runs("t"))
			plain, _ := e.Plain(t, toolCall("t", `{}`)).ReplyText()
			require.Equal(t, first.whole, plain)
		})
		t.Run("up to the limit all of it passes (EV-13 EV-1)", func(t *testing.T) {
			for _, n := range []int{0, 1, 79000, 80000, 80003} {
				e := make("enabled: true", pieces(reading("t"), strings.Repeat("汉", n)+".", 4999, nil))
				s := e.Stream(t, toolCall("t", `{}`))
				require.Nil(t, s.fault)
				if n == 80003 {
					path(t, s.call)
					continue
				}
				require.Equal(t, strings.Repeat("汉", n)+".", s.whole)
			}
		})
		t.Run("a source error after the limit (EV-13)", func(t *testing.T) {
			e := make("enabled: true", pieces(reading("t"), big, 1000, errors.New("the disk is gone")))
			s := e.Stream(t, toolCall("t", `{}`))
			require.NotNil(t, s.fault)
			require.Equal(t, messages.StreamCut, s.fault.Code)
			require.Equal(t, messages.ToolError, s.fault.Last)
			require.Contains(t, s.fault.Message, "the disk is gone")
			require.Equal(t, 1, e.Runs("t"), "no second attempt")
			require.NotContains(t, s.whole, "已保存")
			require.Empty(t, fallbackOf(s.call), "and no stand-in")
		})
		t.Run("whole for whom does not stream (EV-13)", func(t *testing.T) {
			e := make("enabled: true", pieces(reading("t"), big, 1000, nil))
			text, _ := e.Plain(t, toolCall("t", `{}`)).ReplyText()
			require.True(t, strings.HasPrefix(text, big[:500]+"...\n["), "the sample, as ever")
		})
		t.Run("no limit (EV-13)", func(t *testing.T) {
			d := reading("t")
			d.MaxResult = -1
			e := make("enabled: true", pieces(d, big, 1000, nil))
			require.Equal(t, big, e.Stream(t, toolCall("t", `{}`)).before)
		})
		t.Run("a limit with no room for the lines (EV-13)", func(t *testing.T) {
			d := reading("t")
			d.MaxResult = 5
			e := make("enabled: true", pieces(d, big, 1000, nil))
			s := e.Stream(t, toolCall("t", `{}`))
			require.Empty(t, s.before)
			require.True(t, strings.HasPrefix(s.whole, big[:500]+"...\n["))
		})
		t.Run("structured content (EV-13)", func(t *testing.T) {
			structured := []byte(`{"v":"` + big + `"}`)
			e := make("enabled: true", streams(reading("t"),
				func(_ context.Context, _ int, inv toolbox.Invocation) (toolbox.Result, error) {
					inv.Chunk(big[:79999])
					return toolbox.Result{Structured: structured}, nil
				}))
			s := e.Stream(t, toolCall("t", `{}`))
			require.Nil(t, s.fault)
			require.Equal(t, big[:len(s.before)], s.before)
			require.LessOrEqual(t, utf8.RuneCountInString(s.whole)/4, 20000)
			require.Equal(t, string(structured), whole(t, e.reader, "t1", path(t, s.call)))
		})
	})
	t.Run("what cannot be saved is cut (EV-13 EV-6)", func(t *testing.T) {
		c := newToolChain(t, stages.Deps{}, nil, pieces(reading("t"), big, 1000, nil))
		s := c.Stream(t, toolCall("t", `{}`))
		require.Nil(t, s.fault)
		require.Greater(t, len(s.before), 79000)
		require.Equal(t, s.before+"...\n[结果过长,保存失败,已截断]\n[原始大小: 85000 chars, Token≈21250]",
			s.whole)
	})
}

func fallbackOf(c *messages.Call) (mark string) {
	c.Noted(messages.NoteDegraded, &mark)
	return mark
}

// Whatever a tool says in whatever pieces: what is shown is the beginning of the reply, whole characters of it, and the
// reply is what it is without a stream, up to the length of its sample.
func TestStreamsThroughToolStages(t *testing.T) {
	t.Parallel()
	t.Run("any text in any pieces (EV-13)", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(rt *rapid.T) {
			text := rapid.OneOf(rapid.StringN(1, 700, -1),
				rapid.Map(rapid.SliceOfN(rapid.Byte(), 1, 300), func(b []byte) string { return string(b) })).Draw(rt, "text")
			cuts := rapid.SliceOfN(rapid.IntRange(1, 60), 1, 20).Draw(rt, "cuts")
			o := &memoryObjects{}
			c := newToolChain(t, stages.Deps{Objects: o},
				map[string]string{"large-result-eviction": "{token-threshold: 50, preserve-sample-chars: 10}"},
				streams(reading("t"), func(_ context.Context, _ int, inv toolbox.Invocation) (toolbox.Result, error) {
					for i, rest := 0, text; rest != ""; i++ {
						n := min(cuts[i%len(cuts)], len(rest))
						inv.Chunk(rest[:n])
						rest = rest[n:]
					}
					return toolbox.Result{}, nil
				}))
			s := c.Stream(t, toolCall("t", `{}`))
			require.Nil(rt, s.fault, "%v", s.fault)
			clean := strings.ToValidUTF8(text, "\uFFFD")
			require.True(rt, strings.HasPrefix(clean, s.before))
			if utf8.RuneCountInString(clean)/4 <= 50 {
				require.Equal(rt, clean, s.whole)
				return
			}
			require.LessOrEqual(rt, utf8.RuneCountInString(s.whole)/4, 50)
			p, err := evicted.Read(t.Context(), evicted.Reader{Objects: o}, "t1", path(t, s.call), 0, 0)
			require.NoError(rt, err)
			require.Equal(rt, clean, p.Text)
		})
	})
	t.Run("a stage that rewrites results holds them back", func(t *testing.T) {
		t.Parallel()
		c := newToolChain(t, stages.Deps{},
			map[string]string{"tool-pii": "{enabled: true, rules: [{type: email, strategy: REDACT}]}"},
			pieces(reading("t"), "write to joe@example.com today", 3, nil))
		s := c.Stream(t, toolCall("t", `{}`))
		require.Nil(t, s.fault)
		require.Empty(t, s.before)
		require.Equal(t, "write to [REDACTED_EMAIL] today", s.whole)
	})
	t.Run("what looks like JSON stays as it was shown", func(t *testing.T) {
		t.Parallel()
		for _, text := range []string{`{"a": 1}`, "{\"a\":1}\n", `"quoted"`, `42`, `null`, " [1, 2] ", `[1,2]`} {
			c := newToolChain(t, stages.Deps{}, nil, pieces(reading("t"), text, 2, nil))
			s := c.Stream(t, toolCall("t", `{}`))
			require.Nil(t, s.fault, text)
			require.Equal(t, text, s.before)
			require.Equal(t, text, s.whole)
			hit := c.Stream(t, toolCall("t", `{}`))
			require.True(t, hit.call.Flag(messages.NoteCacheHit))
			out, _, _ := hit.call.ReplyPlain()
			require.Equal(t, text, out, "from the cache too")
		}
	})
}

// Contracts 8 for tools: once a part was shown nothing runs again and nothing stands in; before that all is as ever.
func TestFailuresOfStreams(t *testing.T) {
	t.Parallel()
	flaky := func(say string, bad error, runs int) func(context.Context, int, toolbox.Invocation) (toolbox.Result, error) {
		return func(_ context.Context, n int, inv toolbox.Invocation) (toolbox.Result, error) {
			if n <= runs {
				inv.Chunk(say)
				return toolbox.Result{}, bad
			}
			inv.Chunk("the result")
			return toolbox.Result{}, nil
		}
	}
	broken := messages.NewFault(messages.ToolNetwork, "the line broke")
	retrying := reading("t")
	retrying.Retry = &tool.RetryPolicy{MaxAttempts: 3, BaseDelay: 1, On: []string{tool.AnyFault}}
	t.Run("before the first chunk it is tried again", func(t *testing.T) {
		t.Parallel()
		c := newToolChain(t, stages.Deps{}, nil, streams(retrying, flaky("", broken, 2)))
		s := c.Stream(t, toolCall("t", `{}`))
		require.Nil(t, s.fault)
		require.Equal(t, "the result", s.whole)
		require.Equal(t, 3, c.Runs("t"))
	})
	t.Run("after it not", func(t *testing.T) {
		t.Parallel()
		c := newToolChain(t, stages.Deps{}, nil, streams(retrying, flaky("the re", broken, 1)))
		s := c.Stream(t, toolCall("t", `{}`))
		require.Equal(t, "the re", s.whole)
		require.Equal(t, []any{messages.StreamCut, messages.ToolNetwork}, []any{s.fault.Code, s.fault.Last})
		require.Contains(t, s.fault.Message, "the line broke")
		require.Equal(t, 1, c.Runs("t"))
		require.Empty(t, fallbackOf(s.call))
	})
	t.Run("a result that is not what was shown", func(t *testing.T) {
		t.Parallel()
		for name, r := range map[string]toolbox.Result{"other": {Content: []byte("else")},
			"error result": {Content: []byte("no such row"), IsError: true}} {
			c := newToolChain(t, stages.Deps{}, nil, streams(reading("t"),
				func(_ context.Context, _ int, inv toolbox.Invocation) (toolbox.Result, error) {
					inv.Chunk("some rows")
					return r, nil
				}))
			s := c.Stream(t, toolCall("t", `{}`))
			require.Equal(t, messages.StreamCut, s.fault.Code, name)
			require.Equal(t, "some rows", s.whole)
			if r.IsError {
				require.Contains(t, s.fault.Message, "no such row")
			}
			out, _, _ := c.Plain(t, toolCall("t", `{}`)).ReplyPlain()
			require.Equal(t, string(r.Content), out, "nobody saw the chunks")
		}
	})
	t.Run("an unknown outcome is read as one", func(t *testing.T) {
		t.Parallel()
		d := tool.Definition{Name: "t", Policy: tool.Policy{Effect: tool.EffectWrite}}
		c := newToolChain(t, stages.Deps{}, nil, streams(d, flaky("half of ", broken, 1)))
		s := c.Stream(t, toolCall("t", `{}`))
		require.Equal(t, "half of ", s.whole)
		require.Equal(t, messages.OutcomeUnknown, s.fault.Code)
		require.Contains(t, s.fault.Message, "may have been")
		require.Equal(t, 1, c.Runs("t"))
	})
	t.Run("a stage that fails after it", func(t *testing.T) {
		t.Parallel()
		c := newToolChain(t, stages.Deps{}, nil, pieces(reading("t"), "the whole result", 3, nil))
		c.Stages = append(c.Stages, pipeline.Stage{Name: "strict", Kind: messages.Tool, Order: 60, FailClosed: true,
			After: func(context.Context, *messages.Call) (pipeline.Verdict, error) {
				return pipeline.Verdict{}, errors.New("no licence")
			}})
		s := c.Stream(t, toolCall("t", `{}`))
		require.Equal(t, "the whole result", s.whole)
		require.Equal(t, []any{messages.StreamCut, messages.StageError}, []any{s.fault.Code, s.fault.Last})
		require.Contains(t, s.fault.Message, "no licence")
		require.Empty(t, fallbackOf(s.call), "no stand-in is pasted after it")
	})
	t.Run("a stand-in is shown as a whole", func(t *testing.T) {
		t.Parallel()
		d := reading("t")
		d.StubData, d.Retry = tool.JSON(`{"n":0}`), &tool.RetryPolicy{MaxAttempts: 1}
		c := newToolChain(t, stages.Deps{}, nil, streams(d, flaky("", errors.New("down"), 9)))
		s := c.Stream(t, toolCall("t", `{}`))
		require.Nil(t, s.fault)
		require.Empty(t, s.whole, "JSON has no chunks")
		require.Equal(t, "stub_data", fallbackOf(s.call))
	})
}
