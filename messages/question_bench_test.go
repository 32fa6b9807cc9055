package messages_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

func BenchmarkQuestion(b *testing.B) {
	for _, size := range []int{2 << 10, 256 << 10} {
		c := underway(size)
		for name, carry := range map[string]messages.Carry{"nothing": {}, "request": {Request: true}, "route": {Slip: true}} {
			wire, err := c.Ask(carry, c.Deadline)
			require.NoError(b, err)
			at := fmt.Sprintf("%dKB-%s", size>>10, name)
			b.Run("ask/"+at, func(b *testing.B) {
				b.ReportAllocs()
				b.ReportMetric(float64(len(wire)), "wire-B")
				for b.Loop() {
					_, _ = c.Ask(carry, c.Deadline)
				}
			})
			b.Run("read/"+at, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := messages.ReadQuestion(wire); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkAnswer(b *testing.B) {
	c := underway(256 << 10)
	question, err := c.Ask(messages.Carry{Request: true}, c.Deadline)
	require.NoError(b, err)
	for name, edit := range map[string]func(v *messages.Call){
		"continue": func(*messages.Call) {},
		"state":    func(v *messages.Call) { _ = v.SetState(map[string]int{"n": 1}); v.Note("x", 1) },
		"edit":     func(v *messages.Call) { v.SetRequest(rawjson.SetField(v.Request(), "temperature", []byte("0.5"))) },
		"body":     func(v *messages.Call) { v.SetRequest([]byte(`{"model":"other"}`)) },
	} {
		q, err := messages.ReadQuestion(question)
		require.NoError(b, err)
		edit(q.Call)
		answer := func() []byte {
			a := q.Answer(true)
			a.Member, a.Verdict, a.Took = "worker-1", "Continue", time.Millisecond
			wire, _ := a.Marshal()
			return wire
		}
		wire := answer()
		b.Run("write/"+name, func(b *testing.B) {
			b.ReportAllocs()
			b.ReportMetric(float64(len(wire)), "wire-B")
			for b.Loop() {
				answer()
			}
		})
		b.Run("apply/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				a, err := messages.ReadAnswer(wire)
				if err == nil {
					err = a.Apply(c)
				}
				if err != nil && name != "edit" {
					b.Fatal(err)
				}
			}
		})
	}
}
