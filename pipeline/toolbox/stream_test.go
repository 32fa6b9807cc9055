package toolbox_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// followed runs a streamed call on a target without stages and returns what its caller sees.
func followed(t *testing.T, target *toolbox.Target, tool string) (text string, progress []string, c *messages.Call,
	fault *messages.Fault) {
	t.Helper()
	c = messages.NewCall(messages.Tool, "t1", []byte(`{}`))
	c.Tool, c.Stream = tool, true
	var f stream.ToolFollower
	n := 0
	read := func(chunks [][]byte) {
		for _, chunk := range chunks {
			if p, ok := rawjson.Field(chunk, "progress"); ok {
				progress = append(progress, string(p))
				continue
			}
			piece, ok := chat.ToolChunkText(chunk)
			require.True(t, ok, "%s", chunk)
			text += piece
		}
	}
	l := pipeline.Chain(nil, target)
	l.Emit = func(chunk []byte) error {
		n++
		read(f.Delta(pipeline.Delta{Source: "1", N: n, Chunk: chunk}))
		return nil
	}
	_, err := l.Call(t.Context(), c)
	require.NoError(t, err)
	chunks, fault := f.End(c)
	read(chunks)
	return text, progress, c, fault
}

// reads is one tool of a URL, declared as a read.
type reads string

func (u reads) Get(_ context.Context, name string) (*tool.Definition, error) {
	return &tool.Definition{Name: name, Version: "1", Source: tool.Operator, Policy: tool.Policy{Effect: tool.EffectRead},
		Executor: tool.Executor{Kind: tool.ExecHTTP, URL: string(u) + "/" + name, MaxResponse: 5000}}, nil
}

func TestHTTPStreams(t *testing.T) {
	t.Parallel()
	const events = "text/event-stream"
	type step = string // what is written and flushed; "!" breaks the connection
	rows := map[string]struct {
		kind  string
		steps []step
		// what is seen before the tool goes on after its first step
		first   string
		whole   string
		code    messages.Code
		last    messages.Code
		says    string
		isError bool
	}{
		"text": {kind: "text/plain; charset=utf-8", steps: []step{"one ", "two"}, first: "one ",
			whole: "one two"},
		"text cut in a character": {kind: "text/plain", steps: []step{"eins \xe4\xb8", "\xad zwei"}, first: "eins ",
			whole: "eins 中 zwei"},
		"lines": {kind: "application/x-ndjson", steps: []step{"{\"a\":1}\n{\"b\"", ":2}\n"},
			first: "{\"a\":1}\n", whole: "{\"a\":1}\n{\"b\":2}\n"},
		"a JSON answer is whole": {kind: "application/json", steps: []step{`{"a":`, `1}`}, whole: `{"a":1}`},
		"no type is whole":       {kind: "", steps: []step{"one ", "two"}, whole: "one two"},
		"events": {kind: events, steps: []step{"data: one \n\n",
			": ping\n\ndata:  two\n\ndata: [DONE]\n\ndata: no\n\n"}, first: "one ", whole: "one  two"},
		"events with line breaks": {kind: events, steps: []step{"data: a\ndata: b\ndata:\n\n", "data: c\n\n"},
			first: "a\nb\n", whole: "a\nb\nc"},
		"our own events": {kind: events, steps: []step{"event: chunk\ndata: {\"text\":\"a\\n\"}\n\n",
			"event: other\ndata: x\n\nevent: chunk\ndata: {\"text\":\"b\"}\n\nevent: result\ndata: {\"result\":\"a\\nb\"}\n\n"},
			first: "a\n", whole: "a\nb"},
		"a result event of JSON": {kind: events, steps: []step{": ping\n\n",
			"event: result\ndata: {\"result\":{\"a\":1}}\n\n"}, whole: `{"a":1}`},
		"an error result event": {kind: events, steps: []step{": ping\n\n",
			"event: result\ndata: {\"result\":\"no such row\",\"is_error\":true}\n\n"}, whole: "no such row", isError: true},
		"an error event": {kind: events, steps: []step{"data: half\n\n",
			"event: error\ndata: {\"error\":{\"message\":\"the disk is gone\"}}\n\n"}, first: "half", whole: "half",
			code: messages.StreamCut, last: messages.ToolError, says: "the disk is gone"},
		"an error before any text": {kind: events, steps: []step{": ping\n\n", "event: error\ndata: boom\n\n"},
			code: messages.ToolError, says: "boom"},
		"a cut": {kind: "text/plain", steps: []step{"half", "!"}, first: "half", whole: "half",
			code: messages.StreamCut, last: messages.ToolNetwork},
		"a cut of events": {kind: events, steps: []step{"data: half\n\n", "!"}, first: "half", whole: "half",
			code: messages.StreamCut, last: messages.ToolNetwork},
		"a cut before any text": {kind: events, steps: []step{": ping\n\n", "!"}, code: messages.ToolNetwork},
		"too much": {kind: "text/plain", steps: []step{"x", strings.Repeat("y", 6000)}, first: "x",
			code: messages.StreamCut, last: messages.ToolError, says: "max-response"},
		"too many events": {kind: events, steps: []step{"data: x\n\n", strings.Repeat("data: yyyyyyyyyyyyyyyy\n\n", 600)},
			first: "x", code: messages.StreamCut, last: messages.ToolError, says: "max-response"},
		"progress": {kind: events, steps: []step{"event: progress\ndata: {\"progress\":1}\n\n", "data: x\n\n"}, whole: "x"},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			goOn := make(chan struct{})
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", row.kind)
				if row.kind == "" {
					w.Header()["Content-Type"] = nil
				}
				for i, s := range row.steps {
					if s == "!" {
						panic(http.ErrAbortHandler)
					}
					_, _ = io.WriteString(w, s)
					w.(http.Flusher).Flush()
					if i == 0 && row.first != "" {
						select {
						case <-goOn:
						case <-r.Context().Done():
						}
					}
				}
			}))
			t.Cleanup(srv.Close)
			e := toolbox.NewHTTPExecutor()
			t.Cleanup(e.Close)
			target := &toolbox.Target{Tools: reads(srv.URL), Rules: tool.DefaultRules(),
				Pool: toolbox.NewPool(toolbox.DefaultPool())}
			target.Executors = toolbox.Executors{"http": toolbox.ExecutorFunc(func(ctx context.Context,
				inv toolbox.Invocation) (toolbox.Result, error) {
				if !inv.Streams {
					return toolbox.Result{}, errors.New("the tool is not told that its caller reads a stream")
				}
				pass, got := inv.Chunk, ""
				inv.Chunk = func(text string) {
					pass(text)
					if got += text; strings.HasPrefix(got, row.first) && row.first != "" {
						select {
						case <-goOn:
						default:
							close(goOn) // the rest is only written when the first piece was passed on
						}
					}
				}
				return e.Execute(ctx, inv)
			})}
			text, progress, c, fault := followed(t, target, "x")
			if row.code != "" {
				require.NotNil(t, fault)
				require.Equal(t, row.code, fault.Code, fault.Message)
				require.Equal(t, row.last, fault.Last)
				require.Contains(t, fault.Message, row.says)
				if row.whole != "" {
					require.Equal(t, row.whole, text)
				}
				return
			}
			require.Nil(t, fault)
			out, _, _ := c.ReplyPlain()
			require.Equal(t, row.whole, out)
			require.Equal(t, row.isError, c.Flag(messages.NoteIsError))
			if row.first != "" {
				require.Equal(t, row.whole, text)
			}
			if name == "progress" {
				require.Equal(t, []string{`{"progress":1}`}, progress)
			}
		})
	}
}

// pusher is a Remote that gives chunks and then an answer.
type pusher struct {
	chunks []string
	reply  toolbox.Response
	err    error
}

func (p pusher) Request(ctx context.Context, _ string, _ map[string]string, _ []byte,
	chunk func(string)) (toolbox.Response, error) {
	for _, c := range p.chunks {
		chunk(c)
	}
	if p.err == nil && ctx.Err() != nil {
		return p.reply, ctx.Err()
	}
	return p.reply, p.err
}

func TestRemoteChunks(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		remote pusher
		whole  string
		code   messages.Code
		says   string
	}{
		"the chunks are the result": {pusher{chunks: []string{"a", "b"}, reply: toolbox.Response{Chunked: true}}, "ab",
			"", ""},
		"the answer is its last piece": {pusher{chunks: []string{"a", "b"},
			reply: toolbox.Response{Chunked: true, Body: []byte("c")}}, "abc", "", ""},
		"the answer is the whole": {pusher{chunks: []string{"a", "b"}, reply: toolbox.Response{Body: []byte("abc")}},
			"abc", "", ""},
		"the answer is something else": {pusher{chunks: []string{"a", "b"}, reply: toolbox.Response{Body: []byte("xyz")}},
			"ab", messages.StreamCut, "does not begin with"},
		"an error after chunks": {pusher{chunks: []string{"a"},
			reply: toolbox.Response{ErrorCode: "500", ErrorText: "boom"}}, "a", messages.StreamCut, "boom"},
		"a failure after chunks": {pusher{chunks: []string{"a"}, err: errors.New("gone")}, "a", messages.StreamCut,
			"gone"},
		"more than the tool may answer": {pusher{chunks: []string{"a", strings.Repeat("b", 5000)},
			reply: toolbox.Response{Chunked: true}}, "a", messages.StreamCut, "max-response"},
		"an error before the first chunk": {pusher{reply: toolbox.Response{ErrorCode: "500", ErrorText: "boom"}}, "",
			messages.ToolError, "boom"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, _, c, fault := followed(t, &toolbox.Target{Tools: reads("http://x"), Rules: tool.DefaultRules(),
				Pool:      toolbox.NewPool(toolbox.DefaultPool()),
				Executors: toolbox.Executors{"http": &toolbox.NATSExecutor{Requester: row.remote}}}, "x")
			require.Equal(t, row.whole, text)
			if row.code != "" {
				require.Equal(t, row.code, fault.Code, fault.Message)
				require.Contains(t, fault.Message, row.says)
				return
			}
			require.Nil(t, fault)
			out, _, _ := c.ReplyPlain()
			require.Equal(t, row.whole, out)
		})
	}
}

// An executor that goes on after its time is over reaches nobody any more.
func TestChunksAfterTheEnd(t *testing.T) {
	t.Parallel()
	late := make(chan func(string), 1)
	d := tool.Definition{Name: "x", Version: "1", Source: tool.Operator,
		Policy: tool.Policy{Effect: tool.EffectRead, Timeout: tool.Duration(1)}, Executor: tool.Executor{Kind: "go"}}
	target := &toolbox.Target{Tools: only{&d}, Rules: tool.DefaultRules(), Pool: toolbox.NewPool(toolbox.DefaultPool()),
		Executors: toolbox.Executors{"go": toolbox.ExecutorFunc(func(ctx context.Context,
			inv toolbox.Invocation) (toolbox.Result, error) {
			<-ctx.Done()
			late <- inv.Chunk
			return toolbox.Result{}, ctx.Err()
		})}}
	text, _, _, fault := followed(t, target, "x")
	require.Equal(t, messages.ToolTimeout, fault.Code)
	(<-late)("late")
	require.Empty(t, text)
}

type only struct{ d *tool.Definition }

func (o only) Get(context.Context, string) (*tool.Definition, error) { return o.d, nil }
