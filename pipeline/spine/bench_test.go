package spine_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/spine"

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

// entries are the two buses with the same stages and target, all in one process.
func entries(b *testing.B, fused bool, stages []pipeline.Stage) map[string]pipeline.Entry {
	w := newWorld(b, spine.Config{Fusion: fused})
	return map[string]pipeline.Entry{
		"spine": w.node(spine.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(b, stages...)}),
		"bus":   oldBus(b, fused, stages),
	}
}

// oldBus is a node of the bus that this one replaces, on a server of its own.
func oldBus(b *testing.B, fused bool, stages []pipeline.Stage) *bus.Node {
	b.Helper()
	dir, err := os.MkdirTemp(scratch, "old-")
	require.NoError(b, err)
	srv, err := embed.Start(embed.Options{Dir: dir, Sync: time.Minute})
	require.NoError(b, err)
	nc, err := jet.Connect(jet.ConnOptions{Name: b.Name(), InProcess: srv})
	require.NoError(b, err)
	js, err := jetstream.New(nc)
	require.NoError(b, err)
	cfg := bus.Config{Fusion: fused, ModelClasses: []string{"default"}}
	require.NoError(b, bus.Provision(b.Context(), js, cfg))
	n, err := bus.New(b.Context(), bus.Options{Config: cfg, Conn: nc, Entry: true, Manager: manager(b, stages...),
		Targets: []bus.TargetRole{{Kind: messages.Model, Class: "default", Target: pipeline.TargetFunc(echo)}}})
	require.NoError(b, err)
	require.NoError(b, n.Start(context.WithoutCancel(b.Context())))
	b.Cleanup(func() {
		afterTests.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			_ = n.Stop(ctx)
			nc.Close()
			srv.Stop()
		})
	})
	return n
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

// BenchmarkCall is a whole call, one at a time and by 64 callers at once, on this bus and on the one that it replaces.
func BenchmarkCall(b *testing.B) {
	for _, stages := range []int{0, 4, 8} {
		for _, fused := range []bool{true, false} {
			all := entries(b, fused, benchStages(stages))
			for _, name := range []string{"spine", "bus"} {
				at := fmt.Sprintf("stages=%d/fused=%t/%s", stages, fused, name)
				b.Run(at+"/one", func(b *testing.B) {
					body := bodyOf(2 << 10)
					b.ReportAllocs()
					for b.Loop() {
						benchCall(b, all[name], body)
					}
				})
				b.Run(at+"/many", func(b *testing.B) {
					body := bodyOf(2 << 10)
					b.ReportAllocs()
					b.SetParallelism(32)
					b.RunParallel(func(pb *testing.PB) {
						for pb.Next() {
							benchCall(b, all[name], body)
						}
					})
				})
			}
		}
	}
}

// BenchmarkBody is a call with a large body that no stage reads.
func BenchmarkBody(b *testing.B) {
	for _, kb := range []int{2, 256} {
		for _, fused := range []bool{true, false} {
			all := entries(b, fused, benchStages(4))
			for _, name := range []string{"spine", "bus"} {
				b.Run(fmt.Sprintf("%dKB/fused=%t/%s", kb, fused, name), func(b *testing.B) {
					body := bodyOf(kb << 10)
					b.ReportAllocs()
					for b.Loop() {
						benchCall(b, all[name], body)
					}
				})
			}
		}
	}
}

// BenchmarkCallBesideAFullClass is a call of one class while ten thousand calls wait for another one, whose workers hang,
// and the same without them (BU-3).
func BenchmarkCallBesideAFullClass(b *testing.B) {
	for _, fused := range []bool{true, false} {
		for _, waiting := range []int{0, 10_000} {
			b.Run(fmt.Sprintf("fused=%t/waiting=%d", fused, waiting), func(b *testing.B) {
				w := newWorld(b, spine.Config{Fusion: fused, MaxQueueWait: time.Hour, ModelClasses: []string{"full", "default"}})
				targets := append(roles(pipeline.TargetFunc(echo)),
					spine.TargetRole{Kind: messages.Model, Class: "full", Target: pipeline.TargetFunc(until)})
				n := w.node(spine.Options{Entry: true, Targets: targets, Manager: manager(b, benchStages(4)...),
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
				load(b, n, func(c spine.Capacity) bool { return c.Class == "full" && c.Waiting+c.Away == waiting })
				body := bodyOf(2 << 10)
				b.ReportAllocs()
				for b.Loop() {
					benchCall(b, n, body)
				}
			})
		}
	}
}
