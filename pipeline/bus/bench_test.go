package bus_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"

	"github.com/shallot-nats/shallot/messages"
)

func benchStages(n int) []pipeline.Stage {
	var out []pipeline.Stage
	for i := range n {
		s := through(fmt.Sprintf("s%d", i), 10+i)
		out = append(out, s)
	}
	return out
}

func bodyOf(size int) []byte {
	return rawjson.SetFieldString([]byte(chatBody), "pad", strings.Repeat("x", size))
}

// benchNode is all in one process.
func benchNode(b *testing.B, fused bool, stages []pipeline.Stage) pipeline.Entry {
	w := newWorld(b, bus.Config{Fusion: fused})
	return w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(b, stages...)})
}

func benchCall(b *testing.B, n pipeline.Entry, body []byte) {
	r := chatRequest()
	r.Body = body
	p, err := n.Accept(b.Context(), r)
	if err != nil {
		b.Error(err)
		return
	}
	if c, err := p.Wait(b.Context(), nil); err != nil || c.Fault != nil {
		b.Error(err, c)
	}
}

// BenchmarkCall is a whole call, one at a time and by 64 callers at once.
func BenchmarkCall(b *testing.B) {
	for _, stages := range []int{0, 4, 8} {
		for _, fused := range []bool{true, false} {
			n := benchNode(b, fused, benchStages(stages))
			at := fmt.Sprintf("stages=%d/fused=%t", stages, fused)
			b.Run(at+"/one", func(b *testing.B) {
				body := bodyOf(2 << 10)
				b.ReportAllocs()
				for b.Loop() {
					benchCall(b, n, body)
				}
			})
			b.Run(at+"/many", func(b *testing.B) {
				body := bodyOf(2 << 10)
				b.ReportAllocs()
				b.SetParallelism(32)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						benchCall(b, n, body)
					}
				})
			})
		}
	}
}

// BenchmarkBody is a call with a large body that no stage reads.
func BenchmarkBody(b *testing.B) {
	for _, kb := range []int{2, 256} {
		for _, fused := range []bool{true, false} {
			n := benchNode(b, fused, benchStages(4))
			b.Run(fmt.Sprintf("%dKB/fused=%t", kb, fused), func(b *testing.B) {
				body := bodyOf(kb << 10)
				b.ReportAllocs()
				for b.Loop() {
					benchCall(b, n, body)
				}
			})
		}
	}
}

// BenchmarkCallBesideAFullClass is a call of one class while ten thousand calls wait for another one, whose workers
// hang, and the same without them (BU-3).
func BenchmarkCallBesideAFullClass(b *testing.B) {
	for _, fused := range []bool{true, false} {
		for _, waiting := range []int{0, 10_000} {
			b.Run(fmt.Sprintf("fused=%t/waiting=%d", fused, waiting), func(b *testing.B) {
				w := newWorld(b, bus.Config{Fusion: fused, MaxQueueWait: time.Hour, ModelClasses: []string{"full", "default"}})
				targets := append(roles(pipeline.TargetFunc(echo)),
					bus.TargetRole{Kind: messages.Model, Class: "full", Target: pipeline.TargetFunc(until)})
				n := w.node(bus.Options{Entry: true, Targets: targets, Manager: manager(b, benchStages(4)...),
					Classify: func(c *messages.Call) (string, error) {
						if c.Tenant == "full" {
							return "full", nil
						}
						return "default", nil
					}})
				for range waiting {
					r := ofTenant("full")
					r.Deadline = time.Now().Add(10 * time.Minute)
					p, err := n.Accept(b.Context(), r)
					require.NoError(b, err)
					defer p.Leave()
				}
				load(b, n, func(c bus.Capacity) bool { return c.Class == "full" && c.Waiting+c.Away == waiting })
				body := bodyOf(2 << 10)
				b.ReportAllocs()
				for b.Loop() {
					benchCall(b, n, body)
				}
			})
		}
	}
}
