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
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/stages"
)

func TestConcurrency(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	in := func(group string) tool.Definition {
		d := reading("x")
		d.ConcurrencyGroup = group
		return d
	}
	most := func(now, max *int) chainTool {
		return chainTool{in("db"), func(context.Context, int, json.RawMessage) (toolbox.Result, error) {
			mu.Lock()
			*now++
			if *now > *max {
				*max = *now
			}
			mu.Unlock()
			<-time.After(time.Second)
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
			<-time.After(70 * time.Second) // its deadline and the grace
			require.Nil(t, c.Run(t, "x", `{}`).Fault)
			require.Nil(t, c.Run(t, "x", `{}`).Fault)
		})
	})
	t.Run("a call that waits for a worker keeps its slot", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c := limited(t, stages.Deps{}, map[string]string{"concurrency": "{groups: {db: 1}, wait: 0s}"}, gives(in("db"), `1`))
			s := c.stage(t, "concurrency")
			waits := toolCall("x", `{}`)
			waits.Deadline = time.Now().Add(time.Minute)
			waits.Slip.Stops = []messages.Stop{s.Stop()}
			pipeline.Start(waits)
			_, err := s.Before(t.Context(), waits)
			require.NoError(t, err)
			<-time.After(59 * time.Second)
			require.Equal(t, messages.Overloaded, c.Run(t, "x", `{}`).Fault.Code, "it may run now")
			<-time.After(11 * time.Second)
			require.Nil(t, c.Run(t, "x", `{}`).Fault)
		})
	})
	t.Run("no slot during back-off", func(t *testing.T) {
		t.Parallel()
		c := limited(t, stages.Deps{}, map[string]string{"concurrency": "{groups: {db: 1}, wait: 0s}"},
			fails(in("db"), 2, errors.New("boom")))
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
		c := limited(t, stages.Deps{}, map[string]string{"concurrency": "{groups: {db: 1}, wait: 0s}"},
			gives(in("other"), `1`))
		require.Nil(t, c.Run(t, "x", `{}`).Fault)
	})
}
