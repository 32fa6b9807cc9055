package stages_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
)

const usageReply = `{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},` +
	`"finish_reason":"stop"}],"usage":{"prompt_tokens":60,"completion_tokens":40,"total_tokens":100`

func TestBudget(t *testing.T) {
	t.Parallel()
	reply := []byte(usageReply + `}}`)
	cost := []byte(usageReply + `,"cost":0.5}}`)
	for name, tc := range map[string]struct {
		config string
		lines  []any
		calls  int // that may be made, one after the other
		max    int // that reach the model
	}{
		"tokens":          {"tokens-per-day: 250", []any{reply}, 5, 3},
		"exactly reached": {"tokens-per-day: 200", []any{reply}, 5, 2},
		"zero":            {"tokens-per-day: 0", []any{reply}, 1, 0},
		"faults cost nothing": {"tokens-per-day: 100",
			[]any{providerFault(messages.ProviderError), providerFault(messages.ProviderError), reply}, 5, 3},
		"a cut stream was paid for":       {"tokens-per-day: 100", []any{providerFault(messages.StreamCut), reply}, 5, 1},
		"no usage is estimated, not free": {"tokens-per-day: 30", []any{"some words"}, 9, 1},
		"money by price": {"usd-per-day: 0.001\nprices: [{model: 'p*', input: 1, output: 10}]",
			[]any{reply}, 9, 3},
		"a model without a line is dear": {
			"usd-per-day: 0.001\nprices: [{model: a, input: 1, output: 10}, {model: b, input: 100, output: 100}]", []any{reply},
			9, 1},
		"money as the provider says": {"usd-per-day: 1\nprices: [{model: p, input: 1, output: 1}]", []any{cost}, 9, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				script := &harnessScript{Lines: map[string][]any{"p": tc.lines}}
				h := &harness{Stages: []pipeline.Stage{harnessModel(t, "budget", tc.config, harnessDeps())}, Target: script}
				var c *messages.Call
				for range tc.calls {
					c = h.Call(t, context.Background(), harnessCall(`{"model":"p","messages":[]}`))
				}
				require.Equal(t, tc.max, script.Count("p"))
				require.Equal(t, messages.LimitExceeded, c.Fault.Code)
				require.Contains(t, c.Fault.Message, "tenant t1")
				other := harnessCall(`{"model":"p"}`)
				other.Tenant = "t2"
				before := script.Count("p")
				h.Call(t, context.Background(), other)
				if name != "zero" {
					require.Equal(t, before+1, script.Count("p"), "another tenant has a budget of its own")
				}
			})
		})
	}
	t.Run("a price for * is that of every name, also with a slash; its own goes before", func(t *testing.T) {
		t.Parallel()
		million := []byte(`{"choices":[],"usage":{"prompt_tokens":1000000,"completion_tokens":0,"total_tokens":1000000}}`)
		for _, tc := range []struct {
			model  string
			limit  string // of the day, in dollars
			passes int
		}{
			{"demo/echo", "2.5", 3}, {"a/b/c", "0.5", 1}, {"gold", "1.5", 1}, {"gold", "1000.5", 2}, {"silver/x", "10.5", 2},
		} {
			script := &harnessScript{Lines: map[string][]any{tc.model: {million}}}
			h := &harness{Target: script, Stages: []pipeline.Stage{harnessModel(t, "budget", "usd-per-day: "+tc.limit+`
prices: [{model: '*', input: 1}, {model: gold, input: 1000}, {model: 'silver/*', input: 10}]`, harnessDeps())}}
			for range 5 {
				h.Call(t, context.Background(), harnessCall(`{"model":"`+tc.model+`","messages":[]}`))
			}
			require.Equal(t, tc.passes, script.Count(tc.model), "%s under %s USD a day", tc.model, tc.limit)
		}
	})
	t.Run("an answer that no model made costs 0", func(t *testing.T) {
		t.Parallel()
		inner := pipeline.Stage{Name: "inner", Kind: messages.Model, Order: 90,
			Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
				c.SetReply(reply)
				return pipeline.Answer(), nil
			}}
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "budget", "tokens-per-day: 50", harnessDeps()), inner},
			Target: &harnessScript{}}
		for range 5 {
			require.Equal(t, "hi", harnessText(t, h.Call(t, context.Background(), harnessCall(`{}`))))
		}
	})
	t.Run("redelivery from the entry settles once", func(t *testing.T) {
		t.Parallel()
		script := &harnessScript{Lines: map[string][]any{"p": {reply}}}
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "budget", "tokens-per-day: 101", harnessDeps())},
			Target: script}
		first := harnessCall(`{"model":"p"}`)
		for range 3 {
			require.Equal(t, "hi", harnessText(t, h.Call(t, context.Background(), first.Clone())))
		}
		require.Equal(t, "hi", harnessText(t, h.Call(t, context.Background(), harnessCall(`{"model":"p"}`))))
	})
	t.Run("calls under way are reserved", func(t *testing.T) {
		t.Parallel()
		s := harnessModel(t, "budget", "tokens-per-day: 1000", harnessDeps())
		c := harnessCall(`{"model":"p","max_tokens":900,"n":2}`)
		c.Slip.Stops = []messages.Stop{s.Stop()}
		pipeline.Start(c)
		_, r := pipeline.Step(context.Background(), s, c)
		require.NoError(t, r.Err)
		d := harnessCall(`{"model":"p"}`)
		d.Slip.Stops = []messages.Stop{s.Stop()}
		pipeline.Start(d)
		pipeline.Step(context.Background(), s, d)
		require.Equal(t, messages.LimitExceeded, d.Fault.Code)
	})
	t.Run("fails closed", func(t *testing.T) {
		t.Parallel()
		d := stages.Deps{Store: func(string) pipeline.Store { return harnessDown{} }}
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "budget", "tokens-per-day: 5", d)}, Target: &harnessScript{}}
		require.Equal(t, messages.StoreUnavailable, h.Call(t, context.Background(), harnessCall(`{}`)).Fault.Code)
	})
	for _, bad := range []string{"enabled: true", "tokens-per-day: -1", "usd-per-day: -1", "usd-per-day: 1",
		"usd-per-day: 1\nprices: [{model: '[', input: 1}]", "usd-per-day: 1\nprices: [{model: a, input: -1}]"} {
		_, _, err := harnessMake(messages.Model, "budget", bad, harnessDeps())
		require.ErrorContains(t, err, "agent.interceptor.budget", bad)
	}
}
