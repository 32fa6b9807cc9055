package telemetry

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

var knownMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY"}

func methodOf(r *http.Request) string {
	if slices.Contains(knownMethods, r.Method) {
		return r.Method
	}
	return other
}

func statusText(status int) string { return strconv.Itoa(status) }

func schemeOf(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

// Request begins an HTTP request: what its handlers do is below its span, because they read the trace from the headers
// that it has from now on. done is to be called at its end, with the pattern of the route that matched, or none, and
// the status.
func (t *Telemetry) Request(r *http.Request) (ctx context.Context, done func(route string, status int)) {
	if !t.On() {
		return r.Context(), func(string, int) {}
	}
	begin := time.Now()
	ctx, span := t.requestSpan(r)
	return ctx, func(route string, status int) {
		method := methodOf(r)
		if t.meters != nil {
			t.meters.httpTime.record(time.Since(begin).Seconds(),
				t.meters.https.of(httpRun{method, route, schemeOf(r), status}))
		}
		if span == nil {
			return
		}
		if route != "" {
			span.SetName(method + " " + route)
			span.SetAttributes(httpRoute.String(route))
		}
		span.SetAttributes(httpStatus.Int(status))
		if status >= 500 {
			span.SetAttributes(errorType.String(statusText(status)))
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}

// requestSpan is nil where the request is not traced.
func (t *Telemetry) requestSpan(r *http.Request) (context.Context, trace.Span) {
	if t.tracer == nil {
		return r.Context(), nil
	}
	about := []attribute.KeyValue{
		httpMethod.String(methodOf(r)),
		urlPath.String(r.URL.Path),
		urlScheme.String(schemeOf(r)),
		protocolVer.String(strconv.Itoa(r.ProtoMajor) + "." + strconv.Itoa(r.ProtoMinor)),
	}
	if host, port, err := net.SplitHostPort(r.Host); err == nil {
		about = append(about, serverAddress.String(host))
		if n, err := strconv.Atoi(port); err == nil {
			about = append(about, serverPort.Int(n))
		}
	} else if r.Host != "" {
		about = append(about, serverAddress.String(r.Host))
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		about = append(about, clientAddress.String(host))
	}
	if agent := r.UserAgent(); agent != "" {
		about = append(about, userAgent.String(agent))
	}
	in := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := t.tracer.Start(in, methodOf(r), trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(about...))
	if !span.IsRecording() {
		return r.Context(), nil
	}
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(r.Header))
	return ctx, span
}
