package messages_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
)

// underway is a session call of ten stages between two hops: what the bus writes and reads most.
func underway(size int) *messages.Call {
	c := fixed(chat(size))
	c.Role, c.Session, c.RequestID = "caller", "s1", c.ID
	c.Trace = messages.Trace{Parent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	c.Slip = messages.Slip{At: 5, Hops: 5}
	for i, name := range []string{"audit", "model-fallback", "todo-list", "context-editing", "pii", "sub-agent",
		"tool-selection",
		"pair-repair", "model-retry", "logging"} {
		c.Slip.Stops = append(c.Slip.Stops, messages.Stop{Name: name, Order: 10 * i, Before: true, After: true,
			Keep: i == 1})
		if i < 5 {
			c.Slip.Frames = append(c.Slip.Frames, messages.Frame{Stop: i, Attempt: 1, Nanos: 12345,
				State: []byte(`{"n":1}`)})
			c.Slip.Path = append(c.Slip.Path, name+".beforeModel")
		}
	}
	c.Keep("model-fallback")
	c.Note("contextEditing", map[string]any{"removed": 3, "tokens": 1200})
	return c
}

func chat(size int) string {
	var b strings.Builder
	b.WriteString(`{"model":"m1","temperature":0.7,"messages":[{"role":"system","content":"Be kind."}`)
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, `,{"role":"user","content":"line %d\nthe quick brown fox jumps over \"the\" lazy dog `+
			`again and again"}`, i)
	}
	b.WriteString(`]}`)
	return b.String()
}

func BenchmarkMarshal(b *testing.B) {
	c := underway(2048)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = c.Marshal()
	}
}

func BenchmarkUnmarshal(b *testing.B) {
	wire, err := underway(2048).Marshal()
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := messages.Unmarshal(wire); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSetRequest(b *testing.B) {
	for _, size := range []int{2 << 10, 256 << 10} {
		for name, body := range map[string]string{"compact": chat(size), "spaced": strings.ReplaceAll(chat(size),
			`,"`, `, "`)} {
			b.Run(fmt.Sprintf("%dKB-%s", size>>10, name), func(b *testing.B) {
				require.True(b, json.Valid([]byte(body)))
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					messages.NewCall(messages.Model, "t", []byte(body))
				}
			})
		}
	}
}
