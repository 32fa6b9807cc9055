package agent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

// The same request for an agent on each wire.
var asked = map[messages.Wire]string{
	messages.ChatWire: `{"model":"agent/helper","temperature":0.5,"tools":[{"type":"function","function":{"name":"t"}}],` +
		`"messages":[{"role":"system","content":"briefly"},{"role":"user","content":"hello"}]}`,
	messages.ResponsesWire: `{"model":"agent/helper","temperature":0.5,"tools":[{"type":"mcp","server_label":"x"}],` +
		`"instructions":"briefly","input":"hello"}`,
	messages.MessagesWire: `{"model":"agent/helper","temperature":0.5,"max_tokens":9,"tools":[{"name":"t"}],` +
		`"system":"briefly","messages":[{"role":"user","content":[{"type":"text","text":"hello"}]}]}`,
}

// follower is what shows a stream to the caller.
type follower interface {
	Delta(d pipeline.Delta) [][]byte
	End(c *messages.Call) ([][]byte, *messages.Fault)
}

func followerOf(w messages.Wire, request []byte) follower {
	if w == messages.ChatWire {
		return stream.NewFollower(request)
	}
	return stream.NewEventFollower(w, request)
}

func TestARunAnswersInTheWireOfItsCaller(t *testing.T) {
	t.Parallel()
	for wire, body := range asked {
		t.Run(string(wire), func(t *testing.T) {
			t.Parallel()
			for _, streamed := range []bool{false, true} {
				w := newWorld(t)
				w.tool = echoTool
				w.model = script([]wanted{{"a", "add", `{"x":1}`}}, "three and four")
				c := w.call(body)
				c.Wire, c.Stream, c.Accepted = wire, streamed, time.Unix(7, 0)
				f := followerOf(wire, []byte(body))
				var shown [][]byte
				n := 0
				end, err := w.onion(t.Context(), c, w.loop(), func(piece []byte) error {
					n++
					shown = append(shown, f.Delta(pipeline.Delta{Source: "1", N: n, Chunk: piece})...)
					return nil
				})
				require.NoError(t, err)
				require.Nil(t, end.Fault)
				v := view.Of(wire)
				require.Equal(t, "three and four", v.Choices(end.Reply())[0].Message().Text())
				require.EqualValues(t, 3, v.Usage(end.Reply()).Total)
				first := string(w.seen[0])
				require.Contains(t, first, `{"role":"user","content":"hello"}`)
				require.Contains(t, first, `{"role":"system","content":"briefly"}`)
				require.Contains(t, first, `"temperature":0.5`)
				require.NotContains(t, first, `"name":"t"`, "an agent has tools of its own")
				var dropped []string
				end.Noted(messages.NoteDropped, &dropped)
				require.Equal(t, wire != messages.ChatWire, strings.Join(dropped, ",") == "tools", "%v", dropped)
				if !streamed {
					require.Empty(t, shown)
					continue
				}
				require.NotEmpty(t, shown)
				rest, fault := f.End(end)
				require.Nil(t, fault)
				whole, err := events.Assemble(wire, append(shown, rest...))
				require.NoError(t, err)
				require.Equal(t, "three and four", v.Choices(whole)[0].Message().Text())
			}
		})
	}
}

// What the chat wire cannot say is refused by name, as for every other call.
func TestARunRefusesWhatNobodyHasLookedUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.call(`{"model":"agent/helper","input":[{"type":"item_reference","id":"x"}]}`)
	c.Wire = messages.ResponsesWire
	end := w.run(c)
	require.Equal(t, messages.InvalidRequest, end.Fault.Code)
	require.Equal(t, "input[0]", end.Fault.Param)
	require.Zero(t, w.models)
}
