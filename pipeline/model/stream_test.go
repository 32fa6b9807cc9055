package model_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/model"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

const (
	roleChunk = `{"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,` +
		`"delta":{"role":"assistant","content":""},"finish_reason":null}]}`
	finishChunk = `{"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,` +
		`"delta":{},"finish_reason":"stop"}]}`
	usageChunk = `{"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","choices":[],"usage":{` +
		`"total_tokens":3}}`
)

// tailOf returns the raw chunks that end the stream.
func tailOf(c *messages.Call) (out []string) {
	var raw []json.RawMessage
	c.Noted(messages.NoteStreamTail, &raw)
	for _, r := range raw {
		out = append(out, string(r))
	}
	return out
}

func text(c *messages.Call) string { return chat.Choices(c.Reply())[0].Message().Text() }

func TestStreamOfChunks(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		sse(w, roleChunk, chunkText("Hel"), chunkText("lo"), finishChunk, usageChunk, "[DONE]")
	})
	c, out := ask(t.Context(), endpoint(t, u.URL), `{"model":"m","stream":true,"stream_options":{`+
		`"include_usage":true}}`, true)
	require.Nil(t, c.Fault)
	require.Equal(t, []string{roleChunk, chunkText("Hel"), chunkText("lo")}, out, "raw bytes, nothing of the end")
	require.Equal(t, []string{finishChunk, usageChunk}, tailOf(c))
	require.Equal(t, `{"id":"c1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,`+
		`"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}],"usage":{"total_tokens":3}}`,
		string(c.Reply()))
	require.Equal(t, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, u.body(0))
	require.Equal(t, "text/event-stream", u.head(0).Get("Accept"))
}

func TestStreamField(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) { sse(w, chunkText("x"), finishChunk, "[DONE]") })
	e := endpoint(t, u.URL)
	c, out := ask(t.Context(), e, `{"model":"m","stream":false}`, true)
	require.Nil(t, c.Fault)
	require.Len(t, out, 1)
	require.Equal(t, `{"model":"m","stream":true}`, u.body(0))
	c, out = ask(t.Context(), e, `{"model":"m","stream":true}`, false)
	require.Nil(t, c.Fault)
	require.Equal(t, "x", text(c), "the caller does not read chunks: the reply is assembled")
	require.Empty(t, out)
	require.Empty(t, tailOf(c))
}

// TestStreamForms is what providers make of server-sent events; each is a whole reply.
func TestStreamForms(t *testing.T) {
	t.Parallel()
	split := strings.Replace(chunkText("b"), `"choices"`, "\n\"choices\"", 1)
	both := strings.Replace(chunkText("b"), `"finish_reason":null`, `"finish_reason":"stop"`, 1)
	forms := map[string]string{
		"no space": "data:" + chunkText("ab") + "\n\ndata:" + finishChunk + "\n\ndata:[DONE]\n\n",
		"CRLF": "data: " + chunkText("ab") + "\r\n\r\ndata: " + finishChunk +
			"\r\n\r\ndata: [DONE]\r\n\r\n",
		"CR":                 "data: " + chunkText("ab") + "\r\rdata: " + finishChunk + "\r\r",
		"byte order mark":    "\xEF\xBB\xBFdata: " + chunkText("ab") + "\n\ndata: " + finishChunk + "\n\n",
		"no DONE":            "data: " + chunkText("ab") + "\n\ndata: " + finishChunk + "\n\n",
		"no last blank line": "data: " + chunkText("ab") + "\n\ndata: " + finishChunk,
		"several data lines": "data: " + chunkText("a") + "\n\ndata: " + strings.ReplaceAll(split, "\n",
			"\ndata: ") + "\n\ndata: " + finishChunk + "\n\n",
		"no blank lines": "data: " + chunkText("a") + "\ndata: " + chunkText("b") + "\ndata: " + finishChunk +
			"\ndata: [DONE]\n",
		"comments by thousands": strings.Repeat(": keep-alive\n\n", 5000) + "data: " + chunkText("ab") + "\n\n" +
			strings.Repeat(":\n", 5000) + "data: " + finishChunk + "\n\n",
		"names and ids": "id: 1\nevent: message\nretry: 5\ndata: " + chunkText("ab") +
			"\n\nevent: ping\n\ndata: " + finishChunk + "\n\n",
		"text with the finish": "data: " + chunkText("a") + "\n\ndata: " + both + "\n\n",
		"a prompt filter first": `data: {"id":"","choices":[],"prompt_filter_results":[]}` + "\n\ndata: " +
			chunkText("ab") + "\n\ndata: " + finishChunk + "\n\n",
	}
	for name, body := range forms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t, write(200, "text/event-stream", body))
			c, out := ask(t.Context(), endpoint(t, u.URL), `{"model":"m","stream":true}`, true)
			require.Nil(t, c.Fault, "%v", c.Fault)
			require.Equal(t, "ab", text(c))
			shown := ""
			for _, o := range out {
				require.NotContains(t, o, "\n")
				require.NotContains(t, o, `"finish_reason":"stop"`)
				require.True(t, json.Valid([]byte(o)))
				var v struct {
					Choices []struct{ Delta struct{ Content string } }
				}
				require.NoError(t, json.Unmarshal([]byte(o), &v))
				shown += v.Choices[0].Delta.Content
			}
			require.Equal(t, "ab", shown)
			require.Contains(t, strings.Join(tailOf(c), ""), `"finish_reason":"stop"`)
		})
	}
}

// more writes what comes after the first chunks.
func more(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

func TestStreamThatBreaks(t *testing.T) {
	t.Parallel()
	data := func(chunks ...string) string { return "data: " + strings.Join(chunks, "\n\ndata: ") + "\n\n" }
	tests := map[string]struct {
		answer http.HandlerFunc
		before messages.Code // nothing released yet
	}{
		"clean end":  {more(""), messages.ProviderError},
		"DONE alone": {more(data("[DONE]")), messages.ProviderError},
		"malformed":  {more(data(`{"choices":[{"del`)), messages.ProviderBadReply},
		"no object":  {more(data(`7`)), messages.ProviderBadReply},
		"error event": {more(data(`{"error":{"message":"x","type":"server_error","code":null}}`)),
			messages.ProviderError},
		"error after pings": {more(strings.Repeat(": p\n\n", 400) +
			data(`{"error":{"message":"slow down","code":"rate_limit_exceeded"}}`)), messages.ProviderLimited},
		"named error": {more("event: error\ndata: {\"message\":\"x\",\"type\":\"overloaded_error\"}\n\n"),
			messages.ProviderError},
		"connection reset": {reset, messages.ProviderError},
		"silence":          {hang, messages.ProviderTimeout},
		"keep-alives for ever": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, ": ping\n\n")
				_ = http.NewResponseController(w).Flush()
				select { // the pace of the upstream, not of the test
				case <-time.After(5 * time.Millisecond):
				case <-r.Context().Done():
				}
			}
		}, messages.ProviderTimeout},
	}
	for name, tt := range tests {
		for when, first := range map[string][]string{"before": {roleChunk}, "after": {roleChunk, chunkText("Hel")}} {
			t.Run(name+" "+when+" a standby can take over only before the first chunk (FB-9)", func(t *testing.T) {
				t.Parallel()
				u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
					sse(w, first...)
					tt.answer(w, r)
				})
				e := endpoint(t, u.URL, func(c *model.Config) {
					c.Timeouts = model.Timeouts{FirstToken: time.Minute, Idle: time.Minute, Total: time.Minute}
					switch {
					case name == "silence" && when == "before":
						c.Timeouts.FirstToken = 100 * time.Millisecond
					case name == "silence":
						c.Timeouts.Idle = 300 * time.Millisecond
					case name == "keep-alives for ever" && when == "before":
						c.Timeouts.FirstToken = 300 * time.Millisecond
					case name == "keep-alives for ever":
						c.Timeouts.Total = time.Second
					}
				})
				c, out := ask(t.Context(), e, `{"model":"m","stream":true}`, true)
				require.NotNil(t, c.Fault)
				require.False(t, c.HasReply())
				if when == "before" {
					require.Empty(t, out, "a role alone is not shown")
					require.Equal(t, tt.before, c.Fault.Code, c.Fault.Message)
					require.True(t, c.Fault.Code.Info().Fallback)
					return
				}
				require.Len(t, out, 2)
				require.Equal(t, messages.StreamCut, c.Fault.Code, c.Fault.Message)
				require.Equal(t, tt.before, c.Fault.Last)
				require.True(t, c.Fault.OfTarget())
			})
		}
	}
}

func TestHangBeforeHeaders(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, hang)
	e := endpoint(t, u.URL, func(c *model.Config) { c.Timeouts.FirstToken = 50 * time.Millisecond })
	c, _ := ask(t.Context(), e, `{"model":"m","stream":true}`, true)
	require.Equal(t, messages.ProviderTimeout, c.Fault.Code)
	require.Contains(t, c.Fault.Detail, "first-token")
}

func TestStreamWithoutDoneThatStaysOpen(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		sse(w, chunkText("ab"), finishChunk)
		<-r.Context().Done()
	})
	e := endpoint(t, u.URL, func(c *model.Config) { c.Timeouts.Idle = 300 * time.Millisecond })
	c, _ := ask(t.Context(), e, `{"model":"m","stream":true}`, true)
	require.Nil(t, c.Fault)
	require.Equal(t, "ab", text(c))
}

func TestStreamOfSeveralChoices(t *testing.T) {
	t.Parallel()
	chunk := func(i int, delta, finish string) string {
		return fmt.Sprintf(`{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{`+
			`"index":%d,"delta":%s,"finish_reason":%s}]}`, i, delta, finish)
	}
	all := []string{chunk(0, `{"content":"a"}`, "null"), chunk(1, `{"content":"x"}`, "null"),
		chunk(0, "{}", `"stop"`), chunk(1, `{"content":"y"}`, "null"), chunk(1, "{}", `"length"`)}
	u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) { sse(w, all...) })
	c, out := ask(t.Context(), endpoint(t, u.URL), `{"model":"m","stream":true,"n":2}`, true)
	require.Nil(t, c.Fault)
	require.Equal(t, []string{all[0], all[1], all[3]}, out)
	require.Equal(t, []string{all[2], all[4]}, tailOf(c))
	require.Equal(t, "xy", chat.Choices(c.Reply())[1].Message().Text())

	u2 := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) { sse(w, all[:4]...) })
	c, _ = ask(t.Context(), endpoint(t, u2.URL), `{"model":"m","stream":true,"n":2}`, true)
	require.Equal(t, messages.StreamCut, c.Fault.Code, "one choice has no end")
}

func TestTextUsageAndFinishInOneChunk(t *testing.T) {
	t.Parallel()
	chunk := strings.Replace(chunkText("ab"), `"finish_reason":null}]`, `"finish_reason":"stop"}],"usage":{`+
		`"total_tokens":3}`, 1)
	u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) { sse(w, chunk) })
	c, out := ask(t.Context(), endpoint(t, u.URL), `{"model":"m","stream":true}`, true)
	require.Nil(t, c.Fault)
	require.Equal(t, []string{strings.Replace(chunkText("ab"), `"finish_reason":null}]`,
		`"finish_reason":null}],"usage":null`, 1)}, out)
	require.Equal(t, []string{strings.Replace(chunk, `{"content":"ab"}`, "{}", 1)}, tailOf(c))
	require.Contains(t, string(c.Reply()), `"usage":{"total_tokens":3}`)
}

func TestWholeReplyToAStream(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, write(200, "application/json", okReply))
	c, out := ask(t.Context(), endpoint(t, u.URL), `{"model":"m","stream":true}`, true)
	require.Nil(t, c.Fault)
	require.Equal(t, okReply, string(c.Reply()))
	require.Empty(t, out)
}

func TestEmitThatFails(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		sse(w, chunkText("a"))
		<-r.Context().Done()
	})
	c := messages.NewCall(messages.Model, "t", []byte(`{"model":"m","stream":true}`))
	c.Stream = true
	err := endpoint(t, u.URL).Do(t.Context(), c, func([]byte) error { return errors.New("gone") })
	require.ErrorContains(t, err, "gone")
}

// upper is a chunk filter that holds the newest letter back.
type upper struct{ held map[pipeline.ChunkKey]string }

func (u upper) Text(at pipeline.ChunkKey, piece string) string {
	s := u.held[at] + strings.ToUpper(piece)
	u.held[at] = s[len(s)-1:]
	return s[:len(s)-1]
}
func (u upper) Flush(at pipeline.ChunkKey) string { s := u.held[at]; delete(u.held, at); return s }

// dash replaces A by -, to show which filter comes first.
type dash struct{}

func (dash) Text(_ pipeline.ChunkKey, piece string) string {
	return strings.ReplaceAll(piece, "A", "-")
}
func (dash) Flush(pipeline.ChunkKey) string { return "" }

func TestChunkFilters(t *testing.T) {
	t.Parallel()
	logs := strings.Replace(chunkText("abc"), `"finish_reason"`, `"logprobs":{"content":[{"token":"abc"}]},`+
		`"finish_reason"`, 1)
	tools := `{"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,` +
		`"delta":{"tool_calls":[{"index":0,"id":"t","type":"function","function":{"name":"f","arguments":"{` +
		`\"a\":1}"}}]},"finish_reason":null}]}`
	u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		sse(w, roleChunk, chunkText("b"), logs, chunkText(""), tools, finishChunk, "[DONE]")
	})
	makers := map[string]model.FilterMaker{
		"upper": func(*messages.Call) (pipeline.ChunkFilter, error) {
			return upper{map[pipeline.ChunkKey]string{}},
				nil
		},
		"dash": func(*messages.Call) (pipeline.ChunkFilter, error) { return dash{}, nil },
		"bad":  func(*messages.Call) (pipeline.ChunkFilter, error) { return nil, errors.New("no") },
		"none": func(*messages.Call) (pipeline.ChunkFilter, error) { return nil, nil },
	}
	e := endpoint(t, u.URL, func(c *model.Config) {
		c.Filters = func(stage string) (model.FilterMaker, bool) { m, ok := makers[stage]; return m, ok }
	})
	run := func(stops ...messages.Stop) (*messages.Call, [][]byte) {
		c := messages.NewCall(messages.Model, "t", []byte(`{"model":"m","stream":true}`))
		c.Stream = true
		c.Slip.Stops = stops
		c, out := runCall(t.Context(), e, c)
		require.Nil(t, c.Fault)
		require.Equal(t, "babc", text(c), "the reply is unfiltered")
		raw := make([][]byte, len(out))
		for i, o := range out {
			raw[i] = []byte(o)
		}
		return c, raw
	}
	// dash is outermost, upper innermost: upper first, then dash.
	_, out := run(messages.Stop{Name: "dash", After: true, Filter: true, Rewrites: true},
		messages.Stop{Name: "none", After: true, Filter: true}, messages.Stop{Name: "upper", After: true,
			Filter: true, Rewrites: true})
	shown, err := chat.Assemble(out)
	require.NoError(t, err)
	m := chat.Choices(shown)[0].Message()
	require.Equal(t, "B-BC", m.Text())
	require.Equal(t, `{"-":1}`, m.ToolCalls()[0].Arguments())
	require.NotContains(t, string(shown), `"token"`, "log probabilities of a filtered text would show it")
	for _, o := range out {
		require.NotContains(t, string(o), "abc")
	}

	for name, stop := range map[string]messages.Stop{
		"rewrites without a filter": {Name: "x", After: true, Rewrites: true},
		"unknown filter":            {Name: "x", After: true, Filter: true},
		"filter that fails":         {Name: "bad", After: true, Filter: true, Rewrites: true},
	} {
		c, out := run(stop)
		require.Empty(t, out, name)
		f := stream.NewFollower(c.Request())
		end, fault := f.End(c)
		require.Nil(t, fault)
		back, err := chat.Assemble(end)
		require.NoError(t, err)
		require.JSONEq(t, string(c.Reply()), string(back))
	}
}

// TestEndToEndWithFollower runs streams through endpoint and follower: what is shown equals the final reply.
func TestEndToEndWithFollower(t *testing.T) {
	t.Parallel()
	e := endpoint(t, "http://127.0.0.1:1")
	for _, body := range []string{
		`{"model":"demo/echo","stream":true,"n":2,"stream_options":{"include_usage":true},"messages":[{` +
			`"role":"user","content":"one two  three"}]}`,
		`{"model":"demo/tools","stream":true,"messages":[{"role":"user","content":"x"}],"tools":[{` +
			`"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"q":{` +
			`"type":"string"}}}}}]}`,
	} {
		f := stream.NewFollower([]byte(body))
		c := messages.NewCall(messages.Model, "t", []byte(body))
		c.Stream = true
		var all [][]byte
		n := 0
		require.NoError(t, e.Do(context.Background(), c, func(chunk []byte) error {
			n++
			all = append(all, f.Delta(pipeline.Delta{Source: "1", N: n, Chunk: chunk})...)
			return nil
		}))
		require.True(t, f.Released())
		end, fault := f.End(c)
		require.Nil(t, fault)
		back, err := chat.Assemble(append(all, end...))
		require.NoError(t, err)
		require.JSONEq(t, string(c.Reply()), string(back))
	}
}
