//go:build unix

package host_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// BenchmarkSeen is what it costs that calls are told of, measured and traced: a call of the demonstration model in a
// session, so through the whole default chain, with nothing of it, with the defaults, and with every call traced.
func BenchmarkSeen(b *testing.B) {
	sink := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer sink.Close()
	off := map[string]string{
		"explain.keep":      "0s",
		"explain.changes":   "false",
		"explain.sample":    "0",
		"telemetry.metrics": "false",
	}
	for _, fused := range []string{"false", "true"} {
		for _, c := range []struct {
			name   string
			flags  map[string]string
			traced string
		}{{"nothing", off, ""}, {"defaults", nil, ""}, {"traced", nil, sink.URL}} {
			b.Run("fused="+fused+"/"+c.name, func(b *testing.B) {
				b.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.traced)
				b.Setenv("OTEL_METRICS_EXPORTER", "none")
				flags := map[string]string{"bus.fusion": fused, "nats.embedded.port": "0", "nats.embedded.data": b.TempDir()}
				for k, v := range c.flags {
					flags[k] = v
				}
				l, err := host.Load("", nil, flags)
				require.NoError(b, err)
				h, err := host.Start(b.Context(),
					host.Options{Config: l, Roles: host.Everything(), Name: b.Name(), Drain: time.Second})
				require.NoError(b, err)
				defer func() {
					ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
					defer cancel()
					_ = h.Stop(ctx)
				}()
				b.SetParallelism(16)
				before := cpu(b)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						p, err := h.Entry().Accept(b.Context(), pipeline.Request{Kind: messages.Model, Session: "s1",
							Body: []byte(`{"model":"demo/echo","messages":[{"role":"user","content":"hello"}]}`)})
						if err != nil {
							b.Error(err)
							return
						}
						if end, err := p.Wait(b.Context(), nil); err != nil || end.Fault != nil {
							b.Error(err, end)
						}
					}
				})
				b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
			})
		}
	}
}

// cpu is the processor time that this process has used, whatever else the machine does.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
