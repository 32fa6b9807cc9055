package translate_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/translate"
	"github.com/shallot-nats/shallot/messages/view"
)

const wantsUsage = `{"model":"m","stream_options":{"include_usage":true}}`

// A reply that is replayed as a stream adds up to the same reply.
func TestReplayAddsUp(t *testing.T) {
	t.Parallel()
	for _, w := range wires {
		for name, reply := range bodies(t, w, "reply") {
			t.Run(fmt.Sprintf("%s %s", w, name), func(t *testing.T) {
				t.Parallel()
				back, err := events.Assemble(w, events.Replay(w, []byte(wantsUsage), reply))
				require.NoError(t, err)
				require.JSONEq(t, string(reply), string(back))
				if w == messages.ResponsesWire {
					require.Equal(t, string(reply), string(back))
				}
			})
		}
	}
}

// Every stream that is made here keeps the rules that strict clients throw by.
func TestStreamsKeepTheRules(t *testing.T) {
	t.Parallel()
	for _, client := range wires[1:] {
		for _, provider := range wires {
			for name, reply := range bodies(t, provider, "reply") {
				t.Run(fmt.Sprintf("%s over %s %s", client, provider, name), func(t *testing.T) {
					t.Parallel()
					s := pair(client, provider).Stream(bodies(t, client, "request")["tools"])
					var out [][]byte
					if client == provider {
						out = events.Replay(client, nil, reply)
					} else {
						for _, e := range events.Replay(provider, []byte(wantsUsage), reply) {
							out = append(out, s.Add(e)...)
						}
						out = append(out, s.End()...)
					}
					strict(t, client, out)
				})
			}
		}
	}
}

func strict(t testing.TB, w messages.Wire, pieces [][]byte) {
	t.Helper()
	require.NotEmpty(t, pieces)
	for _, p := range pieces {
		require.True(t, json.Valid(p), "%s", p)
	}
	if w == messages.ResponsesWire {
		strictResponses(t, pieces)
		return
	}
	strictMessages(t, pieces)
}

func get(p []byte, path ...string) string {
	for _, key := range path {
		p, _ = rawjson.Field(p, key)
	}
	if s, ok := rawjson.IsString(p); ok {
		return s
	}
	return string(p)
}

// strictResponses is what the accumulator of the official client demands.
func strictResponses(t testing.TB, pieces [][]byte) {
	t.Helper()
	require.Equal(t, "response.created", events.Name(pieces[0]))
	id := get(pieces[0], "response", "id")
	require.NotEmpty(t, id)
	open, parts, added, done := map[string]string{}, map[string]bool{}, 0, 0
	for n, p := range pieces {
		name := events.Name(p)
		require.Equal(t, fmt.Sprint(n), get(p, "sequence_number"), "%s", p)
		if r := get(p, "response", "id"); r != "" {
			require.Equal(t, id, r)
		}
		at := get(p, "output_index")
		switch {
		case name == "response.output_item.added":
			require.Equal(t, fmt.Sprint(added), at)
			added++
			require.NotContains(t, open, at)
			open[at] = get(p, "item", "id")
			require.NotEmpty(t, open[at])
		case name == "response.output_item.done":
			require.Equal(t, open[at], get(p, "item", "id"))
			done++
		case name == "response.content_part.added" || name == "response.reasoning_summary_part.added":
			parts[at+" "+get(p, "content_index")+get(p, "summary_index")] = true
		case strings.HasSuffix(name, ".delta"):
			require.Equal(t, open[at], get(p, "item_id"), "%s", p)
			if get(p, "content_index")+get(p, "summary_index") != "" {
				require.True(t, parts[at+" "+get(p, "content_index")+get(p, "summary_index")], "%s", p)
			}
		}
	}
	last := pieces[len(pieces)-1]
	require.True(t, events.Ends(last), "%s", last)
	require.Equal(t, added, done)
	raw, _ := rawjson.Field(last, "response")
	output, _ := rawjson.Field(raw, "output")
	require.Len(t, rawjson.Elements(output), added)
	for i, item := range rawjson.Elements(output) {
		require.Equal(t, open[fmt.Sprint(i)], get(item, "id"))
	}
}

// strictMessages is what the official client of the messages wire demands.
func strictMessages(t testing.TB, pieces [][]byte) {
	t.Helper()
	require.Equal(t, "message_start", events.Name(pieces[0]))
	require.NotEmpty(t, get(pieces[0], "message", "usage", "output_tokens"))
	next, open := 0, false
	for _, p := range pieces[1:] {
		switch events.Name(p) {
		case "message_start":
			require.Fail(t, "a second message_start")
		case "content_block_start":
			require.False(t, open, "%s", p)
			require.Equal(t, fmt.Sprint(next), get(p, "index"))
			open = true
		case "content_block_delta":
			require.True(t, open)
			require.Equal(t, fmt.Sprint(next), get(p, "index"))
		case "content_block_stop":
			require.True(t, open)
			require.Equal(t, fmt.Sprint(next), get(p, "index"))
			open = false
			next++
		case "message_delta":
			require.NotEmpty(t, get(p, "usage", "output_tokens"))
		}
	}
	require.False(t, open)
	require.Equal(t, "message_stop", events.Name(pieces[len(pieces)-1]))
}

// Calls whose pieces come in turns reach wires that have one open at a time whole and in order.
func TestInterleavedCalls(t *testing.T) {
	t.Parallel()
	chunk := func(calls string) []byte {
		return []byte(`{"id":"c","model":"m","choices":[{"index":0,"delta":{"tool_calls":[` + calls + `]}}]}`)
	}
	for _, client := range wires[1:] {
		s := pair(client, messages.ChatWire).Stream([]byte(`{"model":"m"}`))
		var out [][]byte
		for _, c := range []string{
			`{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\""}},{"index":1,"id":"b","function":{"name":"g"}}`,
			`{"index":1,"function":{"arguments":"{\"y\":"}}`, `{"index":0,"function":{"arguments":":1}"}}`,
			`{"index":1,"function":{"arguments":"2}"}}`, `{"index":2,"id":"c","function":{"name":"h","arguments":"{}"}}`,
		} {
			out = append(out, s.Add(chunk(c))...)
		}
		out = append(out, s.Add([]byte(`{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`))...)
		out = append(out, s.End()...)
		strict(t, client, out)
		reply, err := events.Assemble(client, out)
		require.NoError(t, err)
		var got []string
		for _, c := range view.Calls(view.Of(client), reply) {
			got = append(got, c.ID()+c.Name()+c.Arguments())
		}
		require.Equal(t, []string{`af{"x":1}`, `bg{"y":2}`, `ch{}`}, got)
	}
}

// A stream that breaks is the beginning of the whole one: nothing that was shown is taken back, and nothing ends it.
func TestACutStreamIsTheBeginningOfTheWhole(t *testing.T) {
	t.Parallel()
	for _, client := range wires {
		for _, provider := range wires {
			if client == provider {
				continue
			}
			for name, reply := range bodies(t, provider, "reply") {
				t.Run(fmt.Sprintf("%s over %s %s", client, provider, name), func(t *testing.T) {
					t.Parallel()
					request := bodies(t, client, "request")["tools"]
					all := events.Replay(provider, []byte(wantsUsage), reply)
					whole := pair(client, provider).Stream(request)
					var want [][]byte
					for _, e := range all {
						want = append(want, whole.Add(e)...)
					}
					want = append(want, whole.End()...)
					for cut := range all {
						s := pair(client, provider).Stream(request)
						var got [][]byte
						for _, e := range all[:cut] {
							got = append(got, s.Add(e)...)
						}
						require.LessOrEqual(t, len(got), len(want))
						require.Equal(t, lines(want[:len(got)]), lines(got))
						for _, p := range got {
							require.False(t, events.Last(p), "%s", p)
						}
					}
				})
			}
		}
	}
}

// What a reply has cost is the same on each wire that can say it: OpenAI's input counts what came from a cache, that of
// the messages wire does not.
func TestUsageIsCountedAsTheCallersWireDoes(t *testing.T) {
	t.Parallel()
	for _, client := range wires {
		for _, provider := range wires {
			reply := bodies(t, provider, "reply")["text"]
			want := view.Of(provider).Usage(reply)
			require.Positive(t, want.CacheRead)
			out, err := pair(client, provider).Reply(bodies(t, client, "request")["text"], reply)
			require.NoError(t, err)
			got := view.Of(client).Usage(out)
			require.Equal(t, []int64{want.Input, want.CacheRead, want.Output}, []int64{got.Input, got.CacheRead, got.Output},
				"%s over %s", client, provider)
			require.Equal(t, want.Input+want.Output, got.Input+got.Output)
		}
	}
}

func FuzzStream(f *testing.F) {
	for _, w := range wires {
		for _, reply := range bodies(f, w, "reply") {
			f.Add(string(w), reply)
		}
	}
	f.Fuzz(func(t *testing.T, from string, reply []byte) {
		w := messages.Wire(from)
		if !json.Valid(reply) || !slices.Contains(wires, w) {
			return
		}
		for _, client := range wires {
			if out, err := pair(client, w).Reply([]byte(wantsUsage), reply); err == nil {
				require.True(t, json.Valid(out), "%s", out)
			}
			if client == w || client == messages.ChatWire {
				continue
			}
			s := pair(client, w).Stream([]byte(wantsUsage))
			var pieces [][]byte
			for _, e := range events.Replay(w, []byte(wantsUsage), reply) {
				pieces = append(pieces, s.Add(e)...)
			}
			if len(pieces) > 0 {
				strict(t, client, append(pieces, s.End()...))
			}
		}
	})
}

func FuzzRequest(f *testing.F) {
	for _, w := range wires {
		for _, body := range bodies(f, w, "request") {
			f.Add(string(w), body)
		}
	}
	f.Fuzz(func(t *testing.T, from string, body []byte) {
		w := messages.Wire(from)
		var compact bytes.Buffer // as bodies are since their entry
		if json.Compact(&compact, body) != nil || !slices.Contains(wires, w) {
			return
		}
		body = compact.Bytes()
		for _, provider := range wires {
			p := translate.Pair{Client: w, Provider: provider, Owner: "p/m", ID: "c1"}
			if out, _, err := p.Request(body); err == nil {
				require.True(t, json.Valid(out), "%s", out)
			}
		}
		p := pair(w, w)
		require.True(t, json.Valid(p.Own(body, false)))
		require.True(t, json.Valid(p.Seal(body)))
		v := view.Of(w)
		msgs := v.Messages(body)
		require.Equal(t, string(body), string(v.WithMessages(body, msgs)), "nothing was edited")
	})
}
