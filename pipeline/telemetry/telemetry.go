// Package telemetry turns what the pipeline tells into metrics and traces: OpenTelemetry's, by the conventions for
// generative AI, MCP, messaging and HTTP, and metrics of our own that begin with shallot_. Prometheus reads the metrics
// at /metrics; both go to a collector by OTLP where the usual variables OTEL_* name one.
//
// No prompt, no key and no id is a label. Spans have ids, and texts only where that is configured.
package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Options say what is measured and where it goes.
type Options struct {
	Service string // the name of the service, unless OTEL_SERVICE_NAME names it
	Version string
	Name    string // of this process
	Root    string // of all subjects
	// Metrics says that /metrics is served.
	Metrics bool
	// Prompts puts the texts of requests and replies into spans.
	Prompts bool
	// Getenv reads the variables OTEL_*; the exporters read those of their own from the environment of the process.
	Getenv func(string) string
	// Server returns where a provider is reached; nil, or an empty host: it is not said.
	Server func(provider string) (host string, port int)
	Log    *slog.Logger
}

// Telemetry measures. The zero value, and nil, measure nothing. It is safe for concurrent use.
type Telemetry struct {
	opts    Options
	meters  *instruments // nil: no metrics
	tracer  trace.Tracer // nil: no traces
	page    http.Handler
	metrics *sdkmetric.MeterProvider
	traces  *sdktrace.TracerProvider
}

const scope = "github.com/shallot-nats/shallot"

// New begins to measure. Nothing is done, and nothing costs, for what is not asked for: without /metrics and without a
// collector it returns a Telemetry that measures nothing.
func New(ctx context.Context, o Options) (*Telemetry, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Getenv == nil {
		o.Getenv = func(string) string { return "" }
	}
	t := &Telemetry{opts: o}
	to := o.collector()
	if !o.Metrics && !to.metrics && !to.traces {
		return t, nil
	}
	res, err := o.resource(ctx)
	if err != nil {
		return t, err
	}
	if err := t.startMetrics(ctx, res, to); err != nil {
		return t, err
	}
	if to.traces {
		exporter, err := otlptracehttp.New(ctx)
		if err != nil {
			return t, fmt.Errorf("telemetry: traces: %w", err)
		}
		t.traces = sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
		t.tracer = t.traces.Tracer(scope, trace.WithInstrumentationVersion(o.Version))
	}
	return t, nil
}

func (t *Telemetry) startMetrics(ctx context.Context, res *resource.Resource, to collector) error {
	if !t.opts.Metrics && !to.metrics {
		return nil
	}
	set := []sdkmetric.Option{sdkmetric.WithResource(res), sdkmetric.WithCardinalityLimit(mostSeries)}
	var own *tables
	if !to.metrics {
		own = &tables{scope: instrumentation.Scope{Name: scope, Version: t.opts.Version}}
	}
	if t.opts.Metrics {
		registry := prometheus.NewRegistry()
		registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		how := []otelprom.Option{otelprom.WithRegisterer(registry), otelprom.WithoutScopeInfo()}
		if own != nil {
			how = append(how, otelprom.WithProducer(own))
		}
		reader, err := otelprom.New(how...)
		if err != nil {
			return fmt.Errorf("telemetry: /metrics: %w", err)
		}
		set = append(set, sdkmetric.WithReader(reader))
		t.page = promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
	}
	if to.metrics {
		exporter, err := otlpmetrichttp.New(ctx)
		if err != nil {
			return fmt.Errorf("telemetry: metrics: %w", err)
		}
		set = append(set, sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter)))
	}
	t.metrics = sdkmetric.NewMeterProvider(set...)
	var err error
	t.meters, err = newInstruments(t.metrics.Meter(scope, meterVersion(t.opts.Version)), own, t.opts)
	return err
}

// mostSeries bounds the series of one metric in the library too; see [series].
const mostSeries = 4000

// collector says what goes to a collector.
type collector struct{ metrics, traces bool }

// collector reads the variables that say so: an endpoint turns a signal on, OTEL_SDK_DISABLED all off, and an exporter
// other than otlp the signal.
func (o Options) collector() (c collector) {
	if strings.EqualFold(o.Getenv("OTEL_SDK_DISABLED"), "true") {
		return c
	}
	return collector{metrics: o.exports("METRICS"), traces: o.exports("TRACES")}
}

func (o Options) exports(signal string) bool {
	exporter := o.Getenv("OTEL_" + signal + "_EXPORTER")
	endpoint := cmp.Or(o.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT"), o.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	switch exporter {
	case "otlp":
	case "":
		if endpoint == "" {
			return false
		}
	case "none":
		return false
	default:
		o.Log.Warn("this exporter is not built in; known: otlp, none", "variable", "OTEL_"+signal+"_EXPORTER", "value",
			exporter)
		return false
	}
	protocol := cmp.Or(o.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_PROTOCOL"), o.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"))
	if protocol != "" && protocol != "http/protobuf" {
		o.Log.Warn("this protocol is not built in, so nothing is exported; set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, "+
			"and the port of the collector for it (4318)", "signal", strings.ToLower(signal), "protocol", protocol)
		return false
	}
	return true
}

func (o Options) resource(ctx context.Context) (*resource.Resource, error) {
	r, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.namespace", "shallot"), attribute.String("service.name", o.Service),
		attribute.String("service.version", o.Version), attribute.String("service.instance.id", o.Name)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if errors.Is(err, resource.ErrPartialResource) || errors.Is(err, resource.ErrSchemaURLConflict) {
		return r, nil
	}
	return r, err
}

// Close sends what is left to the collector, as long as ctx lasts.
func (t *Telemetry) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	limit, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var err error
	if t.traces != nil {
		err = t.traces.Shutdown(limit)
	}
	if t.metrics != nil {
		err = errors.Join(err, t.metrics.Shutdown(limit))
	}
	return err
}

// Page serves /metrics; nil where that is off.
func (t *Telemetry) Page() http.Handler {
	if t == nil {
		return nil
	}
	return t.page
}

// Traces reports whether spans are made.
func (t *Telemetry) Traces() bool { return t != nil && t.tracer != nil }

// On reports whether anything is measured.
func (t *Telemetry) On() bool { return t != nil && (t.tracer != nil || t.meters != nil) }
