package pipeline_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

func controlled(t *testing.T) (*pipeline.Manager, pipeline.LocalControl) {
	t.Helper()
	pass := func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }
	m := &pipeline.Manager{}
	for _, s := range []pipeline.Stage{
		{Name: "audit", Kind: messages.Model, Order: 0, Tier: pipeline.Mandatory, Before: pass},
		{Name: "logging", Alias: "LoggingModelInterceptor", Kind: messages.Model, Order: 100, After: pass},
		{Name: "timeout", Kind: messages.Tool, Order: 50, Tier: pipeline.Fixed, Before: pass},
		{Name: "tool-cache", Alias: "CachingToolInterceptor", Kind: messages.Tool, Order: 20, Before: pass,
			Details: func(context.Context) map[string]any { return map[string]any{"cacheHits": 7} }},
		{Name: "large-result-eviction", Kind: messages.Tool, Order: 20, After: pass},
	} {
		require.NoError(t, m.Register(s, s.Name != "logging"))
	}
	return m, pipeline.LocalControl{Manager: m}
}

func TestLocalControlSwitch(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		name, confirm string
		on            bool
		want          messages.Code
	}{
		"a stage is switched off (HT-1)":                 {name: "tool-cache"},
		"a class name switches a stage on (HT-3)":        {name: "LoggingModelInterceptor", on: true},
		"an unknown name is not found (HT-4)":            {name: "nope", want: messages.NotFound},
		"a stage that is off may be switched off (HT-5)": {name: "logging"},
		"fixed, no confirmation":                         {name: "timeout", want: messages.Conflict},
		"fixed, wrong confirmation": {name: "timeout", confirm: "audit",
			want: messages.InvalidRequest},
		"fixed, confirmed":                    {name: "timeout", confirm: "timeout"},
		"mandatory, no confirmation":          {name: "audit", want: messages.Conflict},
		"mandatory, on needs no confirmation": {name: "audit", on: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, c := controlled(t)
			before, _ := c.Stats(t.Context())
			got, err := c.Switch(t.Context(), tt.name, tt.on, tt.confirm, "ann")
			if tt.want != "" {
				var f *messages.Fault
				require.ErrorAs(t, err, &f)
				require.Equal(t, tt.want, f.Code)
				after, _ := c.Stats(t.Context())
				require.Equal(t, before, after, "a refused switch changes nothing")
				return
			}
			require.NoError(t, err)
			require.Equal(t, "ann", got.By)
			require.Len(t, got.Stages, 1)
			s, _ := m.Get(got.Stages[0].Type, got.Stages[0].Stage)
			require.Equal(t, tt.on, s.Enabled())
		})
	}
}

func TestStatsHasTheFieldsOfBothForms(t *testing.T) {
	t.Parallel()
	m, c := controlled(t)
	_, err := m.Build(pipeline.Route{Kind: messages.Model})
	require.NoError(t, err)
	stats, err := c.Stats(t.Context())
	require.NoError(t, err)
	raw, err := json.Marshal(stats)
	require.NoError(t, err)
	var body map[string]any
	require.NoError(t, json.Unmarshal(raw, &body))
	for _, key := range []string{"modelInterceptors", "toolInterceptors", "cacheStats", "retryStats", // form A (ST-4)
		"interceptors", "orderConflicts", "chainBuildCount", "lastBuildTimeMs"} { // form B
		require.Contains(t, body, key)
	}
	for _, key := range []string{"name", "stage", "order", "type", "enabled", "invocationCount", "avgDurationMs",
		"lastError"} {
		require.Contains(t, body["interceptors"].([]any)[0], key)
	}
	for _, key := range []string{"cacheSize", "cacheHits", "cacheMisses", "hitRate", "ttlMs"} {
		require.Contains(t, body["cacheStats"], key)
	}
	require.EqualValues(t, 7, stats.CacheStats["cacheHits"])
	for _, key := range []string{"maxRetries", "baseDelayMs", "totalRetries", "retriesExhausted"} {
		require.Contains(t, body["retryStats"], key)
	}
	require.EqualValues(t, 1, body["chainBuildCount"], "chains are counted (ST-3)")
	require.Len(t, stats.ModelInterceptors, 1, "form A shows the chain as it would be built: logging is off")
	require.Equal(t, "CachingToolInterceptor", stats.ToolInterceptors[0].Name)
	require.Len(t, stats.OrderConflicts, 1)
}

func TestDiagnosticsGivesAdviceOnConflicts(t *testing.T) {
	t.Parallel()
	_, c := controlled(t)
	got, err := c.Diagnostics(t.Context())
	require.NoError(t, err)
	d := got.(pipeline.Diagnostics)
	require.Len(t, d.Stages, 5)
	require.Len(t, d.Advice, 1)
	raw, err := json.Marshal(d)
	require.NoError(t, err)
	require.Contains(t, string(raw), `"chainBuildCount"`)
}
