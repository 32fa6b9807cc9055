package model_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/model"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

var allWires = []messages.Wire{messages.ChatWire, messages.ResponsesWire, messages.MessagesWire}

// wireAsks is the same question on each wire.
var wireAsks = map[messages.Wire]string{
	messages.ChatWire:      `{"model":%q,"messages":[{"role":"user","content":"one two three"}]}`,
	messages.ResponsesWire: `{"model":%q,"input":[{"role":"user","content":"one two three"}]}`,
	messages.MessagesWire:  `{"model":%q,"max_tokens":99,"messages":[{"role":"user","content":"one two three"}]}`,
}

// wireReplies are replies of each wire, with a field that nobody knows.
var wireReplies = map[messages.Wire]string{
	messages.ChatWire: `{"id":"c","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{` +
		`"role":"assistant","content":"one two three"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,` +
		`"completion_tokens":4,"total_tokens":7},"x":{"b":1.50,"a":2}}`,
	messages.ResponsesWire: `{"id":"resp_9","object":"response","created_at":7,"status":"completed","model":"m",` +
		`"x":{"b":1.50,"a":2},"output":[{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"hm"}],` +
		`"encrypted_content":"RU5D"},{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":[{` +
		`"type":"output_text","text":"one two three","annotations":[],"logprobs":[]}]}],"error":null,` +
		`"incomplete_details":null,"usage":{"input_tokens":3,"output_tokens":4,"total_tokens":7}}`,
	messages.MessagesWire: `{"id":"msg_9","type":"message","role":"assistant","model":"m","x":{"b":1.50,"a":2},` +
		`"content":[{"type":"thinking","thinking":"hm","signature":"U0lH"},{"type":"text","text":"one two three"}],` +
		`"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":3,"output_tokens":4}}`,
}

// wireStream is the reply as a stream, its texts word by word.
func wireStream(w messages.Wire) (out [][]byte) {
	ask := []byte(`{"stream_options":{"include_usage":true}}`)
	for _, e := range events.Replay(w, ask, []byte(wireReplies[w])) {
		_, text, ok := events.Delta(e)
		words := strings.SplitAfter(text, " ")
		if !ok || len(words) < 2 {
			words = []string{text}
		}
		for _, word := range words {
			if ok {
				e = events.WithDelta(e, word)
			}
			e, _ = events.Number(e, len(out))
			out = append(out, e)
		}
	}
	return out
}

func writeEvents(w io.Writer, pieces [][]byte) {
	for _, p := range pieces {
		if name := events.Name(p); name != "" {
			_, _ = fmt.Fprintf(w, "event: %s\n", name)
		}
		_, _ = fmt.Fprintf(w, "data: %s\n\n", p)
	}
}

// speaking is an upstream that answers on one wire. cut is after how many events its stream breaks; 0: never.
func speaking(t *testing.T, w messages.Wire, cut int) *upstream {
	t.Helper()
	u := newUpstream(t, func(rw http.ResponseWriter, r *http.Request) {
		path := map[messages.Wire]string{messages.ChatWire: "/chat/completions", messages.ResponsesWire: "/responses",
			messages.MessagesWire: "/messages"}[w]
		if r.URL.Path != path {
			http.NotFound(rw, r)
			return
		}
		if r.Header.Get("Accept") != "text/event-stream" {
			rw.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(rw, wireReplies[w])
			return
		}
		rw.Header().Set("Content-Type", "text/event-stream")
		pieces := wireStream(w)
		if cut > 0 {
			writeEvents(rw, pieces[:cut])
			_ = http.NewResponseController(rw).Flush()
			panic(http.ErrAbortHandler)
		}
		writeEvents(rw, pieces)
	})
	return u
}

func wired(t *testing.T, u *upstream, w messages.Wire, change ...func(*model.Config)) *model.Endpoint {
	t.Helper()
	table, err := model.NewTable(model.Provider{Name: "up", BaseURL: u.URL, APIKey: model.NewSecret(key), KeyEnv: "UP_KEY",
		Wires: []messages.Wire{w}})
	require.NoError(t, err)
	return endpoint(t, u.URL, append([]func(*model.Config){func(c *model.Config) { c.Table = table }}, change...)...)
}

// follower is what a face uses for a wire.
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

// askOn runs a call of a wire and returns what a face would write.
func askOn(t *testing.T, e *model.Endpoint, w messages.Wire, body string, streamed bool, stops ...messages.Stop) (
	*messages.Call, [][]byte) {
	t.Helper()
	c := messages.NewCall(messages.Model, "t", []byte(body))
	c.Wire, c.Stream, c.Slip.Stops = w, streamed, stops
	c, chunks := runCall(t.Context(), e, c)
	if !streamed {
		return c, nil
	}
	f := followerOf(w, c.Request())
	var out [][]byte
	for i, chunk := range chunks {
		out = append(out, f.Delta(pipeline.Delta{Source: "1", N: i + 1, Chunk: []byte(chunk)})...)
	}
	rest, fault := f.End(c)
	if fault != nil {
		c.Fault = fault
	}
	return c, append(out, rest...)
}

func said(w messages.Wire, reply []byte) string {
	text := ""
	for _, c := range view.Of(w).Choices(reply) {
		text += c.Message().Text()
	}
	return text
}

func TestEveryWireOverEveryWire(t *testing.T) {
	t.Parallel()
	for _, client := range allWires {
		for _, provider := range allWires {
			t.Run(fmt.Sprintf("%s over %s", client, provider), func(t *testing.T) {
				t.Parallel()
				u := speaking(t, provider, 0)
				e := wired(t, u, provider)
				body := fmt.Sprintf(wireAsks[client], "m")
				c, _ := askOn(t, e, client, body, false)
				require.Nil(t, c.Fault)
				require.Equal(t, "one two three", said(client, c.Reply()))
				if client == provider {
					require.Equal(t, wireReplies[client], string(c.Reply()), "every byte of the reply")
					require.Equal(t, body, u.body(0), "every byte of the request")
				}
				c, out := askOn(t, e, client, body, true)
				require.Nil(t, c.Fault)
				reply, err := events.Assemble(client, out)
				require.NoError(t, err)
				require.Equal(t, "one two three", said(client, reply))
				if client == provider && client != messages.ChatWire {
					require.Equal(t, lines(wireStream(client)), lines(out), "every byte of the stream")
				}
				if client != messages.ChatWire {
					require.Equal(t, view.Of(client).Usage(c.Reply()), view.Of(client).Usage(reply))
				}
				require.Equal(t, int64(4), view.Of(client).Usage(c.Reply()).Output)
			})
		}
	}
}

func lines(pieces [][]byte) string {
	var b strings.Builder
	for _, p := range pieces {
		b.Write(append(p, '\n'))
	}
	return b.String()
}

func TestAStreamThatIsCutOnEveryWire(t *testing.T) {
	t.Parallel()
	for _, client := range allWires {
		for _, provider := range allWires {
			n := len(wireStream(provider))
			for cut := 1; cut < n; cut++ {
				if provider == messages.ChatWire && cut >= n-1 {
					continue // only the usage is missing
				}
				t.Run(fmt.Sprintf("%s over %s after %d", client, provider, cut), func(t *testing.T) {
					t.Parallel()
					e := wired(t, speaking(t, provider, cut), provider)
					c, out := askOn(t, e, client, fmt.Sprintf(wireAsks[client], "m"), true)
					require.NotNil(t, c.Fault)
					text := ""
					for _, p := range out {
						if at, s, ok := events.Delta(p); ok && at.Kind == events.Answer {
							text += s
						}
						require.False(t, events.Last(p), "a stream that was cut has no end")
					}
					if len(out) == 0 {
						require.Equal(t, messages.ProviderError, c.Fault.Code)
						return
					}
					require.True(t, strings.HasPrefix("one two three", text))
					if client != messages.ChatWire {
						require.Equal(t, messages.StreamCut, c.Fault.Code)
					}
				})
			}
		}
	}
}

func TestFiltersOnEveryWire(t *testing.T) {
	t.Parallel()
	makers := map[string]model.FilterMaker{
		"upper": func(*messages.Call) (pipeline.ChunkFilter, error) {
			return upper{map[pipeline.ChunkKey]string{}}, nil
		},
	}
	for _, client := range allWires[1:] {
		for _, provider := range allWires {
			t.Run(fmt.Sprintf("%s over %s", client, provider), func(t *testing.T) {
				t.Parallel()
				e := wired(t, speaking(t, provider, 0), provider, func(c *model.Config) {
					c.Filters = func(stage string) (model.FilterMaker, bool) { m, ok := makers[stage]; return m, ok }
				})
				c := messages.NewCall(messages.Model, "t", fmt.Appendf(nil, wireAsks[client], "m"))
				c.Wire, c.Stream = client, true
				c.Slip.Stops = []messages.Stop{{Name: "upper", After: true, Filter: true, Rewrites: true}}
				c, chunks := runCall(t.Context(), e, c)
				require.Nil(t, c.Fault)
				v := view.Of(client)
				require.Equal(t, "one two three", said(client, c.Reply()), "the reply is the stage's to edit")
				edited := v.Choices(c.Reply())
				m, _ := edited[0].Message().MapText(strings.ToUpper)
				c.SetReply(v.WithChoices(c.Reply(), []view.Choice{edited[0].WithMessage(m)}))
				f := followerOf(client, c.Request())
				var out [][]byte
				for i, chunk := range chunks {
					out = append(out, f.Delta(pipeline.Delta{Source: "1", N: i + 1, Chunk: []byte(chunk)})...)
				}
				require.NotContains(t, lines(out), `"one`)
				require.NotContains(t, lines(out), `three`)
				rest, fault := f.End(c)
				if fault != nil { // reasoning summaries were filtered too, and the stage did not edit them
					require.Equal(t, messages.StreamCut, fault.Code)
					return
				}
				reply, err := events.Assemble(client, append(out, rest...))
				require.NoError(t, err)
				require.Equal(t, "ONE TWO THREE", said(client, reply))
			})
		}
	}
}

func TestHeadersOfTheMessagesWire(t *testing.T) {
	t.Parallel()
	u := speaking(t, messages.MessagesWire, 0)
	e := wired(t, u, messages.MessagesWire)
	for i, client := range []messages.Wire{messages.MessagesWire, messages.ChatWire} {
		c := messages.NewCall(messages.Model, "t", fmt.Appendf(nil, wireAsks[client], "m"))
		c.Wire = client
		c.Note(messages.NoteWireHeaders, map[string]string{"anthropic-version": "2099-01-01", "anthropic-beta": "a,b",
			"x-evil": "1"})
		c, _ = runCall(t.Context(), e, c)
		require.Nil(t, c.Fault)
		h := u.head(i)
		require.Equal(t, key, h.Get("X-Api-Key"))
		require.Empty(t, h.Get("X-Evil"))
		if client == messages.MessagesWire {
			require.Equal(t, "2099-01-01", h.Get("Anthropic-Version"))
			require.Equal(t, "a,b", h.Get("Anthropic-Beta"))
		} else {
			require.Equal(t, "2023-06-01", h.Get("Anthropic-Version"))
			require.Empty(t, h.Get("Anthropic-Beta"), "a header without its body")
		}
	}
}

func TestAnErrorInTheCallersOwnWords(t *testing.T) {
	t.Parallel()
	const body = `{"type":"error","error":{"type":"invalid_request_error","message":"thinking: no"},"request_id":"r"}`
	u := newUpstream(t, write(400, "application/json", body))
	e := wired(t, u, messages.MessagesWire)
	c, _ := askOn(t, e, messages.MessagesWire, fmt.Sprintf(wireAsks[messages.MessagesWire], "m"), false)
	require.Equal(t, messages.ProviderRejected, c.Fault.Code)
	var raw json.RawMessage
	require.True(t, c.Noted(messages.NoteUpstreamError, &raw))
	require.Equal(t, body, string(raw))
	c, _ = askOn(t, e, messages.ChatWire, fmt.Sprintf(wireAsks[messages.ChatWire], "m"), false)
	require.Equal(t, messages.ProviderRejected, c.Fault.Code)
	require.NotContains(t, c.Notes, messages.NoteUpstreamError)
}

func TestWhatAWireCannotSay(t *testing.T) {
	t.Parallel()
	u := speaking(t, messages.MessagesWire, 0)
	e := wired(t, u, messages.MessagesWire)
	c, _ := askOn(t, e, messages.ChatWire, `{"model":"m","seed":1,"logit_bias":{"1":2},"messages":[{"role":"user",`+
		`"content":"x"}]}`, false)
	require.Nil(t, c.Fault)
	var dropped []string
	require.True(t, c.Noted(messages.NoteDropped, &dropped))
	require.Equal(t, []string{"logit_bias", "seed"}, dropped)
	c, _ = askOn(t, e, messages.ChatWire, `{"model":"m","n":2,"messages":[{"role":"user","content":"x"}]}`, false)
	require.Equal(t, messages.InvalidRequest, c.Fault.Code)
	require.Equal(t, "n", c.Fault.Param)
	require.Equal(t, 1, u.count(), "nothing was sent")
}

// A signature goes back to the model that the caller named, and never to the standby in its place.
func TestSignaturesAndStandbys(t *testing.T) {
	t.Parallel()
	u := speaking(t, messages.MessagesWire, 0)
	e := wired(t, u, messages.MessagesWire)
	history := func(signature string) string {
		return `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{` +
			`"type":"thinking","thinking":"hm","signature":"` + signature + `"},{"type":"text","text":"b"}]},` +
			`{"role":"user","content":"c"}]}`
	}
	c, _ := askOn(t, e, messages.MessagesWire, history("U0lH"), false)
	require.Nil(t, c.Fault)
	require.Equal(t, history("U0lH"), u.body(0))
	c = messages.NewCall(messages.Model, "t", []byte(history("U0lH")))
	c.Wire = messages.MessagesWire
	c.Slip.Stops = []messages.Stop{{Name: "model-fallback", Before: true, After: true, Keep: true}}
	c.Keep("model-fallback")
	c.Slip.Frames = []messages.Frame{{Stop: 0, Attempt: 1}}
	c.SetRequest([]byte(strings.Replace(history("U0lH"), `"model":"m"`, `"model":"other"`, 1)))
	c.Slip.At = 1
	pipeline.RunTarget(t.Context(), e, c, func([]byte) error { return nil })
	require.Nil(t, c.Fault)
	require.NotContains(t, u.body(1), "U0lH")
	require.NotContains(t, string(c.Reply()), "U0lH", "what the standby signs is sealed")
	var reply struct {
		Content []struct{ Signature string }
	}
	require.NoError(t, json.Unmarshal(c.Reply(), &reply))
	c, _ = askOn(t, e, messages.MessagesWire, history(reply.Content[0].Signature), false)
	require.Nil(t, c.Fault)
	require.NotContains(t, u.body(2), "thinking", "another's seal")
	again := strings.Replace(history(reply.Content[0].Signature), `"model":"m"`, `"model":"other"`, 1)
	c, _ = askOn(t, e, messages.MessagesWire, again, false)
	require.Nil(t, c.Fault)
	require.Contains(t, u.body(3), `"thinking":"hm","signature":"U0lH"`, "its own")
}

func TestDemoOnEveryWire(t *testing.T) {
	t.Parallel()
	e := endpoint(t, "http://unused.invalid")
	for _, w := range allWires {
		for _, streamed := range []bool{false, true} {
			c, out := askOn(t, e, w, fmt.Sprintf(wireAsks[w], model.DemoEcho), streamed)
			require.Nil(t, c.Fault)
			require.Equal(t, "one two three", said(w, c.Reply()))
			if streamed {
				require.Greater(t, len(out), 4)
			}
		}
		c, _ := askOn(t, e, w, strings.Replace(fmt.Sprintf(wireAsks[w], model.DemoFail), "one two three", "fail 429", 1),
			false)
		require.Equal(t, messages.ProviderLimited, c.Fault.Code)
	}
}

func TestModelsOfAProviderOfTheMessagesWire(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, write(200, "application/json", `{"data":[{"type":"model","id":"claude-x","display_name":"X"}],`+
		`"has_more":false}`))
	found, errs := wired(t, u, messages.MessagesWire).Models(t.Context())
	require.Empty(t, errs)
	require.Equal(t, "claude-x", found[0].ID)
	require.Equal(t, key, u.head(0).Get("X-Api-Key"))
	require.NotEmpty(t, u.head(0).Get("Anthropic-Version"))
}
