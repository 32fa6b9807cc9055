package stream_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

var eventWires = []messages.Wire{messages.ResponsesWire, messages.MessagesWire}

// answer is a reply of a wire with two words.
func answer(w messages.Wire, id, text string) []byte {
	reply := view.Of(w).TextReply(id, "m", text, 7)
	return rawjson.SetField(reply, "usage", []byte(`{"input_tokens":1,"output_tokens":2}`))
}

// running are the events of a reply before its end, its text letter by letter.
func running(w messages.Wire, reply []byte) (out [][]byte) {
	for _, e := range events.Replay(w, nil, reply) {
		_, text, ok := events.Delta(e)
		switch {
		case events.Ends(e):
		case ok:
			for _, letter := range strings.Split(text, "") {
				out = append(out, events.WithDelta(e, letter))
			}
		default:
			out = append(out, e)
		}
	}
	return out
}

type eventRun struct {
	f   *stream.EventFollower
	w   messages.Wire
	out [][]byte
}

func follow(w messages.Wire) *eventRun {
	return &eventRun{f: stream.NewEventFollower(w, []byte(`{"model":"m"}`)), w: w}
}

// deltas hands the events in as deltas of a source, numbered from 1; those that skip names are lost.
func (r *eventRun) deltas(source string, list [][]byte, skip ...int) {
	for i, e := range list {
		lost := false
		for _, n := range skip {
			lost = lost || n == i
		}
		if !lost {
			r.out = append(r.out, r.f.Delta(pipeline.Delta{Source: source, N: i + 1, Chunk: e})...)
		}
	}
}

func (r *eventRun) end(t *testing.T, reply []byte) (text string, fault *messages.Fault) {
	t.Helper()
	c := messages.NewCall(messages.Model, "t", []byte(`{"model":"m"}`))
	c.Wire = r.w
	c.SetReply(reply)
	rest, fault := r.f.End(c)
	if fault != nil {
		return "", fault
	}
	r.out = append(r.out, rest...)
	for n, e := range r.out {
		if r.w == messages.ResponsesWire {
			raw, _ := rawjson.Field(e, "sequence_number")
			require.Equal(t, fmt.Sprint(n), string(raw))
		}
	}
	whole, err := events.Assemble(r.w, r.out)
	require.NoError(t, err)
	return view.Of(r.w).Choices(whole)[0].Message().Text(), nil
}

func TestEventFollower(t *testing.T) {
	t.Parallel()
	for _, w := range eventWires {
		t.Run(string(w), func(t *testing.T) {
			t.Parallel()
			reply := answer(w, "1", "Hello")
			list := running(w, reply)
			t.Run("what opens a stream waits for the first text", func(t *testing.T) {
				t.Parallel()
				r := follow(w)
				r.deltas("1", list[:1])
				require.Empty(t, r.out)
				require.False(t, r.f.Released())
			})
			t.Run("a reply that was never streamed is replayed", func(t *testing.T) {
				t.Parallel()
				r := follow(w)
				text, fault := r.end(t, reply)
				require.Nil(t, fault)
				require.Equal(t, "Hello", text)
			})
			t.Run("a stream that arrives whole", func(t *testing.T) {
				t.Parallel()
				r := follow(w)
				r.deltas("1", list)
				text, fault := r.end(t, reply)
				require.Nil(t, fault)
				require.Equal(t, "Hello", text)
				require.Len(t, r.out, len(list)+len(events.Replay(w, nil, reply))-before(w, reply))
			})
			for lost := range list {
				t.Run(fmt.Sprintf("after the loss of %d the rest comes with the end", lost), func(t *testing.T) {
					t.Parallel()
					r := follow(w)
					r.deltas("1", list, lost)
					text, fault := r.end(t, reply)
					require.Nil(t, fault)
					require.Equal(t, "Hello", text)
				})
			}
			t.Run("a standby takes over from one that had said nothing", func(t *testing.T) {
				t.Parallel()
				r := follow(w)
				other := answer(w, "2", "Bye")
				r.deltas("1", list[:1])
				r.deltas("2", running(w, other))
				r.deltas("1", list)
				text, fault := r.end(t, other)
				require.Nil(t, fault)
				require.Equal(t, "Bye", text)
			})
			t.Run("a second run that says the same goes on, whatever id it has", func(t *testing.T) {
				t.Parallel()
				r := follow(w)
				r.deltas("1", list[:len(list)-3])
				same := answer(w, "1", "Hello")
				same = rawjson.SetFieldString(same, "id", "another")
				r.deltas("2", running(w, same))
				text, fault := r.end(t, same)
				require.Nil(t, fault)
				require.Equal(t, "Hello", text)
				require.NotContains(t, string(r.out[len(r.out)-1]), "another")
			})
			t.Run("a stage that adds to the reply", func(t *testing.T) {
				t.Parallel()
				r := follow(w)
				r.deltas("1", list[:len(list)-3]) // the text is still open
				text, fault := r.end(t, answer(w, "1", "Hello there"))
				require.Nil(t, fault)
				require.Equal(t, "Hello there", text)
			})
			t.Run("another reply than was shown", func(t *testing.T) {
				t.Parallel()
				r := follow(w)
				r.deltas("1", list)
				_, fault := r.end(t, answer(w, "1", "Help!"))
				require.Equal(t, messages.StreamCut, fault.Code)
			})
			t.Run("a failure", func(t *testing.T) {
				t.Parallel()
				c := messages.NewCall(messages.Model, "t", nil)
				c.Fail(messages.NewFault(messages.ProviderError, "boom").From(messages.TargetOrigin))
				r := follow(w)
				_, fault := r.f.End(c)
				require.Same(t, c.Fault, fault)
				r.deltas("1", list)
				_, fault = r.f.End(c)
				require.Equal(t, messages.StreamCut, fault.Code)
				require.Equal(t, messages.ProviderError, fault.Last)
			})
		})
	}
}

// before is how many events of a replay come before its end.
func before(w messages.Wire, reply []byte) (n int) {
	for _, e := range events.Replay(w, nil, reply) {
		if !events.Ends(e) {
			n++
		}
	}
	return n
}

func FuzzEventFollower(f *testing.F) {
	f.Add(`{"id":"msg_1","type":"message","content":[{"type":"thinking","thinking":"a","signature":"b"},{"type":"text",`+
		`"text":"abc"},{"type":"tool_use","id":"t","name":"n","input":{"a":1}}],"stop_reason":"x"}`, uint8(3))
	f.Add(string(answer(messages.ResponsesWire, "1", "Hello")), uint8(2))
	f.Fuzz(func(t *testing.T, reply string, cut uint8) {
		if !json.Valid([]byte(reply)) {
			return
		}
		for _, w := range eventWires {
			list := running(w, []byte(reply))
			r := follow(w)
			r.deltas("1", list[:min(int(cut), len(list))])
			c := messages.NewCall(messages.Model, "t", []byte(`{}`))
			c.SetReply([]byte(reply))
			rest, fault := r.f.End(c)
			if fault != nil {
				continue
			}
			whole, err := events.Assemble(w, append(r.out, rest...))
			require.NoError(t, err)
			straight, err := events.Assemble(w, events.Replay(w, nil, c.Reply()))
			require.NoError(t, err)
			require.JSONEq(t, string(straight), string(whole))
		}
	})
}
