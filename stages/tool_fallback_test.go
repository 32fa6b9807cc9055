package stages_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/stages"
)

var errConnect = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

// once is a reading tool that is tried once and gives its result in the first runs only.
func once(def tool.Definition, good int, result string, err error) chainTool {
	none := tool.NoRetry()
	def.Retry = &none
	return chainTool{def, func(_ context.Context, n int, _ json.RawMessage) (toolbox.Result, error) {
		if n <= good {
			return toolbox.Result{Content: []byte(result)}, nil
		}
		return toolbox.Result{}, err
	}}
}

func graceful(t testing.TB, c *messages.Call) map[string]string {
	t.Helper()
	require.Nil(t, c.Fault)
	require.Equal(t, "graceful_error", note[string](c, messages.NoteDegraded))
	require.Equal(t, "graceful_error", metadata(t, c)["fallback"])
	var m map[string]any
	require.NoError(t, json.Unmarshal(c.Reply(), &m))
	require.Equal(t, map[string]any{"fallback": "graceful_error"}, m[messages.MarkField], "the model sees it (F3-10)")
	out := map[string]string{}
	for _, k := range []string{"error", "tool", "message", "suggestion"} {
		out[k] = m[k].(string)
	}
	return out
}

func TestToolFallbackStale(t *testing.T) {
	t.Parallel()
	stub := reading("x")
	stub.StubData = tool.JSON(`{"note":"sample"}`)
	write := tool.Definition{Name: "x", Policy: tool.Policy{Effect: tool.EffectWrite}}
	for name, row := range map[string]struct {
		def    tool.Definition
		wait   time.Duration
		args   string
		tenant string
		result string
		cache  string
		want   string // the mark; empty: graceful_error
		reply  string
	}{
		"json (F3-1)": {def: reading("x"), wait: 10 * time.Minute, result: `{"v":1}`, want: "stale_cache",
			reply: `{"v":1,"_shallot":{"fallback":"stale_cache","stored":"2000-01-01T00:00:00Z"}}`},
		"text (F3-1)": {def: reading("x"), wait: 10 * time.Minute, result: "sunny", want: "stale_cache",
			reply: `"sunny\n[fallback=stale_cache, stored 2000-01-01T00:00:00Z]"`},
		"list (F3-1)": {def: reading("x"), wait: 10 * time.Minute, result: `[1,2]`, want: "stale_cache",
			reply: `{"result":[1,2],"_shallot":{"fallback":"stale_cache","stored":"2000-01-01T00:00:00Z"}}`},
		"without tool-cache (F3-1)": {def: reading("x"), wait: 10 * time.Minute, result: `{"v":1}`, cache: "off",
			want: "stale_cache"},
		"before the stub (F3-1)": {def: stub, wait: 10 * time.Minute, result: `{"v":1}`, want: "stale_cache"},
		"31 min ago (F3-7)":      {def: reading("x"), wait: 31 * time.Minute, result: `{"v":1}`},
		"exactly 30 min (F3-7)":  {def: reading("x"), wait: 30 * time.Minute, result: `{"v":1}`},
		"other args (F3-8)": {def: reading("x"), wait: 10 * time.Minute, args: `{"other":1}`,
			result: `{"v":1}`},
		"other tenant":                       {def: reading("x"), wait: 10 * time.Minute, tenant: "t2", result: `{"v":1}`},
		"none where the effect is not known": {def: write, wait: 10 * time.Minute, result: `{"v":1}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newToolChain(t, stages.Deps{}, map[string]string{"tool-cache": row.cache},
					once(row.def, 1, row.result, errors.New("boom")))
				first := c.Run(t, "x", `{"a":1}`)
				require.Nil(t, first.Fault)
				require.NotContains(t, first.Notes, messages.NoteDegraded, "F3-12")
				<-time.After(row.wait)
				call := toolCall("x", `{"a":1}`)
				if row.args != "" {
					call = toolCall("x", row.args)
				}
				if row.tenant != "" {
					call.Tenant = row.tenant
				}
				out := c.Call(t, t.Context(), call)
				if row.def.Effect == tool.EffectWrite {
					require.Equal(t, messages.OutcomeUnknown, out.Fault.Code, "nothing stands in for what may have been done")
					return
				}
				if row.want == "" {
					require.Equal(t, "internal_error", graceful(t, out)["error"])
					return
				}
				require.Nil(t, out.Fault)
				require.Equal(t, row.want, note[string](out, messages.NoteDegraded))
				require.Equal(t, row.want, metadata(t, out)["fallback"])
				require.Contains(t, string(out.Reply()), row.want, "F3-10")
				if row.reply != "" {
					require.Equal(t, row.reply, string(out.Reply()))
				}
			})
		})
	}
	t.Run("a cache hit does not make a result younger (F3-7)", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			def := reading("x")
			def.Cache = &tool.Cache{TTL: tool.Duration(20 * time.Minute)}
			c := newToolChain(t, stages.Deps{}, nil, once(def, 1, `{"v":1}`, errors.New("boom")))
			c.Run(t, "x", `{}`)
			<-time.After(19 * time.Minute)
			require.True(t, c.Run(t, "x", `{}`).Flag(messages.NoteCacheHit))
			<-time.After(12 * time.Minute)
			graceful(t, c.Run(t, "x", `{}`))
		})
	})
}

func TestToolFallbackLadder(t *testing.T) {
	t.Parallel()
	stub := reading("x")
	stub.InputSchema = tool.JSON(`{"properties":{"n":{"type":"integer"}}}`)
	stub.StubData = tool.JSON(`{"note":"sample","fallback":1}`)
	t.Run("stub data stands in, marked (F3-2 F3-11)", func(t *testing.T) {
		t.Parallel()
		c := newToolChain(t, stages.Deps{}, nil, once(stub, 0, "", errors.New("boom")))
		out := c.Run(t, "x", `{}`)
		require.Equal(t, "stub_data", metadata(t, out)["fallback"])
		require.Equal(t, `{"note":"sample","fallback":1,"_shallot":{"fallback":"stub_data"}}`, string(out.Reply()))
		require.Equal(t, "boom", strings.TrimPrefix(note[map[string]any](out, messages.NoteToolFault)["message"].(string),
			"tool 'x' failed: "))
	})
	t.Run("bad arguments get no data (F3-9 RP-7 X-33)", func(t *testing.T) {
		t.Parallel()
		c := newToolChain(t, stages.Deps{}, nil, once(stub, 0, "", errors.New("boom")))
		got := graceful(t, c.Run(t, "x", `{"n":"no number"}`))
		require.Equal(t, "invalid_arguments", got["error"])
		require.Equal(t, "请检查参数格式和类型后重试", got["suggestion"])
		require.Zero(t, c.Runs("x"))
	})
	const later = "系统暂时不可用,请稍后再试"
	for name, row := range map[string]struct {
		err               error
		class, suggestion string
		message           string
	}{
		"timeout":       {context.DeadlineExceeded, "timeout", "请稍后重试,或简化查询条件", ""},
		"connect error": {errConnect, "network_error", later, ""},
		"reset":         {syscall.ECONNRESET, "network_error", later, ""},
		"other":         {errors.New("boom"), "internal_error", later, "tool 'x' failed: boom"},
		"odd characters (F3-5)": {errors.New("a \"b\" \\ c\n\r\t\x01"), "internal_error", later,
			"tool 'x' failed: a \"b\" \\ c\n\r\t\x01"},
		"no message (F3-6)": {&messages.Fault{Code: messages.ToolError}, "internal_error", later, ""},
	} {
		t.Run(name+" (F3-3 F3-4)", func(t *testing.T) {
			t.Parallel()
			c := newToolChain(t, stages.Deps{}, nil, once(reading("x"), 0, "", row.err))
			got := graceful(t, c.Run(t, "x", `{}`))
			require.Equal(t, row.class, got["error"])
			require.Equal(t, "x", got["tool"])
			require.Equal(t, row.suggestion, got["suggestion"])
			if row.message != "" || name == "no message (F3-6)" {
				require.Equal(t, row.message, got["message"])
			}
		})
	}
	t.Run("unknown tool (F3-4 X-32)", func(t *testing.T) {
		t.Parallel()
		c := newToolChain(t, stages.Deps{}, nil)
		got := graceful(t, c.Run(t, "nowhere", `{}`))
		require.Equal(t, []string{"tool_not_found", "nowhere", later}, []string{got["error"], got["tool"], got["suggestion"]})
	})
	t.Run("error results pass", func(t *testing.T) {
		t.Parallel()
		c := newToolChain(t, stages.Deps{}, nil,
			gives(reading("x"), toolbox.Result{Content: []byte(`{"no":"such city"}`), IsError: true}),
			gives(reading("y"), toolbox.Result{IsError: true}))
		out := c.Run(t, "x", `{}`)
		require.Equal(t, `{"no":"such city"}`, string(out.Reply()))
		require.True(t, out.Flag(messages.NoteIsError))
		require.NotContains(t, out.Notes, messages.NoteDegraded)
		require.Equal(t, "", graceful(t, c.Run(t, "y", `{}`))["message"], "an error result that says nothing (F3-6)")
	})
	t.Run("graceful-is-error decides, or leaves it to the face", func(t *testing.T) {
		t.Parallel()
		for says, want := range map[string]string{"true": "true", "false": "false", "auto": ""} {
			c := newToolChain(t, stages.Deps{Fallback: &stages.FallbackRules{GracefulIsError: says}}, nil,
				once(reading("x"), 0, "", errors.New("boom")))
			require.Equal(t, want, string(c.Run(t, "x", `{}`).Notes[messages.NoteIsError]), says)
		}
	})
	t.Run("no rung holds (S2-FALL-1)", func(t *testing.T) {
		t.Parallel()
		c := newToolChain(t, stages.Deps{Fallback: &stages.FallbackRules{Rungs: []string{"stub_data"}}}, nil,
			once(reading("x"), 0, "", errors.New("boom")))
		out := c.Run(t, "x", `{}`)
		require.Equal(t, messages.ToolError, out.Fault.Code)
		require.Equal(t, "No fallback available: tool 'x' failed: boom", out.Fault.Message)
	})
}

func TestToolFallbackStandsAside(t *testing.T) {
	t.Parallel()
	stub := tool.Definition{Name: "x", Policy: tool.Policy{Effect: tool.EffectExternal},
		StubData: tool.JSON(`{"sent":true}`)}
	t.Run("nothing stands in for an unknown outcome", func(t *testing.T) {
		t.Parallel()
		c := newToolChain(t, stages.Deps{}, nil, once(stub, 0, "", context.DeadlineExceeded))
		out := c.Run(t, "x", `{}`)
		require.Equal(t, messages.OutcomeUnknown, out.Fault.Code)
		require.Contains(t, out.Fault.Message, "may have been carried out")
		require.NotContains(t, out.Notes, messages.NoteDegraded)
	})
	extra := func(order int, before pipeline.Func) pipeline.Stage {
		return pipeline.Stage{Name: "extra", Kind: messages.Tool, Order: order, Before: before}
	}
	with := func(t *testing.T, def tool.Definition, s pipeline.Stage) *toolChain {
		c := newToolChain(t, stages.Deps{}, nil, once(def, 0, "", errors.New("boom")))
		c.harness.Stages = append(c.harness.Stages, s)
		return c
	}
	for name, f := range map[string]*messages.Fault{
		"blocked":   messages.NewFault(messages.Blocked, "no"),
		"forbidden": messages.NewFault(messages.Forbidden, "no"),
		"cancelled": messages.NewFault(messages.Cancelled, "gone").From("caller"),
	} {
		t.Run("nothing stands in for what was "+name, func(t *testing.T) {
			t.Parallel()
			c := with(t, stub,
				extra(55, func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Verdict{}, f }))
			require.Equal(t, f.Code, c.Run(t, "x", `{}`).Fault.Code)
		})
	}
	t.Run("nothing stands in for what was stopped", func(t *testing.T) {
		t.Parallel()
		c := with(t, stub,
			extra(55, func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Stop(), nil }))
		require.Equal(t, messages.Stopped, c.Run(t, "x", `{}`).Fault.Code)
	})
	t.Run("no data gets round a stage that fails closed", func(t *testing.T) {
		t.Parallel()
		c := with(t, stub, extra(55, func(context.Context, *messages.Call) (pipeline.Verdict, error) {
			return pipeline.Verdict{}, messages.NewFault(messages.StoreUnavailable, "no answer")
		}))
		require.Equal(t, "internal_error", graceful(t, c.Run(t, "x", `{}`))["error"])
	})
	t.Run("its store is down", func(t *testing.T) {
		t.Parallel()
		c := newToolChain(t, stages.Deps{Store: func(string) pipeline.Store { return harnessDown{} }}, nil,
			once(reading("x"), 0, "", errors.New("boom")))
		graceful(t, c.Run(t, "x", `{}`))
	})
}
