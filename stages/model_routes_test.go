package stages_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// ofProvider reads the provider from the model's name, as in "up/m".
func ofProvider(model string) string {
	name, _, _ := strings.Cut(model, "/")
	return name
}

func TestRoutesOfACall(t *testing.T) { // (FO-1, FO-2, FO-8)
	t.Parallel()
	fault := func(code messages.Code, after time.Duration) *messages.Fault {
		f := providerFault(code)
		f.RetryAfter = after
		return f
	}
	down, silent := fault(messages.ProviderError, 0), fault(messages.ProviderTimeout, 0)
	const hour, second = time.Hour, time.Second
	for name, tt := range map[string]struct {
		config string
		lines  map[string][]any
		runs   int
		asked  []string
		text   string
		code   messages.Code
		delays []time.Duration // at least
	}{
		"a silent standby is asked once": {lines: map[string][]any{"a/p": {silent}, "b/m": {silent}, "c/m": {"c"}},
			config: "[b/m, c/m]", asked: []string{"a/p", "b/m", "c/m"}, text: "c", delays: []time.Duration{0, 0}},
		"a refused key ends its provider": {lines: map[string][]any{"a/p": {fault(messages.ProviderAuth, 0)}, "b/m": {"b"}},
			config: "[a/m, a/n, b/m]", asked: []string{"a/p", "b/m"}, text: "b", delays: []time.Duration{0}},
		"so does a quota, of a standby too": {
			lines:  map[string][]any{"a/p": {down}, "b/m": {fault(messages.ProviderQuota, 0)}, "c/m": {"c"}},
			config: "[b/m, b/n, c/m]", asked: []string{"a/p", "b/m", "c/m"}, text: "c", delays: []time.Duration{0, 0}},
		"nobody is left": {lines: map[string][]any{"a/p": {fault(messages.ProviderAuth, 0)}},
			config: "[a/m]", asked: []string{"a/p"}, code: messages.ProviderAuth},
		"who asked for patience comes last": {
			lines:  map[string][]any{"a/p": {fault(messages.ProviderLimited, 2*second)}, "a/m": {"a"}, "b/m": {down}},
			config: "[a/m, b/m]", asked: []string{"a/p", "b/m", "b/m", "a/m"}, text: "a",
			delays: []time.Duration{0, 300 * time.Millisecond, second}},
		"and not at all if it is too much": {lines: map[string][]any{"a/p": {fault(messages.ProviderLimited, hour)}},
			config: "[a/m]", asked: []string{"a/p"}, code: messages.ProviderLimited},
		"two tries at one provider have a pause": {lines: map[string][]any{"a/p": {down}, "a/m": {"a"}},
			config: "[a/m]", asked: []string{"a/p", "a/m"}, text: "a", delays: []time.Duration{300 * time.Millisecond}},
		"what can never be is tried once": {
			lines: map[string][]any{"a/p": {fault(messages.ModelNotFound, 0)}, "a/m": {fault(messages.ContextLength, 0)},
				"a/n": {"n"}},
			config: "[a/m, a/n]", asked: []string{"a/p", "a/m", "a/n"}, text: "n",
			delays: []time.Duration{300 * time.Millisecond, 600 * time.Millisecond}},
		"the runs are used up": {lines: map[string][]any{"a/p": {silent}, "b/m": {down}, "c/m": {"c"}}, runs: 3,
			config: "[b/m, c/m]", asked: []string{"a/p", "b/m", "b/m"}, code: messages.ProviderTimeout,
			delays: []time.Duration{0, 300 * time.Millisecond}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := harnessDeps()
				d.Provider = ofProvider
				s := harnessModel(t, "model-fallback", "fallback-models: "+tt.config, d)
				script := &harnessScript{Lines: tt.lines}
				h := &harness{Stages: []pipeline.Stage{s}, Target: script}
				c := harnessCall(`{"model":"a/p"}`)
				c.Slip.Runs = tt.runs
				c = h.Call(t, context.Background(), c)
				require.Equal(t, tt.asked, script.Asked)
				require.Len(t, h.Delays, len(tt.delays))
				for i, least := range tt.delays {
					require.GreaterOrEqual(t, h.Delays[i], least, "delay %d", i)
					require.Equal(t, least == 0, h.Delays[i] == 0, "delay %d", i)
				}
				if tt.code != "" {
					require.Equal(t, tt.code, c.Fault.Code)
					return
				}
				require.Equal(t, tt.text, harnessText(t, c))
			})
		})
	}
}

func TestRetryLeavesASilentModelAlone(t *testing.T) { // (FO-2)
	t.Parallel()
	script := &harnessScript{Lines: map[string][]any{"p": {providerFault(messages.ProviderTimeout)}}}
	h := &harness{Stages: []pipeline.Stage{harnessModel(t, "model-retry", "", harnessDeps())}, Target: script}
	c := h.Call(t, context.Background(), harnessCall(`{"model":"p"}`))
	require.Equal(t, messages.ProviderTimeout, c.Fault.Code)
	require.Equal(t, 1, script.Count("p"))
}

func TestStandbysLeft(t *testing.T) { // (FO-2)
	t.Parallel()
	for name, tt := range map[string]struct {
		config string
		runs   int
		want   []int // at each run
	}{
		"three":                      {"fallback-models: [b/m, c/m, d/m]", 0, []int{3, 2, 1, 0}},
		"the primary is none":        {"fallback-models: [a/p, b/m]", 0, []int{1, 0}},
		"the bound of runs":          {"fallback-models: [b/m, c/m, d/m]", 2, []int{1, 0}},
		"silence is no reason to go": {"fallback-models: [b/m]\nfallback-on: [provider_quota]", 0, []int{0}},
		"no tries":                   {"fallback-models: [b/m]\nmax-retries: 0", 0, []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := harnessDeps()
			d.Provider = ofProvider
			s := harnessModel(t, "model-fallback", tt.config, d)
			var got []int
			target := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
				got = append(got, s.Standbys(c))
				return providerFault(messages.ProviderTimeout)
			})
			c := harnessCall(`{"model":"a/p"}`)
			c.Slip.Runs = tt.runs
			h := &harness{Stages: []pipeline.Stage{s}, Target: target}
			h.Call(t, context.Background(), c)
			require.Equal(t, tt.want, got)
		})
	}
}
