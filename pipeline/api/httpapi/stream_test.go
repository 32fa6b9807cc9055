package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

// chunk is a stream chunk as an upstream sends it.
func chunk(text, finish string) string {
	return fmt.Sprintf(`{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m1","choices":[{"index":0,`+
		`"delta":{"content":%q},"finish_reason":%s}]}`, text, finish)
}

// streams is a target that emits the chunks and then does what end says.
func streams(end func(c *messages.Call) error, chunks ...string) pipeline.TargetFunc {
	return func(_ context.Context, c *messages.Call, emit pipeline.Emit) error {
		for _, s := range chunks {
			if err := emit([]byte(s)); err != nil {
				return err
			}
		}
		return end(c)
	}
}

func ends(c *messages.Call) error {
	c.SetReply([]byte(`{"done":true}`))
	return nil
}

func cut(*messages.Call) error {
	return messages.NewFault(messages.StreamCut, "the stream broke").From(messages.TargetOrigin)
}

func TestStreamFraming(t *testing.T) {
	t.Parallel()
	first, second := chunk("a", "null"), chunk("b", `"stop"`)
	spread := "{\n \"x\": 1,\r\n \"y\": \"a\\nb\"\n}"
	g := start(t, &apitest.Entry{Target: streams(ends, first, second, spread)}, nil)
	got := g.Chat(t, apitest.StreamBody, "X-Request-Id: r1", "Accept-Encoding: gzip")
	require.Equal(t, 200, got.StatusCode)
	require.Equal(t, "text/event-stream", got.Header.Get("Content-Type"))
	require.Equal(t, "no-cache", got.Header.Get("Cache-Control"))
	require.Equal(t, "no", got.Header.Get("X-Accel-Buffering"))
	require.Empty(t, got.Header.Get("Content-Encoding"), "never packed")
	require.Equal(t, "r1", got.Header.Get("X-Request-Id"))
	require.NotEmpty(t, got.Header.Get("Shallot-Call"))
	require.Equal(t, "data: "+first+"\n\ndata: "+second+"\n\ndata: {\"x\":1,\"y\":\"a\\nb\"}\n\ndata: [DONE]\n\n",
		got.Body,
		"bytes as they came; a line break within JSON goes")
}

// TestStreamQueueMark: the mark of a degraded stream is that of the source whose chunk came first (FB-2).
func TestStreamQueueMark(t *testing.T) {
	t.Parallel()
	q := &queue{max: 100, ready: make(chan struct{}, 1)}
	require.True(t, q.put(nil, pipeline.Marks{Degraded: "of a source that showed nothing"}))
	require.True(t, q.put([][]byte{[]byte("a")}, pipeline.Marks{Degraded: "first", Edited: "todo-list;added"}))
	require.True(t, q.put([][]byte{[]byte("b")}, pipeline.Marks{Degraded: "later"}))
	chunks, marks := q.take()
	require.Len(t, chunks, 2)
	w := httptest.NewRecorder()
	e := &events{w: w, rc: http.NewResponseController(w), timeout: time.Second, marks: marks}
	e.write(chunks)
	require.Equal(t, "first", w.Header().Get("Shallot-Degraded"))
	require.Equal(t, "todo-list;added", w.Header().Get("Shallot-Edited"))
}

func TestStreamEnds(t *testing.T) {
	t.Parallel()
	refused := messages.NewFault(messages.ProviderLimited, "slow down").From(messages.TargetOrigin)
	refused.RetryAfter = time.Second

	t.Run("failure before the first chunk has its real status", func(t *testing.T) {
		t.Parallel()
		got := start(t, &apitest.Entry{Target: apitest.Faults(refused)}, nil).Chat(t, apitest.StreamBody)
		got.IsFault(t, messages.ProviderLimited)
		require.Equal(t, 429, got.StatusCode)
		require.Equal(t, "1", got.Header.Get("Retry-After"))
		require.NotEmpty(t, got.Header.Get("Shallot-Path"))
	})
	t.Run("cut after the first chunk: error event, no DONE", func(t *testing.T) {
		t.Parallel()
		got := start(t, &apitest.Entry{Target: streams(cut, chunk("a", "null"))}, nil).Chat(t, apitest.StreamBody)
		require.Equal(t, 200, got.StatusCode)
		require.NotContains(t, got.Body, "[DONE]")
		require.True(t,
			strings.HasSuffix(got.Body,
				`data: {"error":{"message":"the stream broke","type":"server_error","param":null,"code":"stream_cut"}}`+"\n\n"),
			got.Body)
	})
	t.Run("a reply without deltas is replayed, with all answer headers", func(t *testing.T) {
		t.Parallel()
		got := start(t, &apitest.Entry{Target: apitest.Replies(`{"r":1}`)}, nil).Chat(t, apitest.StreamBody)
		require.Equal(t, "data: {\"r\":1}\n\ndata: [DONE]\n\n", got.Body)
		require.Equal(t, "1", got.Header.Get("Shallot-Attempts"))
		require.Equal(t, "text/event-stream", got.Header.Get("Content-Type"))
	})
	t.Run("refused at the entry", func(t *testing.T) {
		t.Parallel()
		d := &apitest.Entry{Refuse: func(pipeline.Request) error {
			return messages.NewFault(messages.Overloaded,
				"full").From("entry")
		}}
		got := start(t, d, nil).Chat(t, apitest.StreamBody)
		got.IsFault(t, messages.Overloaded)
		require.Equal(t, "1", got.Header.Get("Retry-After"))
	})
	t.Run("a follower with nothing to show is no success", func(t *testing.T) {
		t.Parallel()
		g := start(t, &apitest.Entry{Target: streams(ends, "{}")}, func(_ *Config, p *Deps) {
			p.NewFollower = func([]byte) Follower { return mute{} }
		})
		g.Chat(t, apitest.StreamBody).IsFault(t, messages.Internal)
	})
}

type mute struct{}

func (mute) Delta(pipeline.Delta) [][]byte                  { return nil }
func (mute) End(*messages.Call) ([][]byte, *messages.Fault) { return nil, nil }

// open begins a streamed call and returns the reader of its events.
func open(t *testing.T, g *testGateway, ctx context.Context) (*http.Response, *bufio.Reader) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", g.URL+"/v1/chat/completions",
		strings.NewReader(apitest.StreamBody))
	require.NoError(t, err)
	res, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(t, err)
	t.Cleanup(func() { res.Body.Close() })
	return res, bufio.NewReader(res.Body)
}

func TestStreamIsFlushedEventByEventAndPings(t *testing.T) {
	t.Parallel()
	step := make(chan string)
	d := &apitest.Entry{Target: func(_ context.Context, c *messages.Call, emit pipeline.Emit) error {
		for s := range step {
			if err := emit([]byte(s)); err != nil {
				return err
			}
		}
		return ends(c)
	}}
	g := start(t, d, func(c *Config, _ *Deps) { c.Heartbeat = 5 * time.Millisecond })
	go func() { step <- `{"n":1}` }()
	_, r := open(t, g, t.Context())
	next := func() string {
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		_, err = r.ReadString('\n')
		require.NoError(t, err)
		return line
	}
	require.Equal(t, "data: {\"n\":1}\n", next(), "nothing, not even a ping, comes before the first chunk")
	require.Equal(t, ": ping\n", next(), "idle")
	step <- `{"n":2}`
	for line := next(); line != "data: {\"n\":2}\n"; line = next() {
		require.Equal(t, ": ping\n", line)
	}
	close(step)
	for line := next(); line != "data: [DONE]\n"; line = next() {
		require.Equal(t, ": ping\n", line)
	}
}

func TestClientWhoLeavesIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"stream": apitest.StreamBody, "whole reply": apitest.GoodBody} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			running := make(chan struct{})
			d := &apitest.Entry{Left: make(chan string, 1),
				Target: func(ctx context.Context, _ *messages.Call, emit pipeline.Emit) error {
					_ = emit([]byte(`{}`))
					close(running)
					<-ctx.Done()
					return ctx.Err()
				}}
			g := start(t, d, nil)
			ctx, leave := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				req, _ := http.NewRequestWithContext(ctx, "POST", g.URL+"/v1/chat/completions", strings.NewReader(body))
				if res, err := http.DefaultTransport.RoundTrip(req); err == nil {
					_, _ = io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			}()
			<-running
			leave()
			<-done
			select {
			case <-d.Left:
			case <-time.After(time.Minute):
				t.Fatal("the call was not left")
			}
		})
	}
}

func TestNormalEndDoesNotLeave(t *testing.T) {
	t.Parallel()
	d := &apitest.Entry{Left: make(chan string, 1), Target: streams(ends, "{}")}
	g := start(t, d, nil)
	g.Chat(t, apitest.StreamBody)
	g.Chat(t, apitest.GoodBody)
	g.Close() // waits for the handlers
	require.Empty(t, d.Left)
}

func TestStalledReaderMeetsTheWriteDeadline(t *testing.T) {
	t.Parallel()
	big := `"` + strings.Repeat("x", 32<<20) + `"` // more than socket buffers take
	d := &apitest.Entry{Left: make(chan string, 2), Target: streams(ends, big)}
	g := start(t, d, func(c *Config, _ *Deps) { c.WriteTimeout, c.StreamBuffer = 30*time.Millisecond, 64<<20 })
	conn, err := net.Dial("tcp", g.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s",
		len(apitest.StreamBody), apitest.StreamBody)
	require.NoError(t, err)
	<-d.Left
}

func TestStreamThenReplyOnOneConnection(t *testing.T) {
	t.Parallel()
	d := &apitest.Entry{Target: streams(ends, "{}")}
	g := start(t, d, func(c *Config, _ *Deps) { c.WriteTimeout = 300 * time.Millisecond })
	require.Contains(t, g.Chat(t, apitest.StreamBody).Body, "[DONE]")
	hold := time.NewTimer(400 * time.Millisecond) // longer than the stream's last write deadline
	<-hold.C
	require.Equal(t, 200, g.Chat(t, apitest.GoodBody).StatusCode)
}

func TestGracefulStop(t *testing.T) {
	t.Parallel()
	all, bodies, d := stopped(t, false)
	require.Contains(t, all, `"code":"stream_cut"`)
	require.Empty(t, d.Left, "an accepted call goes on")
	for _, res := range bodies {
		if res.StatusCode != 200 {
			require.Contains(t, res.Header.Get("Location"), "/v1/results/")
		}
	}
}

// A call that is bound to its gateway ends with it: its caller hears that end, and of no place where one will be.
func TestBoundCallsEndWithTheirGateway(t *testing.T) {
	t.Parallel()
	all, bodies, _ := stopped(t, true)
	require.Contains(t, all, "send it again")
	require.NotContains(t, all, "goes on")
	require.NotContains(t, all, "/v1/results/")
	for _, res := range bodies {
		require.Empty(t, res.Header.Get("Location"))
	}
}

// stopped stops a gateway in the middle of a streamed and a plain call, and returns what their callers read.
func stopped(t *testing.T, bound bool) (all string, answers []*http.Response, d *apitest.Entry) {
	running := make(chan struct{}, 2)
	d = &apitest.Entry{Left: make(chan string, 4), Bound: bound,
		Target: func(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
			if c.Stream {
				_ = emit([]byte(`{"n":1}`))
			}
			running <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}}
	s, err := New(Config{Addr: "127.0.0.1:0", Grace: 50 * time.Millisecond},
		Deps{Entry: d, NewFollower: func([]byte) Follower { return &apitest.PlainFollower{} }})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- s.ServeOn(l, s.Handler()) }()

	bodies := make(chan *http.Response, 2)
	texts := make(chan string, 2)
	for _, body := range []string{apitest.StreamBody, apitest.GoodBody} {
		go func() {
			res, err := http.Post("http://"+l.Addr().String()+"/v1/chat/completions", "application/json",
				strings.NewReader(body))
			if err != nil {
				texts <- err.Error()
				return
			}
			raw, _ := io.ReadAll(res.Body)
			res.Body.Close()
			bodies <- res
			texts <- string(raw)
		}()
	}
	<-running
	<-running
	require.NoError(t, s.Shutdown(t.Context()))
	require.NoError(t, <-served)
	all = <-texts + <-texts
	require.Contains(t, all, `data: {"n":1}`)
	require.Contains(t, all, `"code":"stopping"`)
	require.NotContains(t, all, "[DONE]")
	_, err = net.Dial("tcp", l.Addr().String())
	require.Error(t, err)
	for range 2 {
		res := <-bodies
		answers = append(answers, res)
		if res.StatusCode != 200 {
			require.Empty(t, res.Header.Get("X-Should-Retry"), "another gateway may be asked")
			require.NotEmpty(t, res.Header.Get("Retry-After"))
		}
	}
	return all, answers, d
}

func TestStopLetsCallsFinish(t *testing.T) {
	t.Parallel()
	running, finish := make(chan struct{}), make(chan struct{})
	d := &apitest.Entry{Target: func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		close(running)
		<-finish
		return ends(c)
	}}
	s, err := New(Config{Addr: "127.0.0.1:0"}, Deps{Entry: d})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = s.ServeOn(l, s.Handler()) }()
	got := make(chan int, 1)
	go func() {
		res, err := http.Post("http://"+l.Addr().String()+"/v1/chat/completions", "application/json",
			strings.NewReader(apitest.GoodBody))
		if err == nil {
			res.Body.Close()
			got <- res.StatusCode
		}
	}()
	<-running
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(context.Background()) }()
	require.Eventually(t, s.stopping.Load, 30*time.Second, time.Millisecond)
	close(finish)
	require.Equal(t, 200, <-got)
	require.NoError(t, <-stopped)
}
