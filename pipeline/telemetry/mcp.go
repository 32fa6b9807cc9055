package telemetry

import (
	"slices"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/shallot-nats/shallot/messages"
)

// mcpMethods are the requests of MCP clients.
var mcpMethods = []string{
	"completion/complete",
	"initialize",
	"logging/setLevel",
	"ping",
	"prompts/get",
	"prompts/list",
	"resources/list",
	"resources/read",
	"resources/subscribe",
	"resources/templates/list",
	"resources/unsubscribe",
	"server/discover",
	"subscriptions/listen",
	"tools/call",
	"tools/list",
	"tasks/get",
	"tasks/list",
	"tasks/cancel",
	"tasks/result",
	"tasks/update",
}

// Served begins a request of an MCP client, whose trace may be empty. What is done for it belongs below the trace that
// is returned. done is to be called at its end with the tool that it called, if there is such a tool, and why it
// failed.
func (t *Telemetry) Served(method string, caller messages.Trace) (
	below messages.Trace, done func(tool, fault string)) {
	if !t.On() {
		return caller, func(string, string) {}
	}
	begin, known := time.Now(), slices.Contains(mcpMethods, method)
	if !known {
		method = other
	}
	var span trace.Span
	below = caller
	if t.tracer != nil && known {
		below, span = t.mcpSpan(method, caller)
	}
	return below, func(tool, fault string) {
		if t.meters != nil {
			t.meters.mcpServed.record(time.Since(begin).Seconds(), t.meters.tools.of(toolRun{method, tool, fault}))
		}
		if span != nil {
			endMCP(span, method, tool, fault)
		}
	}
}

// mcpSpan begins the span of a request. It is nil where the request is not traced.
func (t *Telemetry) mcpSpan(method string, caller messages.Trace) (messages.Trace, trace.Span) {
	ctx, span := t.tracer.Start(under(background, caller), method, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(mcpMethod.String(method)))
	if !span.IsRecording() {
		return caller, nil
	}
	return traceOf(ctx), span
}

func endMCP(span trace.Span, method, tool, fault string) {
	if tool != "" {
		span.SetName(method + " " + tool)
		span.SetAttributes(genAIToolName.String(tool), genAIOperation.String("execute_tool"))
	}
	if fault != "" {
		span.SetAttributes(errorType.String(fault))
		span.SetStatus(codes.Error, "")
	}
	span.End()
}
