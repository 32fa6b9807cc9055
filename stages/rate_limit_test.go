package stages_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
)

func TestRateLimit(t *testing.T) {
	t.Parallel()
	config := map[string]string{"rate-limit": "tools: {x: {limit: 3, per: 3s}, 'search_*': {limit: 1, per: 1m}," +
		" '*': {limit: 100, per: 1m}}"}
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
			require.Empty(t, c.Delays, "our own limit is not retried")
			other := toolCall("x", `{}`)
			other.Tenant = "t2"
			require.Nil(t, c.Call(t, t.Context(), other).Fault, "each tenant has its own")
			<-time.After(time.Second)
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
	t.Run("a clock that was set back empties a bucket once", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			store := &pipeline.Memory{}
			c := limited(t, stages.Deps{Store: func(string) pipeline.Store { return store }}, config, gives(reading("x"), `1`))
			before := `{"full":"` + time.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano) + `"}`
			_, err := store.Put(t.Context(), messages.Key("rate-limit", "t1", "x"), []byte(before), 0, pipeline.Always())
			require.NoError(t, err)
			out := c.Run(t, "x", `{}`)
			require.Equal(t, messages.RateLimited, out.Fault.Code)
			require.Equal(t, time.Second, out.Fault.RetryAfter)
			<-time.After(time.Second)
			require.Nil(t, c.Run(t, "x", `{}`).Fault)
			require.NotNil(t, c.Run(t, "x", `{}`).Fault)
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
