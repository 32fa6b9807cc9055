package telemetry

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
)

const secret = "sk-live-4111"

func measured(t testing.TB) *Telemetry {
	t.Helper()
	m, err := New(t.Context(), Options{Service: "gateway", Version: "1.2.3", Name: "p1", Metrics: true,
		Server: func(string) (string, int) { return "api.example.com", 443 }})
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close(t.Context()) })
	return m
}

func scrape(t testing.TB, m *Telemetry) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Page().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	require.Equal(t, 200, w.Code)
	return w.Body.String()
}

// value is the value of a series: the name with labels that each must be on its line.
func value(t testing.TB, page, name string, labels ...string) string {
	t.Helper()
	for line := range strings.SplitSeq(page, "\n") {
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		all := true
		for _, l := range labels {
			all = all && strings.Contains(line, l)
		}
		if all {
			return line[strings.LastIndexByte(line, ' ')+1:]
		}
	}
	require.Fail(t, "there is no "+name, "%v in\n%s", labels, page)
	return ""
}

func modelCall(model string) *messages.Call {
	c := messages.NewCall(messages.Model, "acme",
		[]byte(`{"model":"`+model+`","messages":[{"role":"user","content":"`+secret+`"}]}`))
	c.Session, c.RequestID = "session-"+secret, "request-"+secret
	return c
}

// run tells of a whole call: a stage that asks for another attempt, a provider that fails, then answers.
func run(m *Telemetry, c *messages.Call, f *messages.Fault) {
	c.Stream = true
	w := m.Observer().Owns(c, pipeline.Ownership{Again: true})
	ran := func(stage string, v pipeline.Verdict) {
		w.Ran(
			c,
			pipeline.PhaseRun{
				Report:  pipeline.Report{Stage: stage, Phase: messages.After, Verdict: v, Took: time.Millisecond, Member: "m"},
				Began:   time.Now(),
				Elapsed: 2 * time.Millisecond,
			},
		)
	}
	facts := messages.TargetRun{Provider: "openai", Model: "gpt-4o", Micros: 2_000_000, FirstMicros: 500_000}
	c.Fail(messages.NewFault(messages.ProviderLimited, "slow").From(messages.TargetOrigin))
	w.Target(c, pipeline.TargetRun{Facts: facts, Class: "openai", Elapsed: 3 * time.Second})
	ran("model-retry", pipeline.Again(time.Second))
	c.SetReply([]byte(`{"model":"gpt-4o-2024","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":31}}`))
	target := pipeline.TargetRun{Facts: facts, Class: "openai", Elapsed: 2 * time.Second, First: 600 * time.Millisecond}
	target.Model, target.Usage = chat.Answered(c.Reply())
	w.Target(c, target)
	ran("model-retry", pipeline.Continue())
	c.Note(messages.NoteModelCache, "miss")
	if f != nil {
		c.Fail(f)
	}
	w.Left(c, pipeline.Ended)
}

func request(t testing.TB) *http.Request {
	t.Helper()
	return httptest.NewRequestWithContext(t.Context(), "POST", "/v1/tools", nil)
}

// What happens to calls is at /metrics, by the names of the conventions and by our own, and nothing of a call is.
func TestWhatHappensToCallsIsAtMetrics(t *testing.T) {
	t.Parallel()
	m := measured(t)
	run(m, modelCall("gpt-4o"), nil)
	run(m, modelCall("gpt-4o"), messages.NewFault(messages.DeadlineExceeded, "%s", secret))
	page := scrape(t, m)
	gen := []string{
		`gen_ai_operation_name="chat"`,
		`gen_ai_provider_name="openai"`,
		`gen_ai_request_model="gpt-4o"`,
		`server_address="api.example.com"`,
		`server_port="443"`,
	}
	for name, want := range map[string][]string{
		"gen_ai_client_operation_duration_seconds_count": append([]string{"2",
			`gen_ai_response_model="gpt-4o-2024"`}, gen...),
		"gen_ai_client_operation_duration_seconds_sum": append([]string{"2", `error_type="provider_limited"`}, gen...),
		"gen_ai_client_operation_time_to_first_chunk_seconds_sum": append([]string{"1",
			`gen_ai_response_model="gpt-4o-2024"`}, gen...),
		"gen_ai_client_operation_time_per_output_chunk_seconds_sum": append([]string{"0.1"}, gen...),
		"gen_ai_client_token_usage_sum": append([]string{"200", `gen_ai_token_type="input"`},
			gen...),
		"shallot_tokens_total":                {"62", `gen_ai_token_type="output"`},
		"shallot_calls_total":                 {"1", `kind="model"`, `outcome="deadline_exceeded"`},
		"shallot_call_duration_seconds_count": {"1", `outcome="ok"`},
		"shallot_calls_running":               {"0", `kind="model"`},
		"shallot_streams_open":                {"0", `kind="model"`},
		"shallot_retries_total":               {"2", `stage="model-retry"`},
		"shallot_redeliveries_total":          {"2", `kind="model"`},
		"shallot_cache_requests_total":        {"2", `result="miss"`},
		"shallot_stage_duration_seconds_count": {"2", `stage="model-retry"`,
			`phase="after"`, `verdict="Again"`},
		"shallot_target_wait_seconds_sum":          {"2", `class="openai"`, `outcome="provider_limited"`},
		"shallot_stream_first_chunk_seconds_count": {"2", `kind="model"`},
		"messaging_client_operation_duration_seconds_sum": {"0.008",
			`messaging_destination_template="shallot.v1.hop.model.after.model-retry"`, `messaging_system="nats"`},
		"messaging_process_duration_seconds_count":        {"4", `messaging_consumer_group_name="model-retry"`},
		"shallot_build_info":                              {"1", `version="1.2.3"`},
		"gen_ai_client_operation_duration_seconds_bucket": {"0", `le="1.28"`},
		"gen_ai_client_token_usage_bucket":                {"0", `le="64"`, `gen_ai_token_type="input"`},
	} {
		require.Equal(t, want[0], value(t, page, name, want[1:]...), name)
	}
	require.NotContains(t, page, secret)
	require.NotContains(t, page, "otel_scope")
}

// However many names callers and providers make up, the series stay few, and names that a provider answered to stay.
func TestNamesThatCallersMakeUpAreNoLabels(t *testing.T) {
	t.Parallel()
	m := measured(t)
	w := func(model, answered string, f *messages.Fault) {
		c := modelCall(model)
		w := m.Observer().Owns(c, pipeline.Ownership{})
		if c.Fault = f; f == nil {
			c.SetReply([]byte(`{"model":"` + answered + `"}`))
		}
		w.Target(
			c,
			pipeline.TargetRun{Model: answered, Class: "openai", Facts: messages.TargetRun{Provider: "openai",
				Model: model, Micros: 1}},
		)
		w.Left(c, pipeline.Ended)
	}
	for i := range 5000 {
		w(fmt.Sprintf("no-such-%d", i), "", messages.NewFault(messages.ModelNotFound, "no"))
	}
	w("gpt-4o", "gpt-4o", nil)
	page := scrape(t, m)
	require.NotContains(t, page, "no-such")
	value(t, page, "gen_ai_client_operation_duration_seconds_count", `gen_ai_request_model="_OTHER"`,
		`error_type="model_not_found"`)
	for i := range 5000 {
		w(fmt.Sprintf("any-%d", i), fmt.Sprintf("answer-%d", i), nil)
	}
	w("gpt-4o", "gpt-4o", messages.NewFault(messages.Code("made-up-"+secret), "x"))
	page = scrape(t, m)
	require.Less(t, strings.Count(page, "gen_ai_client_operation_duration_seconds_count"), 2*mostLabels)
	value(t, page, "gen_ai_client_operation_duration_seconds_count", `gen_ai_request_model="gpt-4o"`,
		`error_type="_OTHER"`)
	require.NotContains(t, page, secret)
}

// Requests are measured by route and status; a method that nobody knows is one label.
func TestRequestsAreMeasuredByRoute(t *testing.T) {
	t.Parallel()
	m := measured(t)
	for method, status := range map[string]int{"POST": 200, "GET": 503, "HACK": 405} {
		_, done := m.Request(httptest.NewRequestWithContext(t.Context(), method, "/v1/results/"+secret, nil))
		done("/v1/results/{call}", status)
	}
	page := scrape(t, m)
	const name = "http_server_request_duration_seconds_count"
	require.Equal(
		t,
		"1",
		value(t, page, name, `http_route="/v1/results/{call}"`, `http_response_status_code="200"`,
			`http_request_method="POST"`),
	)
	require.Equal(t, "1", value(t, page, name, `error_type="503"`))
	require.Equal(t, "1", value(t, page, name, `http_request_method="_OTHER"`))
	require.NotContains(t, page, secret)
}

// Nothing is measured, and nothing is made, for what nobody asked for.
func TestWhatIsOffCostsNothing(t *testing.T) {
	t.Parallel()
	for name, env := range map[string]map[string]string{
		"nothing set": {},
		"off":         {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
		"no exporter": {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none",
			"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
		"a protocol not there": {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
		"an exporter not there": {"OTEL_TRACES_EXPORTER": "zipkin", "OTEL_METRICS_EXPORTER": "console",
			"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, err := New(t.Context(), Options{Getenv: func(k string) string { return env[k] }})
			require.NoError(t, err)
			require.Nil(t, m.Observer())
			require.Nil(t, m.Page())
			require.Nil(t, m.Root())
			s := pipeline.Stage{Before: nil}
			require.Nil(t, m.Stage(s).Before)
			require.NoError(t, m.Close(t.Context()))
		})
	}
	var none *Telemetry
	require.Nil(t, none.Observer())
	require.False(t, none.Traces())
}

func BenchmarkCall(b *testing.B) {
	m := measured(b)
	c := modelCall("gpt-4o")
	c.SetReply([]byte(`{"model":"gpt-4o-2024","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":31}}`))
	phase := pipeline.PhaseRun{
		Report: pipeline.Report{Stage: "inner", Phase: messages.Before, Verdict: pipeline.Continue(), Member: "m"},
	}
	target := pipeline.TargetRun{
		Class: "openai",
		Facts: messages.TargetRun{Provider: "openai", Model: "gpt-4o", Micros: 1},
	}
	for b.Loop() {
		w := m.Observer().Owns(c, pipeline.Ownership{})
		for range 12 {
			w.Ran(c, phase)
		}
		w.Target(c, target)
		w.Left(c, pipeline.Ended)
	}
}
