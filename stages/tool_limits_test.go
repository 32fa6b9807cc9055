package stages_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/pipeline/toolbox/toolspec"
	"github.com/shallot-nats/shallot/stages"
)

var noFallback = map[string]string{"tool-fallback": "off", "tool-cache": "off"}

func limited(t testing.TB, d stages.Deps, configs map[string]string, tools ...tool) *toolChain {
	t.Helper()
	all := map[string]string{}
	for k, v := range noFallback {
		all[k] = v
	}
	for k, v := range configs {
		all[k] = v
	}
	return newToolChain(t, d, all, tools...)
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	config := map[string]string{"rate-limit": "tools: {x: {limit: 3, per: 3s}, 'search_*': {limit: 1, per: 1m}, '*': {limit: 100, per: 1m}}"}
	t.Run("burst, refill, Retry-After", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c := limited(t, stages.Deps{}, config, gives(reading("x"), `1`), gives(reading("search_a"), `1`))
			for range 3 {
				require.Nil(t, c.Run(t, "x", `{}`).Fault, "a redelivery takes no second token")
			}
			out := c.Run(t, "x", `{}`)
			require.Equal(t, messages.RateLimited, out.Fault.Code)
			require.Equal(t, time.Second, out.Fault.RetryAfter)
			require.Empty(t, c.Delays, "contracts 7: our own limit is not retried")
			other := toolCall("x", `{}`)
			other.Tenant = "t2"
			require.Nil(t, c.Call(t, t.Context(), other).Fault, "each tenant has its own")
			time.Sleep(time.Second)
			require.Nil(t, c.Run(t, "x", `{}`).Fault)
			require.NotNil(t, c.Run(t, "x", `{}`).Fault)
			require.Nil(t, c.Run(t, "search_a", `{}`).Fault)
			require.NotNil(t, c.Run(t, "search_a", `{}`).Fault, "the longest pattern that fits")
			require.Equal(t, 5, c.Runs("x"))
		})
	})
	t.Run("each attempt takes one, a hit none", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			config := map[string]string{"rate-limit": config["rate-limit"], "tool-cache": ""}
			c := limited(t, stages.Deps{}, config, fails(reading("x"), 2, errors.New("boom")))
			require.Nil(t, c.Run(t, "x", `{}`).Fault)
			require.Equal(t, 3, c.Runs("x"))
			require.True(t, c.Run(t, "x", `{}`).Flag(messages.NoteCacheHit))
			require.Equal(t, messages.RateLimited, c.Run(t, "x", `{"a":1}`).Fault.Code)
		})
	})
	t.Run("fails closed", func(t *testing.T) {
		t.Parallel()
		c := limited(t, stages.Deps{Store: func(name string) pipeline.Store {
			if name == "limits" {
				return harnessDown{}
			}
			return &pipeline.Memory{}
		}}, config, gives(reading("x"), `1`))
		require.Equal(t, messages.StoreUnavailable, c.Run(t, "x", `{}`).Fault.Code)
		require.Zero(t, c.Runs("x"))
	})
}

func TestConcurrency(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	in := func(group string) toolspec.Definition {
		d := reading("x")
		d.ConcurrencyGroup = group
		return d
	}
	most := func(now, max *int) tool {
		return tool{in("db"), func(context.Context, int, json.RawMessage) (toolbox.Result, error) {
			mu.Lock()
			*now++
			if *now > *max {
				*max = *now
			}
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			*now--
			mu.Unlock()
			return toolbox.Result{Content: []byte(`1`)}, nil
		}}
	}
	t.Run("no more than the group has, and slots come back", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var now, max int
			c := limited(t, stages.Deps{}, map[string]string{"concurrency": "{groups: {db: 2}, wait: 20s}"}, most(&now, &max))
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() { c.Plain(t, toolCall("x", `{}`)) })
			}
			wg.Wait()
			require.Equal(t, 10, c.Runs("x"))
			require.Equal(t, 2, max)
			keys, err := c.Deps.Store("limits").Get(t.Context(), messages.Key("concurrency", "db"))
			require.NoError(t, err)
			require.JSONEq(t, `{}`, string(keys.Value))
		})
	})
	t.Run("refused at once, a lost slot ends by itself", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c := limited(t, stages.Deps{}, map[string]string{"concurrency": "{groups: {db: 1}, wait: 0s}"}, gives(in("db"), `1`))
			s := c.stage(t, "concurrency")
			dead := toolCall("x", `{}`)
			dead.Slip.Stops = []messages.Stop{s.Stop()}
			pipeline.Start(dead)
			for range 2 { // delivered again: the same slot
				_, err := s.Before(t.Context(), dead)
				require.NoError(t, err)
			}
			out := c.Run(t, "x", `{}`)
			require.Equal(t, messages.Overloaded, out.Fault.Code)
			require.True(t, out.Fault.Unsent)
			require.Equal(t, time.Second, out.Fault.RetryAfter)
			time.Sleep(25 * time.Second)
			require.Nil(t, c.Run(t, "x", `{}`).Fault)
			require.Nil(t, c.Run(t, "x", `{}`).Fault)
		})
	})
	t.Run("no slot during back-off", func(t *testing.T) {
		t.Parallel()
		c := limited(t, stages.Deps{}, map[string]string{"concurrency": "{groups: {db: 1}, wait: 0s}"}, fails(in("db"), 2, errors.New("boom")))
		probe := c.stage(t, "tool-retry")
		after := probe.After
		probe.After = func(ctx context.Context, call *messages.Call) (pipeline.Verdict, error) {
			e, err := c.Deps.Store("limits").Get(ctx, messages.Key("concurrency", "db"))
			require.NoError(t, err)
			require.JSONEq(t, `{}`, string(e.Value))
			return after(ctx, call)
		}
		for i := range c.harness.Stages {
			if c.harness.Stages[i].Name == "tool-retry" {
				c.harness.Stages[i] = probe
			}
		}
		require.Nil(t, c.Run(t, "x", `{}`).Fault)
		require.Equal(t, 3, c.Runs("x"))
	})
	t.Run("a group without a limit", func(t *testing.T) {
		t.Parallel()
		c := limited(t, stages.Deps{}, map[string]string{"concurrency": "{groups: {db: 1}, wait: 0s}"}, gives(in("other"), `1`))
		require.Nil(t, c.Run(t, "x", `{}`).Fault)
	})
}

func TestToolStageConfigs(t *testing.T) {
	t.Parallel()
	d := harnessDeps()
	d.Tools = &toolSet{}
	for _, row := range []struct{ stage, config string }{
		{"tool-cache", "ttl: 0s"}, {"tool-cache", "max-entries: 0"}, {"tool-cache", "sweep: 0s"}, {"tool-cache", "no-such-key: 1"},
		{"tool-retry", "max-retries: -1"}, {"tool-retry", "max-retries: 100"}, {"tool-retry", "multiplier: 0.5"}, {"tool-retry", "jitter: 2"},
		{"tool-retry", "max-delay: 1ms"}, {"tool-retry", "executed-by: me"}, {"tool-retry", "base-delay: -1s"},
		{"large-result-eviction", "token-threshold: 0"}, {"large-result-eviction", "preserve-sample-chars: -1"},
		{"large-result-eviction", "eviction-store: tape"}, {"large-result-eviction", "{eviction-store: dir, eviction-dir: ''}"},
		{"rate-limit", "enabled: true"}, {"rate-limit", "tools: {x: {limit: 0}}"}, {"rate-limit", "tools: {'[': {limit: 1}}"},
		{"concurrency", "enabled: true"}, {"concurrency", "groups: {a: 0}"}, {"concurrency", "wait: -1s"},
	} {
		_, _, err := harnessMake(messages.Tool, row.stage, row.config, d)
		require.Error(t, err, "%s %s", row.stage, row.config)
	}
	for _, rules := range []stages.FallbackRules{{StaleTTL: -1}, {StaleMax: -1}, {GracefulIsError: "maybe"}, {Rungs: []string{"luck"}}} {
		d.Fallback = &rules
		_, _, err := harnessMake(messages.Tool, "tool-fallback", "", d)
		require.ErrorContains(t, err, "tool.fallback")
	}
	for _, name := range []string{"rate-limit", "concurrency"} {
		_, on, err := harnessMake(messages.Tool, name, "", harnessWith(d))
		require.NoError(t, err)
		require.False(t, on, "on when set")
	}
}

func harnessWith(d stages.Deps) stages.Deps { d.Fallback = nil; return d }
