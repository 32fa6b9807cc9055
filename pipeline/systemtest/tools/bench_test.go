package tools_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shallot-nats/shallot/pipeline/host"
)

// BenchmarkToolCall is one tool call through the whole chain on the embedded bus.
func BenchmarkToolCall(b *testing.B) {
	for name, yaml := range map[string]string{"spread": "", "fused": "bus: {fusion: true}\n"} {
		b.Run(name, func(b *testing.B) {
			h := toolHost(b, yaml)
			for _, many := range []int{1, 64} {
				b.Run(fmt.Sprintf("hit/callers=%d", many), func(b *testing.B) { benchCalls(b, h, many, `{"a":1,"b":2}`) })
				b.Run(fmt.Sprintf("miss/callers=%d", many), func(b *testing.B) { benchCalls(b, h, many, "") })
			}
		})
	}
}

// nonce makes the arguments of a miss new over all runs of a benchmark.
var nonce atomic.Int64

// benchCalls makes b.N calls; without args each has others, so that the cache has none of them.
func benchCalls(b *testing.B, h *host.Host, atOnce int, args string) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for range atOnce {
		wg.Go(func() {
			for n := left.Add(-1); n >= 0; n = left.Add(-1) {
				body := args
				if body == "" {
					body = fmt.Sprintf(`{"a":%d,"b":%d}`, n, nonce.Add(1))
				}
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				m, err := h.Conn.RequestWithContext(ctx, "shallot.v1.tool.request.add", []byte(body))
				cancel()
				if err != nil || !strings.HasPrefix(string(m.Data), `{"sum":`) {
					b.Errorf("call failed: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}
