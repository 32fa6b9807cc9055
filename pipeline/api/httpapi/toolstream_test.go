package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/stream"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

const acceptEvents = "Accept: text/event-stream"

func TestToolStreamFraming(t *testing.T) {
	t.Parallel()
	says := func(reply string, chunks ...string) *apitest.Entry {
		return &apitest.Entry{Target: streams(func(c *messages.Call) error { c.SetReply([]byte(reply)); return nil },
			chunks...)}
	}
	call := func(t *testing.T, d *apitest.Entry, headers ...string) apitest.Reply {
		t.Helper()
		return start(t, d, withShelf(&shelf{}, nil)).Do(t, "POST", "/v1/tools/add/call", `{}`, headers...)
	}
	t.Run("chunks, progress, the rest, the result", func(t *testing.T) {
		t.Parallel()
		d := says("one\ntwo three", `{"progress":{"progress":1,"message":"a\nb"}}`, `{"text":"one\n"}`, `{"text":"two"}`)
		got := call(t, d, acceptEvents)
		require.Equal(t, 200, got.StatusCode)
		require.Equal(t, "text/event-stream", got.Header.Get("Content-Type"))
		id := got.Header.Get("Shallot-Call")
		require.NotEmpty(t, id)
		require.Equal(t, "event: progress\ndata: {\"progress\":1,\"message\":\"a\\nb\"}\n\n"+
			"event: chunk\ndata: {\"text\":\"one\\n\"}\n\nevent: chunk\ndata: {\"text\":\"two\"}\n\nevent: chunk\n"+
			"data: {\"text\":\" three\"}\n\n"+
			"event: result\ndata: {\"call\":\""+id+"\",\"result\":\"one\\ntwo three\"}\n\n", got.Body)
		require.True(t, d.Last(t).Stream)
	})
	t.Run("a result that was not streamed", func(t *testing.T) {
		t.Parallel()
		got := call(t, says(`{"b":1,"a":9007199254740993}`), acceptEvents)
		require.Regexp(t, `^event: result\ndata: \{"call":"[^"]+","result":\{"b":1,"a":9007199254740993\}\}\n\n$`, got.Body,
			"verbatim")
		require.Equal(t, "1", got.Header.Get("Shallot-Attempts"), "all is known before the first byte")
		require.Regexp(t, `^event: chunk\ndata: \{"text":"plain words"\}\n\nevent: result\n`,
			call(t, says("plain words"), acceptEvents).Body)
	})
	t.Run("failures", func(t *testing.T) {
		t.Parallel()
		broken := messages.NewFault(messages.ToolNetwork, "the line broke").From(messages.TargetOrigin)
		call(t, &apitest.Entry{Target: apitest.Faults(broken)}, acceptEvents).IsFault(t, messages.ToolNetwork)
		cut := call(t, &apitest.Entry{Target: streams(func(*messages.Call) error { return broken }, `{"text":"one"}`)},
			acceptEvents)
		require.Equal(t, 200, cut.StatusCode)
		require.NotContains(t, cut.Body, "event: result")
		require.Regexp(t,
			`event: error\ndata: \{"error":\{"message":"[^"]*tool_network[^"]*the line broke","type":"server_error",`+
				`"param":null,"code":"stream_cut"\}\}\n\n$`, cut.Body)
		differs := call(t, says("else", `{"text":"one"}`), acceptEvents)
		require.Contains(t, differs.Body, `"code":"stream_cut"`)
		require.NotContains(t, differs.Body, "event: result")
	})
	t.Run("who asks for one", func(t *testing.T) {
		t.Parallel()
		d := says("x")
		g := start(t, d, withShelf(&shelf{}, nil))
		for header, streams := range map[string]bool{
			acceptEvents: true, "Accept: text/event-stream;q=0.9": true,
			"Accept: text/event-stream, application/json;q=0.5": true,
			"Accept: text/event-stream, application/json":       true, "Shallot-Stream: on": true, "Accept: */*": false,
			"Accept: application/json":                    false,
			"Accept: application/json, text/event-stream": false, "Accept: text/event-stream;q=0": false, "X-Other: x": false,
			"Shallot-Stream: off": false,
		} {
			got := g.Do(t, "POST", "/v1/tools/add/call", `{}`, header)
			require.Equal(t, streams, got.Header.Get("Content-Type") == "text/event-stream", header)
			require.Equal(t, streams, d.Last(t).Stream, header)
		}
		g.Do(t, "POST", "/v1/tools/add/call", `{}`, "Shallot-Stream: yes").IsFault(t, messages.InvalidRequest)
		async := g.Do(t, "POST", "/v1/tools/add/call", `{}`, acceptEvents, "Prefer: respond-async")
		require.Equal(t, 202, async.StatusCode)
		require.False(t, d.Last(t).Stream)
	})
}

// One gateway is the tool of another: chunks pass both while the tool runs, each chunk only when the one before it was
// read at the far end; who leaves stops the work at the near end.
func TestToolStreamsThroughTwoGateways(t *testing.T) {
	t.Parallel()
	next, left := make(chan struct{}), make(chan struct{})
	inner := installation(t, `tool: {tools: [{name: counts, executor: "go:counts", effect: read}]}`, toolbox.GoFuncs{
		"counts": func(ctx context.Context, inv toolbox.Invocation) (toolbox.Result, error) {
			for _, text := range []string{"one ", "two ", "three "} {
				inv.Chunk(text)
				select {
				case <-next:
				case <-ctx.Done():
					close(left)
					return toolbox.Result{}, ctx.Err()
				}
			}
			return toolbox.Result{}, nil
		},
	})
	outer := installation(t, `tool: {tools: [{name: counts, executor: "`+inner+
		`/v1/tools/counts/call", effect: read, cache: "off"}]}`, nil)
	read := func(ctx context.Context, chunk func(text string)) (events []chat.Event) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, outer+"/v1/tools/counts/call", strings.NewReader(`{}`))
		require.NoError(t, err)
		req.Header.Set("Accept", "text/event-stream")
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		r := chat.NewEventReader(bufio.NewReader(res.Body), 1<<20, nil)
		for {
			ev, err := r.Next()
			if err != nil {
				return events
			}
			events = append(events, ev)
			if text, ok := chat.ToolChunkText(ev.Data); ok {
				chunk(text)
			}
		}
	}
	seen := ""
	events := read(t.Context(), func(text string) {
		seen += text
		next <- struct{}{}
	})
	require.Equal(t, "one two three ", seen)
	end := events[len(events)-1]
	require.Equal(t, "result", end.Name)
	var said struct{ Call, Result string }
	require.NoError(t, json.Unmarshal(end.Data, &said))
	require.Equal(t, seen, said.Result)

	// The inner gateway has the result in its cache: it is one chunk.
	seen = ""
	read(t.Context(), func(text string) { seen += text })
	require.Equal(t, "one two three ", seen)

	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, inner+"/v1/tools/counts/call",
		strings.NewReader(`{"again":true}`))
	require.NoError(t, err)
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	_, err = chat.NewEventReader(res.Body, 1<<20, nil).Next()
	require.NoError(t, err)
	leave()
	res.Body.Close()
	select {
	case <-left:
	case <-time.After(30 * time.Second):
		require.Fail(t, "the tool still runs although its caller has left")
	}
}

// installation is a whole one in this process, and its HTTP face.
func installation(t *testing.T, config string, funcs toolbox.GoFuncs) (url string) {
	t.Helper()
	h := apitest.Host(t, config+"\n", func(o *host.Options) { o.Log, o.Funcs = apitest.Log(t), funcs })
	s, err := New(Config{Addr: "127.0.0.1:8080"},
		Deps{Entry: h.Entry(), Tools: h.Tools, NewFollower: func(r []byte) Follower { return stream.NewFollower(r) },
			Log: apitest.Log(t)})
	require.NoError(t, err)
	ts := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		ts.CloseClientConnections()
		ts.Close()
	})
	return ts.URL
}
