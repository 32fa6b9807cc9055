package model_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/model"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

// doer answers with fixed bytes.
type doer struct {
	status int
	kind   string
	body   []byte
}

func (d doer) Do(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: d.status, Header: http.Header{"Content-Type": {d.kind}},
		Body: io.NopCloser(bytes.NewReader(d.body)), Request: req}, nil
}

func fixed(t testing.TB, d doer) *model.Endpoint {
	table, err := model.NewTable(model.Provider{Name: "up", BaseURL: "http://up.test", Client: d})
	require.NoError(t, err)
	e, err := model.NewEndpoint(model.Config{Table: table})
	require.NoError(t, err)
	return e
}

// FuzzStream feeds any bytes as a stream: there is a reply or a fault, and what a caller is shown is that reply or
// ends in a fault.
func FuzzStream(f *testing.F) {
	f.Add([]byte("data: "+roleChunk+"\n\ndata: "+chunkText("a")+"\n\ndata: "+finishChunk+"\n\ndata: "+usageChunk+
		"\n\ndata: [DONE]\n\n"), true)
	f.Add([]byte(`data: {"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"x"}},{"index":1}]},`+
		`"finish_reason":"stop"},{"index":1,"delta":{"content":[{}]},"finish_reason":"a"}]}`), true)
	f.Add([]byte(`data: {"error":{"message":[1],"code":429}}`+"\n\n"), false)
	f.Add([]byte(okReply), false)
	f.Fuzz(func(t *testing.T, in []byte, streamed bool) {
		body := `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`
		for _, kind := range []string{"text/event-stream", "application/json"} {
			c := messages.NewCall(messages.Model, "t", []byte(body))
			c.Stream = streamed
			w := stream.NewFollower([]byte(body))
			c.Slip, _ = pipeline.Enter(c.Slip)
			n := 0
			var shown [][]byte
			pipeline.RunTarget(t.Context(), fixed(t, doer{200, kind, in}), c, func(chunk []byte) error {
				n++
				require.True(t, json.Valid(chunk))
				shown = append(shown, w.Delta(pipeline.Delta{Source: "1", N: n, Chunk: chunk})...)
				return nil
			})
			require.True(t, (c.Fault == nil) == c.HasReply())
			if c.Fault != nil {
				require.NotEqual(t, messages.Internal, c.Fault.Code, c.Fault.Message)
				require.Equal(t, c.Fault.Code == messages.StreamCut, w.Released())
				continue
			}
			require.NotEmpty(t, chat.Choices(c.Reply()))
			end, fault := w.End(c)
			for _, chunk := range append(shown, end...) {
				require.True(t, json.Valid(chunk), "%s", chunk)
			}
			_ = fault
		}
	})
}

func BenchmarkStream(b *testing.B) {
	e := fixed(b, doer{200, "text/event-stream", []byte(strings.Repeat("data: "+chunkText("word ")+"\n\n", 50) +
		"data: " + finishChunk + "\n\ndata: [DONE]\n\n")})
	for b.Loop() {
		c := messages.NewCall(messages.Model, "t", []byte(`{"model":"m","stream":true}`))
		c.Stream = true
		if err := e.Do(b.Context(), c, func([]byte) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWhole(b *testing.B) {
	e := fixed(b, doer{200, "application/json", []byte(okReply)})
	for b.Loop() {
		c := messages.NewCall(messages.Model, "t", []byte(`{"model":"m"}`))
		if err := e.Do(b.Context(), c, nil); err != nil {
			b.Fatal(err)
		}
	}
}
