package bus_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

func benchStages(n int) []pipeline.Stage {
	var out []pipeline.Stage
	for i := range n {
		out = append(out, through(fmt.Sprintf("s%d", i), 10+i))
	}
	return out
}

func benchCalls(b *testing.B, n *bus.Node, body []byte) {
	b.Helper()
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		r := chatRequest()
		r.Body = body
		p, err := n.Accept(b.Context(), r)
		require.NoError(b, err)
		c, err := p.Wait(b.Context(), nil)
		require.NoError(b, err)
		require.Nil(b, c.Fault)
	}
}

func bodyOf(size int) []byte {
	return rawjson.SetFieldString([]byte(chatBody), "pad", strings.Repeat("x", size))
}

// BenchmarkHop is one hop: what one stage phase more costs, in this process and on the embedded bus.
func BenchmarkHop(b *testing.B) {
	b.Run("in process", func(b *testing.B) {
		const phases = 32
		local := pipeline.Local{Stages: benchStages(phases / 2), Target: pipeline.TargetFunc(echo)}
		for b.Loop() {
			c, err := local.Call(context.Background(), messages.NewCall(messages.Model, "default", []byte(chatBody)))
			if err != nil || c.Fault != nil {
				b.Fatal(err, c.Fault)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/phases, "ns/hop")
	})
	b.Run("embedded bus", func(b *testing.B) {
		const phases = 64
		w := newWorld(b, bus.Config{})
		n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(b, benchStages(phases/2)...)})
		b.ResetTimer()
		benchCalls(b, n, bodyOf(2<<10))
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/phases, "ns/hop")
	})
}

// BenchmarkCall is a whole call on the embedded bus, one at a time, by number of stages (two hops each) and body size.
func BenchmarkCall(b *testing.B) {
	for _, stages := range []int{0, 4, 8, 16} {
		for _, fused := range []bool{false, true} {
			b.Run(fmt.Sprintf("stages=%d/fused=%t", stages, fused), func(b *testing.B) {
				w := newWorld(b, bus.Config{Fusion: fused})
				n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(b, benchStages(stages)...)})
				b.ResetTimer()
				benchCalls(b, n, bodyOf(2<<10))
			})
		}
	}
	for _, kb := range []int{2, 32, 256, 2048} {
		b.Run(fmt.Sprintf("stages=4/body=%dKB", kb), func(b *testing.B) {
			w := newWorld(b, bus.Config{})
			n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(b, benchStages(4)...)})
			b.ResetTimer()
			benchCalls(b, n, bodyOf(kb<<10))
		})
	}
}

// BenchmarkCallsAtOnce is throughput: 64 callers at once, 8 stages.
func BenchmarkCallsAtOnce(b *testing.B) {
	w := newWorld(b, bus.Config{})
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(b, benchStages(8)...)})
	body := bodyOf(2 << 10)
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r := chatRequest()
			r.Body = body
			p, err := n.Accept(b.Context(), r)
			if err != nil {
				b.Error(err)
				return
			}
			if c, err := p.Wait(b.Context(), nil); err != nil || c.Fault != nil {
				b.Error(err)
				return
			}
		}
	})
}
