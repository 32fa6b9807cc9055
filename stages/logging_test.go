package stages_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

func TestLogging(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	body := `{"model":"p","messages":[{"role":"user","content":"secret <words>"}],"tools":[{}],"seed":9007199254740993}`
	run := func(t *testing.T, config string, calls int) (r *records, log *bytes.Buffer) {
		r, log = &records{}, &bytes.Buffer{}
		d := harnessDeps()
		d.Publish, d.Log = r.Publish, slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		for range calls {
			script := &harnessScript{Lines: map[string][]any{"p": {providerFault(messages.ProviderError),
				[]byte(usageReply + "}}")}}}
			h := &harness{Stages: []pipeline.Stage{harnessModel(t, "model-retry", "base-delay: 0s", d),
				harnessModel(t, "logging", config, d)}, Target: script}
			h.Call(t, ctx, harnessCall(body))
		}
		return r, log
	}
	t.Run("each attempt, no bodies (S0-LOG-1)", func(t *testing.T) {
		t.Parallel()
		r, log := run(t, "", 1)
		require.Len(t, r.Out, 2)
		require.Equal(t, map[string]any{"attempt": 1.0, "code": "provider_error", "model": "p", "messages": 1.0,
			"tools": 1.0},
			pick(r.Out[0], "attempt", "code", "model", "messages", "tools"))
		require.Equal(t, map[string]any{"attempt": 2.0, "inputTokens": 60.0, "outputTokens": 40.0, "finish": []any{"stop"}},
			pick(r.Out[1], "attempt", "inputTokens", "outputTokens", "finish", "code"))
		for _, out := range [][]byte{r.Raw, log.Bytes()} {
			require.NotContains(t, string(out), "secret")
		}
		require.Contains(t, log.String(), "model request")
		require.Contains(t, log.String(), `"code":"provider_error"`)
		require.NotRegexp(t, `"level":"(INFO|WARN)"[^\n]*"model re`, log.String(), "the request's own line says it once")
	})
	t.Run("bodies as they were (S0-LOG-1)", func(t *testing.T) {
		t.Parallel()
		r, log := run(t, "bodies: true", 1)
		require.Contains(t, string(r.Raw), `"requestBody":`+body)
		require.Contains(t, string(r.Raw), `"replyBody":`+usageReply)
		require.Regexp(t, `"level":"INFO"[^\n]*"model request"[^\n]*secret`, log.String())
	})
	t.Run("sample by call id", func(t *testing.T) {
		t.Parallel()
		r, log := run(t, "sample: 0", 3)
		require.Empty(t, r.Out)
		require.NotContains(t, log.String(), "model re")
		r, _ = run(t, "sample: 0.5", 200)
		require.InDelta(t, 200, len(r.Out), 80)
		require.Zero(t, len(r.Out)%2, "all attempts of a call or none")
	})
	t.Run("fails open, and where nobody listens", func(t *testing.T) {
		t.Parallel()
		d := harnessDeps()
		for range 2 {
			h := &harness{Stages: []pipeline.Stage{harnessModel(t, "logging", "", d)},
				Target: &harnessScript{Lines: map[string][]any{"": {"hi"}}}}
			require.Equal(t, "hi", harnessText(t, h.Call(t, ctx, harnessCall(`[]`))))
			d.Publish = (&records{Err: errors.New("gone")}).Publish
		}
	})
	for _, bad := range []string{"sample: 1.1", "sample: -0.1", "sample: .nan"} {
		_, _, err := harnessMake(messages.Model, "logging", bad, harnessDeps())
		require.ErrorContains(t, err, "agent.interceptor.logging: sample")
	}
}
