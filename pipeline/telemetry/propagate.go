package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/shallot-nats/shallot/messages"
)

// carrier is a call's trace as the library reads it. Its names are lower-case, as in the standard and on the wire.
type carrier messages.Trace

// Get implements propagation.TextMapCarrier.
func (c *carrier) Get(key string) string {
	switch key {
	case "traceparent":
		return c.Parent
	case "tracestate":
		return c.State
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (c *carrier) Set(key, value string) {
	switch key {
	case "traceparent":
		c.Parent = value
	case "tracestate":
		c.State = value
	}
}

// Keys implements propagation.TextMapCarrier.
func (c *carrier) Keys() []string { return []string{"traceparent", "tracestate"} }

// under is a context below the trace.
func under(ctx context.Context, t messages.Trace) context.Context {
	return propagation.TraceContext{}.Extract(ctx, (*carrier)(&t))
}

// traceOf is the trace as those below a context have it.
func traceOf(ctx context.Context) (t messages.Trace) {
	propagation.TraceContext{}.Inject(ctx, (*carrier)(&t))
	return t
}

// spanOf reads the span that a trace context names.
func spanOf(parent string) trace.SpanContext {
	return trace.SpanContextFromContext(under(context.Background(), messages.Trace{Parent: parent}))
}

// sampled reports whether whoever began the trace records it.
func sampled(t messages.Trace) bool {
	if len(t.Parent) != len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01") {
		return false
	}
	switch t.Parent[len(t.Parent)-1] {
	case '1', '3', '5', '7', '9', 'b', 'd', 'f':
		return true
	}
	return false
}
