package host_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// benchHost runs everything in this process, with an embedded server that listens nowhere.
func benchHost(t testing.TB, flags map[string]string) *host.Host {
	t.Helper()
	all := map[string]string{"nats.embedded.port": "0", "nats.embedded.data": t.TempDir()}
	for k, v := range flags {
		all[k] = v
	}
	l, err := host.Load("", nil, all)
	require.NoError(t, err)
	h, err := host.Start(t.Context(), host.Options{Config: l, Roles: host.Everything(), Name: t.Name(), Drain: time.Second,
		Getenv: func(string) string { return "" }})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = h.Stop(ctx)
	})
	return h
}

// BenchmarkWholeCall is a call of the demonstration model through the default chain, spread and fused, alone and with
// many callers.
func BenchmarkWholeCall(b *testing.B) {
	for _, fused := range []string{"false", "true"} {
		for _, callers := range []int{1, 32} {
			b.Run("fused="+fused+"/callers="+map[int]string{1: "1", 32: "32"}[callers], func(b *testing.B) {
				h := benchHost(b, map[string]string{"bus.fusion": fused})
				b.SetParallelism(callers)
				run := func() {
					p, err := h.Entry().Accept(b.Context(), pipeline.Request{Kind: messages.Model,
						Body: []byte(`{"model":"demo/echo","messages":[{"role":"user","content":"hello"}]}`)})
					if err != nil {
						b.Error(err)
						return
					}
					if c, err := p.Wait(b.Context(), nil); err != nil || c.Fault != nil {
						b.Error(err, c)
					}
				}
				b.ReportAllocs()
				if callers == 1 {
					for b.Loop() {
						run()
					}
					return
				}
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						run()
					}
				})
			})
		}
	}
}
