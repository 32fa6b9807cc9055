package telemetry

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// traced is a Telemetry whose spans stay here.
func traced(t *testing.T, prompts bool, sampler sdktrace.Sampler) (*Telemetry, *tracetest.InMemoryExporter) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	m := &Telemetry{opts: Options{Prompts: prompts, Server: func(string) (string, int) { return "api.example.com", 443 }}}
	m.traces = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans), sdktrace.WithSampler(sdktrace.ParentBased(sampler)))
	m.tracer = m.traces.Tracer(scope)
	return m, spans
}

// installation is an owner, a process with the stages, and one with the target.
func installation(t *testing.T, m *Telemetry, target pipeline.TargetFunc, stages ...pipeline.Stage) *bus.Node {
	t.Helper()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	cfg := bus.Config{ModelClasses: []string{"openai"}, ToolClasses: []string{"go"}}
	start := func(o bus.Options) *bus.Node {
		nc, err := jet.Connect(jet.ConnOptions{Name: t.Name(), InProcess: srv, Direct: true})
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc)
		require.NoError(t, err)
		require.NoError(t, bus.Provision(t.Context(), js, cfg))
		o.Config, o.Conn, o.Manager = cfg, nc, &pipeline.Manager{}
		for _, s := range stages {
			require.NoError(t, o.Manager.Register(m.Stage(s), true))
		}
		o.Classify = func(*messages.Call) (string, error) { return "openai", nil }
		n, err := bus.New(t.Context(), o)
		require.NoError(t, err)
		require.NoError(t, n.Start(context.WithoutCancel(t.Context())))
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_ = n.Stop(ctx)
		})
		return n
	}
	nobody := func(pipeline.Stage) bool { return false }
	owner := start(bus.Options{Entry: true, Hosts: nobody, Observer: m.Observer(), Root: m.Root()})
	start(bus.Options{})
	start(bus.Options{Hosts: nobody, Targets: []bus.TargetRole{
		{Kind: messages.Model, Class: "openai", Target: m.Target(messages.Model, "openai", target)}}})
	return owner
}

// retrying asks for one more attempt after a fault.
func retrying() pipeline.Stage {
	pass := func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }
	return pipeline.Stage{
		Name:   "retry",
		Kind:   messages.Model,
		Order:  50,
		Keep:   true,
		Reads:  []string{"reply"},
		Before: pass,
		After: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			if c.Fault != nil && c.Attempt() == 1 {
				return pipeline.Again(0), nil
			}
			return pipeline.Continue(), nil
		},
	}
}

func failsOnce(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
	if c.Slip.Tries == 1 {
		f := messages.NewFault(messages.ProviderLimited, "slow down, %s", secret)
		f.Detail = secret
		return f
	}
	c.Note(messages.NoteTargetRun, messages.TargetRun{Provider: "openai", Model: "gpt-4o", FirstMicros: 250_000})
	c.SetReply(
		[]byte(
			`{"id":"r1","model":"gpt-4o-2024","choices":[{"finish_reason":"stop","message":{"role":"assistant","content":"` +
				secret + `"}}],"usage":{"prompt_tokens":100,"completion_tokens":31,"prompt_tokens_details":{"cached_tokens":64}}}`,
		),
	)
	return nil
}

func ended(t *testing.T, n *bus.Node, r pipeline.Request) *messages.Call {
	t.Helper()
	r.Kind, r.Deadline = messages.Model, time.Now().Add(55*time.Second)
	r.Body = []byte(
		`{"model":"gpt-4o","temperature":0.5,"max_tokens":9,"messages":[{"role":"user","content":"` + secret + `"}]}`,
	)
	p, err := n.Accept(t.Context(), r)
	require.NoError(t, err)
	end, err := p.Wait(t.Context(), nil)
	require.NoError(t, err)
	return end
}

// tree waits for so many spans and returns them as lines, each indented below its parent; all must be of one trace.
func tree(t *testing.T, spans *tracetest.InMemoryExporter, n int) (lines []string, by map[string]tracetest.SpanStub) {
	t.Helper()
	require.Eventually(t, func() bool { return len(spans.GetSpans()) >= n }, 30*time.Second, time.Millisecond, "%d spans",
		n)
	all := spans.GetSpans()
	require.Len(t, all, n)
	slices.SortFunc(all, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	by = map[string]tracetest.SpanStub{}
	var walk func(parent trace.SpanID, depth int)
	walk = func(parent trace.SpanID, depth int) {
		for _, s := range all {
			if s.Parent.SpanID() == parent {
				name := s.Name
				for by[name].Name != "" {
					name += "+"
				}
				by[name] = s
				lines = append(lines, strings.Repeat("  ", depth)+s.SpanKind.String()+" "+s.Name)
				walk(s.SpanContext.SpanID(), depth+1)
			}
			require.Equal(t, all[0].SpanContext.TraceID(), s.SpanContext.TraceID())
		}
	}
	walk(trace.SpanID{}, 0)
	require.Len(t, lines, n, "all hang below one root:\n%s", strings.Join(lines, "\n"))
	return lines, by
}

func attributes(s tracetest.SpanStub) map[attribute.Key]any {
	out := map[attribute.Key]any{}
	for _, a := range s.Attributes {
		out[a.Key] = a.Value.AsInterface()
	}
	return out
}

// One call is one tree: the request, the call below it, and below that each phase and each run of the target, where a
// further run links to the one before.
func TestOneCallIsOneTree(t *testing.T) {
	t.Parallel()
	m, spans := traced(t, false, sdktrace.AlwaysSample())
	n := installation(t, m, failsOnce, retrying())
	for name, key := range map[string]string{"bound": "", "stored": "k1"} {
		t.Run(name, func(t *testing.T) {
			spans.Reset()
			r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/chat/completions", nil)
			_, done := m.Request(r)
			end := ended(t, n, pipeline.Request{Tenant: "acme", Session: "s1", IdempotencyKey: key,
				Trace: messages.Trace{Parent: r.Header.Get("traceparent")}})
			require.Nil(t, end.Fault)
			done("/v1/chat/completions", 200)
			lines, by := tree(t, spans, 7)
			kind := map[string]string{"bound": "internal", "stored": "consumer"}[name]
			require.Equal(t, []string{"server POST /v1/chat/completions", "  " + kind + " call model",
				"    consumer process shallot.v1.hop.model.before.retry", "    client chat gpt-4o",
				"    consumer process shallot.v1.hop.model.after.retry", "    client chat gpt-4o",
				"    consumer process shallot.v1.hop.model.after.retry"}, lines)
			first, second := by["chat gpt-4o"], by["chat gpt-4o+"]
			require.Equal(t, "provider_limited", attributes(first)[errorType])
			require.Equal(t, first.SpanContext.SpanID(), second.Links[0].SpanContext.SpanID())
			got := attributes(second)
			for key, want := range map[attribute.Key]any{
				genAIOperation: "chat", genAIProvider: "openai", genAIRequestModel: "gpt-4o",
				genAITemperature: 0.5, genAIMaxTokens: int64(9), genAIResponseModel: "gpt-4o-2024", genAIResponseID: "r1",
				genAIFinish: []string{"stop"}, genAIInput: int64(100), genAIOutput: int64(31), genAICacheRead: int64(64),
				genAIFirst: 0.25, genAIConversation: "s1", serverAddress: "api.example.com", serverPort: int64(443)} {
				require.Equal(t, want, got[key], key)
			}
			require.Equal(
				t,
				[]any{end.ID, "acme", int64(2)},
				[]any{
					attributes(by["call model"])[callKey],
					attributes(by["call model"])[tenantKey],
					attributes(by["call model"])[attempts],
				},
			)
			for _, s := range by {
				for k, v := range attributes(s) {
					require.NotContains(t, fmt.Sprint(v), secret, "%s of %s", k, s.Name)
				}
				require.NotContains(t, s.Status.Description, secret)
			}
		})
	}
}

// A call whose caller traces nothing has a root of its own, and whoever says that a trace is not recorded is heard.
func TestACallWithoutATraceHasARootOfItsOwn(t *testing.T) {
	t.Parallel()
	m, spans := traced(t, true, sdktrace.AlwaysSample())
	n := installation(t, m, failsOnce)
	ended(t, n, pipeline.Request{})
	lines, by := tree(t, spans, 3)
	require.Equal(t, []string{"producer accept model", "  internal call model", "    client chat gpt-4o"}, lines)
	require.JSONEq(t, `[{"role":"user","parts":[{"type":"text","content":"`+secret+`"}]}]`,
		attributes(by["chat gpt-4o"])[genAIInputText].(string), "texts are in spans where that is configured")
	spans.Reset()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	ended(t, n, pipeline.Request{Trace: messages.Trace{Parent: parent}})
	require.Empty(t, spans.GetSpans())
}

// What a span says of a tool is by the conventions, for tools of MCP servers too.
func TestToolsHaveSpansOfTheirOwn(t *testing.T) {
	t.Parallel()
	m, spans := traced(t, true, sdktrace.AlwaysSample())
	target := m.Target(
		messages.Tool,
		"mcp-files",
		pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
			c.Note(messages.NoteIsError, true)
			c.SetReply([]byte(`"no such file"`))
			return nil
		}),
	)
	c := messages.NewCall(messages.Tool, "acme", []byte(`{"path":"x"}`))
	c.Tool, c.Trace.Parent = "read_file", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	require.NoError(t, target.Do(t.Context(), c, nil))
	s := spans.GetSpans()[0]
	require.Equal(t, "execute_tool read_file", s.Name)
	require.Equal(t, trace.SpanKindClient, s.SpanKind)
	got := attributes(s)
	require.Equal(
		t,
		[]any{"execute_tool", "read_file", "tools/call", "tool_error", `{"path":"x"}`, `"no such file"`},
		[]any{
			got[genAIOperation],
			got[genAIToolName],
			got[mcpMethod],
			got[errorType],
			got[genAIToolArguments],
			got[genAIToolResult],
		},
	)
	require.Equal(t, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", c.Trace.Parent,
		"the call's own trace stays")
}
