package telemetry

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/shallot-nats/shallot/messages"
)

// A request of an MCP client has a span of the conventions between whoever asked and what is done for it.
func TestARequestOfAnMCPClientHasASpan(t *testing.T) {
	t.Parallel()
	m, spans := traced(t, false, sdktrace.AlwaysSample())
	caller := messages.Trace{Parent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", State: "a=b"}
	below, done := m.Served("tools/call", caller)
	require.NotEqual(t, caller.Parent, below.Parent)
	require.Equal(t, "a=b", below.State)
	done("add", "tool_error")
	s := spans.GetSpans()[0]
	require.Equal(t, "tools/call add", s.Name)
	require.Equal(t, trace.SpanKindServer, s.SpanKind)
	require.Equal(t, "b7ad6b7169203331", s.Parent.SpanID().String())
	require.Contains(t, below.Parent, s.SpanContext.SpanID().String())
	got := attributes(s)
	require.Equal(t, []any{"tools/call", "add", "execute_tool", "tool_error"},
		[]any{got[mcpMethod], got[genAIToolName], got[genAIOperation], got[errorType]})
	require.Equal(t, codes.Error, s.Status.Code)

	spans.Reset()
	below, done = m.Served("notifications/initialized", caller)
	done("", "")
	require.Equal(t, caller, below)
	require.Empty(t, spans.GetSpans(), "only requests have spans")

	below, done = m.Served("tools/list", messages.Trace{})
	done("", "")
	require.False(t, spans.GetSpans()[0].Parent.IsValid(), "without a caller's trace it is the root")
	require.NotEmpty(t, below.Parent)

	m, spans = traced(t, false, sdktrace.NeverSample())
	below, done = m.Served("tools/list", messages.Trace{})
	done("", "")
	require.Empty(t, below)
	require.Empty(t, spans.GetSpans())

	var off *Telemetry
	below, done = off.Served("tools/call", caller)
	done("add", "")
	require.Equal(t, caller, below)
}
