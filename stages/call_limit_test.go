package stages_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
)

func limitedCall(session, run string) *messages.Call {
	c := harnessCall(`{"model":"p","messages":[]}`)
	c.Session, c.Run, c.Deadline = session, run, time.Now().Add(time.Minute)
	return c
}

func TestCallLimit(t *testing.T) {
	t.Parallel()
	type step struct{ session, run string }
	same := func(n int, s step) (out []step) {
		for range n {
			out = append(out, s)
		}
		return out
	}
	for name, tc := range map[string]struct {
		config string
		steps  []step
		calls  int // of the model
		last   string
		code   messages.Code
	}{
		"run limit, END (LM-1)": {"run-limit: 2", same(3, step{"s", "r"}), 2, "Model call limits exceeded: run limit (2/2)",
			""},
		"ERROR (LM-2)": {"run-limit: 2\nexit-behavior: ERROR", same(3, step{"s", "r"}), 2,
			"Model call limits exceeded: run limit (2/2)", messages.LimitExceeded},
		"both limits (LM-3)": {"run-limit: 2\nthread-limit: 2", same(3, step{"s", "r"}), 2,
			"Model call limits exceeded: thread limit (2/2), run limit (2/2)", ""},
		"limit 0, in a run (LM-5)": {"run-limit: 0", same(1, step{"", "r"}), 0,
			"Model call limits exceeded: run limit (0/0)", ""},
		"limit 0, bare (LM-5)": {"run-limit: 0", same(1, step{}), 0, "Model call limits exceeded: run limit (0/0)",
			""},
		"a new run begins at 0 (X-44)": {"run-limit: 1", []step{{"s", "r1"}, {"s", "r2"}}, 2, "ok", ""},
		"a session over runs": {"thread-limit: 2", []step{{"s", "r1"}, {"s", "r2"}, {"s", "r3"}}, 2,
			"Model call limits exceeded: thread limit (2/2)", ""},
		"another session":             {"thread-limit: 1", []step{{"s1", ""}, {"s2", ""}}, 2, "ok", ""},
		"no session: no thread limit": {"thread-limit: 1", same(3, step{"", "r"}), 3, "ok", ""},
		"no run: each its own":        {"run-limit: 1", same(3, step{"s", ""}), 3, "ok", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := &harnessScript{Lines: map[string][]any{"p": {"ok"}}}
			h := &harness{Stages: []pipeline.Stage{harnessModel(t, "call-limit", tc.config, harnessDeps())}, Target: script}
			var c *messages.Call
			for _, s := range tc.steps {
				c = h.Call(t, context.Background(), limitedCall(s.session, s.run))
			}
			require.Equal(t, tc.calls, script.Count("p"))
			if tc.code != "" {
				require.Equal(t, tc.code, c.Fault.Code)
				require.Equal(t, tc.last, c.Fault.Message)
				return
			}
			require.Equal(t, tc.last, harnessText(t, c))
			if tc.last != "ok" {
				require.Equal(t, `"end"`, string(c.Notes["jump_to"]), "X-43")
				require.Equal(t, `"call-limit"`, string(c.Notes[messages.NoteStopper]))
			}
		})
	}
}

func TestCallLimitCounting(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	t.Run("retried inside: counted once (LM-6)", func(t *testing.T) {
		t.Parallel()
		d := harnessDeps()
		down := providerFault(messages.ProviderError)
		script := &harnessScript{Lines: map[string][]any{"p": {down, down, "ok", "ok", "ok"}}}
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "call-limit", "run-limit: 2", d),
			harnessModel(t, "model-retry", "base-delay: 0s", d)}, Target: script}
		require.Equal(t, "ok", harnessText(t, h.Call(t, ctx, limitedCall("", "r"))))
		require.Equal(t, "ok", harnessText(t, h.Call(t, ctx, limitedCall("", "r"))))
		require.Contains(t, harnessText(t, h.Call(t, ctx, limitedCall("", "r"))), "(2/2)")
		require.Equal(t, 4, script.Count("p"))
	})
	t.Run("delivered again from its entry: counted once", func(t *testing.T) {
		t.Parallel()
		script := &harnessScript{Lines: map[string][]any{"p": {"ok"}}}
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "call-limit", "run-limit: 2", harnessDeps())}, Target: script}
		first := limitedCall("", "r")
		for range 3 {
			require.Equal(t, "ok", harnessText(t, h.Call(t, ctx, first.Clone())))
		}
		require.Equal(t, "ok", harnessText(t, h.Call(t, ctx, limitedCall("", "r"))))
		require.Contains(t, harnessText(t, h.Call(t, ctx, limitedCall("", "r"))), "(2/2)")
	})
	t.Run("a failed model call counts, one that never reached it does not", func(t *testing.T) {
		t.Parallel()
		inner := pipeline.Stage{Name: "inner", Kind: messages.Model, Order: 50,
			Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
				if c.User == "broken" {
					return pipeline.Verdict{}, errors.New("broken")
				}
				return pipeline.Continue(), nil
			}}
		script := &harnessScript{Lines: map[string][]any{"p": {providerFault(messages.ProviderError), "ok"}}}
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "call-limit", "run-limit: 1", harnessDeps()), inner},
			Target: script}
		broken := limitedCall("", "r")
		broken.User = "broken"
		require.Equal(t, messages.StageError, h.Call(t, ctx, broken).Fault.Code)
		require.Equal(t, messages.ProviderError, h.Call(t, ctx, limitedCall("", "r")).Fault.Code)
		require.Contains(t, harnessText(t, h.Call(t, ctx, limitedCall("", "r"))), "(1/1)")
	})
	t.Run("a call made inside a counted call is part of it", func(t *testing.T) {
		t.Parallel()
		limit := harnessModel(t, "call-limit", "run-limit: 1", harnessDeps())
		script := &harnessScript{Lines: map[string][]any{"p": {"ok"}}}
		inner := pipeline.Stage{Name: "inner", Kind: messages.Model, Order: 50,
			Before: func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
				nested := limitedCall("", c.Run)
				nested.Parent = c.ID
				out, err := pipeline.Chain([]pipeline.Stage{limit}, script).Call(ctx, nested)
				require.NoError(t, err)
				require.Equal(t, "ok", harnessText(t, out))
				return pipeline.Continue(), nil
			}}
		c, err := pipeline.Chain([]pipeline.Stage{limit, inner}, script).Call(ctx, limitedCall("", "r"))
		require.NoError(t, err)
		require.Equal(t, "ok", harnessText(t, c))
		require.Equal(t, 2, script.Count("p"))
	})
	t.Run("parallel calls do not pass the limit together", func(t *testing.T) {
		t.Parallel()
		s := harnessModel(t, "call-limit", "run-limit: 3", harnessDeps())
		var calls atomic.Int64
		target := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
			calls.Add(1)
			c.SetReply(chat.TextReply(c.ID, "p", "ok", 1))
			return nil
		})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				_, err := pipeline.Chain([]pipeline.Stage{s}, target).Call(ctx, limitedCall("", "r"))
				require.NoError(t, err)
			})
		}
		wg.Wait()
		require.EqualValues(t, 3, calls.Load())
	})
	t.Run("tenants do not share a session", func(t *testing.T) {
		t.Parallel()
		script := &harnessScript{Lines: map[string][]any{"p": {"ok"}}}
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "call-limit", "thread-limit: 1", harnessDeps())},
			Target: script}
		for _, tenant := range []string{"a", "b", "a.b"} {
			c := limitedCall("s", "")
			c.Tenant = tenant
			require.Equal(t, "ok", harnessText(t, h.Call(t, ctx, c)))
		}
	})
}

func TestCallLimitFailsClosed(t *testing.T) {
	t.Parallel()
	d := stages.Deps{Store: func(string) pipeline.Store { return harnessDown{} }}
	script := &harnessScript{Lines: map[string][]any{"p": {"ok"}}}
	h := &harness{Stages: []pipeline.Stage{harnessModel(t, "call-limit", "run-limit: 3", d)}, Target: script}
	c := h.Call(t, context.Background(), limitedCall("", "r"))
	require.Equal(t, messages.StoreUnavailable, c.Fault.Code)
	require.Equal(t, "call-limit", c.Fault.Origin)
	require.Zero(t, script.Count("p"))
}

func TestCallLimitConfig(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		config string
		on     bool
		err    string
	}{
		"off by default":                {"", false, ""},
		"nulls":                         {"run-limit: null\nthread-limit: null", false, ""},
		"on when set":                   {"thread-limit: 1", true, ""},
		"on when 0":                     {"run-limit: 0", true, ""},
		"enabled without limits (LM-9)": {"enabled: true", false, "neither run-limit nor thread-limit"},
		"unknown behaviour":             {"run-limit: 1\nexit-behavior: end", false, "exit-behavior"},
		"negative":                      {"run-limit: -1", false, "run-limit"},
		"negative thread":               {"thread-limit: -1", false, "thread-limit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, on, err := harnessMake(messages.Model, "call-limit", tc.config, harnessDeps())
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.on, on)
			require.Equal(t, pipeline.Mandatory, s.Tier)
			require.True(t, s.FailClosed)
		})
	}
}
