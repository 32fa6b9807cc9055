package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// ready is what a helper process prints when it serves, with its address.
const ready = "ready "

const (
	chunks     = 40 // of a streamed reply
	slowTime   = 60 * time.Millisecond
	echoTopic  = "load.echo"
	answerSize = 1 << 10
)

var (
	answer = []byte(`{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"mock",` +
		`"choices":[{"index":0,"message":{"role":"assistant","content":"` + strings.Repeat("word ", answerSize/5) +
		`"},"finish_reason":"stop"}],"usage":{"prompt_tokens":400,"completion_tokens":200,"total_tokens":600}}`)
	chunkHead = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"mock",` +
		`"choices":[{"index":0,"delta":`
	firstChunk = []byte(chunkHead + `{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n")
	chunk      = []byte(chunkHead + `{"content":"word "},"finish_reason":null}]}` + "\n\n")
	lastChunk  = []byte(chunkHead + `{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n")
)

// listenAndServe serves on a free port of the loopback address until ctx ends.
func listenAndServe(ctx context.Context, h http.Handler) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	fmt.Fprintln(os.Stdout, ready+l.Addr().String())
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// serveUpstream is a model that answers at once, after slowTime if its name says so, or in chunks.
func serveUpstream(ctx context.Context, _ string) error {
	return listenAndServe(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		head := body[:min(len(body), 200)]
		if bytes.Contains(head, []byte("mock-slow")) {
			time.Sleep(slowTime)
		}
		if !bytes.Contains(head, []byte(`"stream":true`)) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", fmt.Sprint(len(answer)))
			_, _ = w.Write(answer)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		rc := http.NewResponseController(w)
		send := func(b []byte) { _, _ = w.Write(b); _ = rc.Flush() }
		send(firstChunk)
		for range chunks - 2 {
			send(chunk)
		}
		send(lastChunk)
	}))
}

// serveProxy is the yardstick: the reverse proxy of Go's library, with connections kept.
func serveProxy(ctx context.Context, _, upstream string) error {
	to, err := url.Parse(upstream)
	if err != nil {
		return err
	}
	buffers := &pool{sync.Pool{New: func() any { return make([]byte, 32<<10) }}}
	return listenAndServe(ctx, &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     &http.Transport{MaxIdleConnsPerHost: 1024},
		BufferPool:    buffers,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
	})
}

type pool struct{ sync.Pool }

func (p *pool) Get() []byte { return p.Pool.Get().([]byte) }

//lint:ignore SA6002 a yardstick may make one allocation of 24 bytes
func (p *pool) Put(b []byte) { p.Pool.Put(b) }

// serveEcho answers requests on the bus with the upstream's answer.
func serveEcho(ctx context.Context, server string) error {
	nc, err := nats.Connect(server)
	if err != nil {
		return err
	}
	defer nc.Close()
	if _, err := nc.Subscribe(echoTopic, func(m *nats.Msg) { _ = m.Respond(answer) }); err != nil {
		return err
	}
	if err := nc.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, ready+server)
	<-ctx.Done()
	return nil
}
