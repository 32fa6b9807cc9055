package stages_test

import (
	"context"
	"encoding/json"
	"errors"
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

func withRetry(def tool.Definition, p tool.RetryPolicy) tool.Definition {
	def.Retry = &p
	return def
}

func ms(n ...int) []time.Duration {
	var out []time.Duration
	for _, x := range n {
		out = append(out, time.Duration(x)*time.Millisecond)
	}
	return out
}

func TestToolRetry(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	external := tool.Definition{Name: "x", Policy: tool.Policy{Effect: tool.EffectExternal}}
	timeout := context.DeadlineExceeded
	for name, row := range map[string]struct {
		config string
		tool   chainTool
		runs   int
		delays []time.Duration
		ok     bool
		total  int64
		gone   int64
		says   string
		marks  int64 // suggested delay in ms, where the caller is to try again
	}{
		"the third attempt succeeds (RT-1)": {tool: fails(reading("x"), 2, boom), runs: 3, delays: ms(500, 1000), ok: true,
			total: 2},
		"all attempts fail (RT-2)": {tool: gives(reading("x"), boom), runs: 3, delays: ms(500, 1000), total: 2, gone: 1,
			says: "All 3 attempts failed: tool 'x' failed: boom"},
		"success is not retried (RT-3)": {tool: gives(reading("x"), `1`), runs: 1, ok: true},
		"delays double (RT-4)": {config: "max-retries: 3", tool: gives(reading("x"), boom), runs: 4,
			delays: ms(500, 1000, 2000), total: 3, gone: 1},
		"the caller tries again (RT-6)": {config: "executed-by: caller", tool: gives(reading("x"), boom), runs: 1, marks: 500,
			says: "tool 'x' failed: boom"},
		"no retries (RT-8)": {config: "max-retries: 0", tool: gives(reading("x"), boom), runs: 1,
			says: "tool 'x' failed: boom"},
		"only of the tools named (RT-11)": {config: "tools: [a]", tool: gives(reading("x"), boom), runs: 1},
		"cap (RT-12)": {config: "{max-retries: 2, base-delay: 20s, max-delay: 21s}",
			tool: fails(reading("x"), 2, boom), runs: 3, delays: ms(20000, 21000), ok: true, total: 2},
		"the tool wants none (RP-1)": {tool: gives(withRetry(reading("x"), tool.NoRetry()), timeout), runs: 1},
		"the tool retries the network (RP-2)": {tool: fails(withRetry(reading("x"), tool.NetworkRetry()), 2, errConnect),
			runs:   3,
			delays: ms(1000, 2000), ok: true, total: 2},
		"the network, and nothing else (RP-3)": {tool: gives(withRetry(reading("x"), tool.NetworkRetry()), boom), runs: 1},
		"the tool retries once (RP-4)": {tool: gives(withRetry(reading("x"), tool.IdempotentSafeRetry()), boom), runs: 2,
			delays: ms(300), total: 1, gone: 1, says: "All 2 attempts failed: tool 'x' failed: boom"},
		"the policy of the tool goes before (RP-5)": {config: "max-retries: 9",
			tool: gives(withRetry(reading("x"), tool.NoRetry()), errConnect), runs: 1},
		"a time limit counts as the network (RP-6 X-30)": {tool: fails(withRetry(reading("x"), tool.NetworkRetry()), 1,
			timeout), runs: 2,
			delays: ms(1000), ok: true, total: 1},
		"not idempotent, it may have run": {tool: gives(external, boom), runs: 1},
		"not idempotent, it did not run": {tool: fails(external, 2, errConnect), runs: 3, delays: ms(500, 1000), ok: true,
			total: 2},
		"the outcome is unknown": {tool: gives(external, timeout), runs: 1},
		"create (S2-RETRY-7)":    {tool: gives(tool.Definition{Name: "create_order"}, boom), runs: 1},
		"an error result": {tool: gives(reading("x"), toolbox.Result{Content: []byte(`{"e":1}`), IsError: true}),
			runs: 3, delays: ms(500, 1000), total: 2, gone: 1, ok: true},
		"Retry-After is kept to": {tool: fails(reading("x"), 1,
			&messages.Fault{Code: messages.ToolNetwork, RetryAfter: 7 * time.Second}), runs: 2, delays: ms(7000), ok: true,
			total: 1},
		"Retry-After is too long": {tool: gives(reading("x"),
			&messages.Fault{Code: messages.ToolNetwork, RetryAfter: 31 * time.Second}), runs: 1},
		"the wait ends too late": {config: "{base-delay: 2m, max-delay: 5m}", tool: gives(reading("x"), boom), runs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // no time passes between two deliveries
				c := newToolChain(t, stages.Deps{}, map[string]string{"tool-retry": row.config, "tool-fallback": "off"}, row.tool)
				out := c.Run(t, row.tool.Name, `{}`)
				require.Equal(t, row.runs, c.Runs(row.tool.Name))
				require.Equal(t, row.delays, c.Delays)
				require.Equal(t, row.ok, out.Fault == nil, "%v", out.Fault)
				if row.says != "" {
					require.Equal(t, row.says, out.Fault.Message)
				}
				if row.gone > 0 && out.Fault != nil {
					require.Equal(t, messages.RetriesExhausted, out.Fault.Code, "S2-RETRY-9")
					require.Equal(t, messages.ToolError, out.Fault.Last)
				}
				require.Equal(t, row.marks > 0, note[bool](out, messages.NoteShouldRetry))
				require.Equal(t, row.marks, note[int64](out, messages.NoteSuggestedDelay))
				d := c.stage(t, "tool-retry").Details(t.Context())
				require.Equal(t, row.total, d["totalRetries"], "once for each, however often delivered (S0-RETRY-7)")
				if row.gone == 0 {
					require.Zero(t, d["retriesExhausted"])
				} else {
					require.Positive(t, d["retriesExhausted"])
				}
			})
		})
	}
}

func TestToolRetryInTime(t *testing.T) {
	t.Parallel()
	forever := func(ctx context.Context, _ int, _ json.RawMessage) (toolbox.Result, error) {
		<-ctx.Done()
		return toolbox.Result{}, ctx.Err()
	}
	t.Run("attempts that time out end as one fault (TO-6 RP-8 RT-2)", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			def := reading("x")
			def.Timeout = tool.Duration(100 * time.Millisecond)
			c := newToolChain(t, stages.Deps{}, nil, chainTool{def, forever})
			begin := time.Now()
			out := c.Plain(t, toolCall("x", `{}`))
			require.Equal(t, 3*100*time.Millisecond+1500*time.Millisecond, time.Since(begin),
				"attempts and waits, no more (TO-6)")
			got := graceful(t, out)
			require.Equal(t, "All 3 attempts failed: Tool 'x' timed out after 100ms", got["message"], "RP-8")
			require.Equal(t, "timeout", got["error"])
			d := c.stage(t, "tool-retry").Details(t.Context())
			require.Equal(t, map[string]any{"maxRetries": 2, "baseDelayMs": int64(500), "totalRetries": int64(2),
				"retriesExhausted": int64(1)}, d)
		})
	})
	t.Run("a cancel ends the wait (RT-9)", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c := newToolChain(t, stages.Deps{}, nil, gives(reading("x"), errors.New("boom")))
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(100*time.Millisecond, func() { cancel(pipeline.ErrCancelled) })
			begin := time.Now()
			out, err := pipeline.Chain(c.Stages, c.Target).Call(ctx, toolCall("x", `{}`))
			require.NoError(t, err)
			require.Equal(t, messages.Cancelled, out.Fault.Code)
			require.LessOrEqual(t, time.Since(begin), 150*time.Millisecond)
			require.Equal(t, 1, c.Runs("x"))
		})
	})
	t.Run("a held call is not retried (RT-10)", func(t *testing.T) {
		t.Parallel()
		c := newToolChain(t, stages.Deps{}, nil, gives(reading("x"), errors.New("boom")))
		hold := pipeline.Stage{Name: "hold", Kind: messages.Tool, Order: 52,
			Before: func(context.Context, *messages.Call) (pipeline.Verdict, error) {
				return pipeline.Hold(json.RawMessage(`{}`)), nil
			}}
		_, err := pipeline.Chain(append(c.Stages, hold), c.Target).Call(t.Context(), toolCall("x", `{}`))
		require.ErrorIs(t, err, pipeline.ErrHeld)
		require.Zero(t, c.Runs("x"))
		require.Zero(t, c.stage(t, "tool-retry").Details(t.Context())["totalRetries"])
	})
}

// oddTools fails, or panics, for whoever asks.
type oddTools struct {
	tool.Tools
	err error
}

func (o oddTools) Get(context.Context, string) (*tool.Definition, error) {
	if o.err != nil {
		return nil, o.err
	}
	panic("no policy")
}

func TestToolRetryWithoutPolicy(t *testing.T) {
	t.Parallel()
	for name, odd := range map[string]oddTools{"panic (RP-9)": {}, "error (RP-9)": {err: errors.New("no policy")}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newToolChain(t, stages.Deps{}, nil, gives(reading("x"), errors.New("boom")))
			d := harnessDeps()
			d.Tools = odd
			s, _, err := harnessMake(messages.Tool, "tool-retry", "", d)
			require.NoError(t, err)
			h := harness{Stages: []pipeline.Stage{s}, Target: c.Target}
			out := h.Call(t, t.Context(), toolCall("x", `{}`))
			require.Equal(t, messages.ToolError, out.Fault.Code)
			require.Equal(t, 1, c.Runs("x"))
		})
	}
}
