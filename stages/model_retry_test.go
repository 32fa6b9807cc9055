package stages_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
)

func TestModelRetry(t *testing.T) {
	t.Parallel()
	down := providerFault(messages.ProviderError)
	after := func(d time.Duration) *messages.Fault {
		f := providerFault(messages.ProviderLimited)
		f.RetryAfter = d
		return f
	}
	const plain = "base-delay: 500ms\njitter: 0\n"
	for name, tc := range map[string]struct {
		config  string
		lines   []any
		left    time.Duration
		delays  []time.Duration
		calls   int
		code    messages.Code
		should  string
		records int
	}{
		"text that says timeout (MR-1)": {plain, []any{"timeout is a setting, rate limit and 503 too"}, 0, nil, 1, "", "", 0},
		"permanent (MR-2)": {plain, []any{providerFault(messages.ProviderAuth)}, 0, nil, 1, messages.ProviderAuth,
			"false", 0},
		"transient, then well": {plain, []any{down, "ok"}, 0, []time.Duration{500 * time.Millisecond}, 2, "", "false", 1},
		"used up": {plain + "max-retries: 3", []any{down}, 0,
			[]time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second}, 4,
			messages.ProviderError, "false", 3},
		"max-delay bounds": {plain + "max-retries: 3\nmax-delay: 800ms", []any{down}, 0,
			[]time.Duration{500 * time.Millisecond, 800 * time.Millisecond, 800 * time.Millisecond}, 4, messages.ProviderError,
			"false", 3},
		"Retry-After is kept to": {plain, []any{after(7 * time.Second), "ok"}, 0,
			[]time.Duration{7 * time.Second}, 2, "", "false", 1},
		"Retry-After beyond max-delay": {plain, []any{after(time.Minute)}, 0, nil, 1, messages.ProviderLimited,
			"false", 0},
		"deadline before the wait is over": {plain, []any{after(7 * time.Second)}, 5 * time.Second, nil, 1,
			messages.ProviderLimited, "false", 0},
		"after the first token (FB-9)": {plain, []any{providerFault(messages.StreamCut)}, 0, nil, 1,
			messages.StreamCut, "false", 0},
		"a stage's fault": {plain, []any{messages.NewFault(messages.RateLimited, "x").From("limiter")},
			0, nil, 1, messages.RateLimited, "false", 0},
		"max-retries 0": {plain + "max-retries: 0", []any{down}, 0, nil, 1, messages.ProviderError,
			"false", 0},
		"target absent (not executed) is tried": {plain, []any{providerFault(messages.TargetAbsent), "ok"}, 0,
			[]time.Duration{500 * time.Millisecond}, 2, "", "false", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := harnessDeps()
				script := &harnessScript{Lines: map[string][]any{"p": tc.lines}}
				h := &harness{Stages: []pipeline.Stage{harnessModel(t, "model-retry", tc.config, d)}, Target: script}
				c := harnessCall(`{"model":"p"}`)
				if tc.left > 0 {
					c.Deadline = time.Now().Add(tc.left)
				}
				c = h.Call(t, context.Background(), c)
				require.Equal(t, tc.calls, script.Count("p"))
				require.Equal(t, tc.delays, h.Delays)
				if tc.code == "" {
					require.Nil(t, c.Fault)
				} else {
					require.Equal(t, tc.code, c.Fault.Code)
				}
				require.Equal(t, tc.should, string(c.Notes[messages.NoteShouldRetry]))
				require.NotContains(t, c.Notes, messages.NoteSuggestedDelay)
				keys, err := d.Store("retry").Keys(context.Background(), messages.Key("t1", c.ID, "model-retry")+".")
				require.NoError(t, err)
				require.Len(t, keys, tc.records)
			})
		})
	}
}

func TestModelRetryJitter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		low, high := time.Hour, time.Duration(0)
		s := harnessModel(t, "model-retry", "base-delay: 1s\nmax-retries: 1", harnessDeps())
		for range 200 {
			h := &harness{Stages: []pipeline.Stage{s},
				Target: &harnessScript{Lines: map[string][]any{"p": {providerFault(messages.ProviderError)}}}}
			h.Call(t, context.Background(), harnessCall(`{"model":"p"}`))
			require.Len(t, h.Delays, 1)
			low, high = min(low, h.Delays[0]), max(high, h.Delays[0])
		}
		require.Greater(t, low, 700*time.Millisecond)
		require.Less(t, low, 850*time.Millisecond)
		require.Greater(t, high, 1150*time.Millisecond)
		require.LessOrEqual(t, high, 1250*time.Millisecond)
	})
}

func TestModelRetryWaitsLocally(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		script := &harnessScript{Lines: map[string][]any{"p": {providerFault(messages.ProviderError),
			providerFault(messages.ProviderError), "ok"}}}
		s := harnessModel(t, "model-retry", "jitter: 0", harnessDeps())
		var noted []string
		l := pipeline.Chain([]pipeline.Stage{s}, script)
		l.Observe = func(c *messages.Call, _ pipeline.Report) {
			noted = append(noted, string(c.Notes[messages.NoteShouldRetry])+string(c.Notes[messages.NoteSuggestedDelay]))
		}
		begin := time.Now()
		c, err := l.Call(t.Context(), harnessCall(`{"model":"p"}`))
		require.NoError(t, err)
		require.Equal(t, "ok", harnessText(t, c))
		require.Equal(t, 1500*time.Millisecond, time.Since(begin))
		require.Equal(t, []string{"true500", "true1000", "false"}, noted)
		require.Equal(t, map[string]any{"totalRetries": int64(2), "retriesExhausted": int64(0)}, s.Details(t.Context()))
	})
}

func TestFallbackWithRetry(t *testing.T) {
	t.Parallel()
	down := providerFault(messages.ProviderError)
	both := func(t *testing.T, retryOrder string, d stages.Deps) (retry, fallback pipeline.Stage) {
		return harnessModel(t, "model-retry", "base-delay: 0s\nmax-retries: 1\n"+retryOrder, d),
			harnessModel(t, "model-fallback", "fallback-models: [m1]\nmax-retries: 1", d)
	}
	t.Run("retry inside fallback (FB-14)", func(t *testing.T) {
		t.Parallel()
		d := harnessDeps()
		retry, fallback := both(t, "", d)
		script := &harnessScript{Lines: map[string][]any{"p": {down}, "m1": {down, "ok"}}}
		h := &harness{Stages: []pipeline.Stage{fallback, retry}, Target: script}
		c := h.Call(t, context.Background(), harnessCall(`{"model":"p"}`))
		require.Equal(t, []string{"p", "p", "m1", "m1"}, script.Asked)
		require.Equal(t, "ok", harnessText(t, c))
		require.Equal(t, `"model-fallback;model=m1"`, string(c.Notes[messages.NoteDegraded]))
		keys, err := d.Store("retry").Keys(context.Background(), "")
		require.NoError(t, err)
		require.ElementsMatch(t, []string{
			messages.Key("t1", c.ID, "model-retry", "1"), messages.Key("t1", c.ID, "model-fallback", "1"),
			messages.Key("t1", c.ID, "model-retry", "2-1"),
		}, keys, "the second round of the retry has records of its own")
	})
	t.Run("order swapped: retry outside fallback (FB-15)", func(t *testing.T) {
		t.Parallel()
		retry, fallback := both(t, "order: 10", harnessDeps())
		fallback.Order = 95
		script := &harnessScript{Lines: map[string][]any{"p": {down}, "m1": {down, "ok"}}}
		l := pipeline.Chain([]pipeline.Stage{retry, fallback}, script)
		c, err := l.Call(context.Background(), harnessCall(`{"model":"p"}`))
		require.NoError(t, err)
		require.Equal(t, []string{"p", "m1", "p", "m1"}, script.Asked)
		require.Equal(t, "ok", harnessText(t, c))
		require.Equal(t, []string{"model", "model-fallback.afterModel", "model", "model-fallback.afterModel",
			"model-retry.afterModel",
			"model", "model-fallback.afterModel", "model", "model-fallback.afterModel", "model-retry.afterModel"}, c.Slip.Path)
		require.NotContains(t, c.Notes, messages.NoteIsFallback)
	})
}

func TestModelRetryConfig(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"max-retries: -1", "max-retries: 100", "base-delay: -1s", "max-delay: 1ms",
		"jitter: 1.5", "jitter: .nan", "retries: 2"} {
		_, _, err := harnessMake(messages.Model, "model-retry", bad, harnessDeps())
		require.Error(t, err, bad)
	}
	_, on, err := harnessMake(messages.Model, "model-retry", "", harnessDeps())
	require.NoError(t, err)
	require.False(t, on, "off by default")
}
