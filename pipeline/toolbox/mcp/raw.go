package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// metaRequest is the key in _meta that marks a request, so that the bytes of its result can be found.
const metaRequest = "shallot/request"

// maxKept bounds what is kept of one answer, in bytes.
const maxKept = 64 << 20

// rawResults keeps the results of marked requests as they came: the SDK decodes structured content through float64,
// which rounds integers above 2^53 and loses the order of keys.
type rawResults struct {
	mu  sync.Mutex
	got map[string]json.RawMessage // by mark; present and nil while the result is awaited
	// once are the marks of requests that may not be sent twice.
	once map[string]bool
	// stop holds the functions that end the calls whose answer cannot be read.
	stop map[string]context.CancelCauseFunc
}

var errUnreadable = errors.New("its answer is not valid JSON")

// watch makes stop be called when the answer to the mark's call cannot be read.
func (r *rawResults) watch(mark string, stop context.CancelCauseFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop == nil {
		r.stop = map[string]context.CancelCauseFunc{}
	}
	r.stop[mark] = stop
}

// broken ends the mark's call.
func (r *rawResults) broken(mark string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if stop := r.stop[mark]; stop != nil {
		stop(errUnreadable)
	}
}

func (r *rawResults) expect(mark string, once bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.got == nil {
		r.got, r.once = map[string]json.RawMessage{}, map[string]bool{}
	}
	r.got[mark] = nil
	if once {
		r.once[mark] = true
	}
}

// sendOnce reports whether the marked request may not be sent twice.
func (r *rawResults) sendOnce(mark string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.once[mark]
}

func (r *rawResults) put(mark string, result json.RawMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.got[mark]; ok && len(result) > 0 {
		r.got[mark] = result
	}
}

// take returns the result of a marked request and forgets it; nil if it was not seen.
func (r *rawResults) take(mark string) json.RawMessage {
	r.mu.Lock()
	defer r.mu.Unlock()
	raw := r.got[mark]
	delete(r.got, mark)
	delete(r.once, mark)
	delete(r.stop, mark)
	return raw
}

// rawTransport notes the results on a transport of messages (stdio, in memory).
type rawTransport struct {
	mcp.Transport
	seen *rawResults
	conn mcp.Connection // set by Connect
}

// Connect implements mcp.Transport.
func (t *rawTransport) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := t.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	r := &rawConn{
		Connection: c, seen: t.seen, marks: map[jsonrpc.ID]string{}, out: make(chan outgoing, 64),
		ended: make(chan struct{}),
	}
	t.conn = r
	go r.pump()
	return r, nil
}

// rawConn writes in its own goroutine, which ends with the connection: a server that does not read must not hold its
// callers beyond their time.
type rawConn struct {
	mcp.Connection
	seen  *rawResults
	out   chan outgoing
	once  sync.Once
	ended chan struct{}
	mu    sync.Mutex
	marks map[jsonrpc.ID]string
}

type outgoing struct {
	ctx context.Context
	m   jsonrpc.Message
}

// stuck is how long one write may take: longer than any call lives.
const stuck = 90 * time.Second

func (c *rawConn) pump() {
	for {
		select {
		case <-c.ended:
			return
		case o := <-c.out:
			if r, ok := o.m.(*jsonrpc.Request); ok && r.IsCall() && o.ctx.Err() != nil {
				continue // nobody waits for it any more, and the server has not seen it
			}
			timer := time.AfterFunc(stuck, func() { _ = c.Close() })
			err := c.Connection.Write(context.WithoutCancel(o.ctx), o.m)
			timer.Stop()
			if err != nil {
				_ = c.Close()
				return
			}
		}
	}
}

// Close implements mcp.Connection.
func (c *rawConn) Close() error {
	c.once.Do(func() { close(c.ended) })
	return c.Connection.Close()
}

// Write implements mcp.Connection. It returns when the message is in the queue.
func (c *rawConn) Write(ctx context.Context, m jsonrpc.Message) error {
	if r, ok := m.(*jsonrpc.Request); ok && r.IsCall() {
		if mark := markOf(r.Params); mark != "" {
			c.mu.Lock()
			c.marks[r.ID] = mark
			c.mu.Unlock()
		}
	}
	select {
	case c.out <- outgoing{ctx, m}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ended:
		return io.ErrClosedPipe
	}
}

// Read implements mcp.Connection.
func (c *rawConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	if r, ok := m.(*jsonrpc.Response); ok {
		c.mu.Lock()
		mark, ok := c.marks[r.ID]
		delete(c.marks, r.ID)
		c.mu.Unlock()
		if ok {
			c.seen.put(mark, r.Result)
		}
	}
	return m, err
}

func markOf(params []byte) string {
	return gjson.GetBytes(params, "_meta."+metaRequest).String()
}

// rawTripper notes the results on HTTP, adds the configured headers, and never follows a redirect to another origin.
type rawTripper struct {
	base    http.RoundTripper
	headers map[string]string
	seen    *rawResults
	logged  func(mark string, message json.RawMessage) // gets log messages on the stream of a marked request
}

func (t *rawTripper) client() *http.Client {
	return &http.Client{Transport: t, CheckRedirect: func(to *http.Request, via []*http.Request) error {
		from := via[0].URL
		if len(via) > 3 || to.URL.Scheme != from.Scheme || to.URL.Host != from.Host {
			return errors.New("a redirect to another origin is not followed; configure the final URL")
		}
		if t.seen.sendOnce(marked(via[0])) {
			return http.ErrUseLastResponse
		}
		return nil
	}}
}

// RoundTrip implements http.RoundTripper.
func (t *rawTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	mark := marked(req)
	if len(t.headers) > 0 {
		req = req.Clone(req.Context())
		for k, v := range t.headers {
			req.Header.Set(k, v)
		}
	}
	if t.seen.sendOnce(mark) {
		req = req.WithContext(toolbox.Once(req.Context()))
	}
	resp, err := t.base.RoundTrip(req)
	if err != nil || mark == "" {
		return resp, err
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if kind == "application/json" {
		if err := mend(req, resp); err != nil {
			return nil, err
		}
	}
	resp.Body = &listener{ReadCloser: resp.Body, stream: kind == "text/event-stream", heard: func(message []byte) {
		if text := bytes.TrimSpace(message); kind == "text/event-stream" && len(text) > 0 && !json.Valid(text) {
			t.seen.broken(mark)
			return
		}
		if r := gjson.GetBytes(message, "result"); r.Exists() && gjson.GetBytes(message, "id").Exists() {
			t.seen.put(mark, json.RawMessage(bytes.Clone([]byte(r.Raw))))
		}
		if gjson.GetBytes(message, "method").Str == "notifications/message" {
			t.logged(mark, json.RawMessage(gjson.GetBytes(message, "params").Raw))
		}
	}}
	return resp, nil
}

// mend replaces an answer that cannot be read by an error: the SDK would otherwise end the connection, and with it
// every other call.
func mend(req *http.Request, resp *http.Response) error {
	all, err := io.ReadAll(io.LimitReader(resp.Body, maxKept+1))
	_ = resp.Body.Close()
	if err != nil {
		return err
	}
	why := ""
	switch {
	case len(all) > maxKept:
		why = fmt.Sprintf("its answer is longer than %d bytes", maxKept)
	case resp.StatusCode == http.StatusOK && !json.Valid(all):
		why = errUnreadable.Error()
	}
	if why != "" {
		id := gjson.GetBytes(requestBody(req), "id").Raw
		all = fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":%s}}`, id, rawjson.Encode(why))
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(all)), int64(len(all))
	resp.Header.Del("Content-Length")
	return nil
}

// marked is the mark of the request's body; empty if it has none.
func marked(req *http.Request) string {
	return markOf([]byte(gjson.GetBytes(requestBody(req), "params").Raw))
}

// requestBody is the body of a request if it can be read again, else nil.
func requestBody(req *http.Request) []byte {
	if req.GetBody == nil || req.Method != http.MethodPost {
		return nil
	}
	b, err := req.GetBody()
	if err != nil {
		return nil
	}
	all, _ := io.ReadAll(b)
	_ = b.Close()
	return all
}

// listener sees the messages of a body before its reader does.
type listener struct {
	io.ReadCloser
	stream bool
	heard  func(message []byte)
	line   []byte
	data   []byte
}

// Read implements io.Reader.
func (l *listener) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	if len(l.line)+len(l.data)+n > maxKept {
		l.line, l.data, l.heard = nil, nil, func([]byte) {}
	}
	if !l.stream {
		l.line = append(l.line, p[:n]...)
		if errors.Is(err, io.EOF) {
			l.heard(l.line)
		}
		return n, err
	}
	for _, b := range p[:n] {
		if b != '\n' {
			l.line = append(l.line, b)
			continue
		}
		line := bytes.TrimSuffix(l.line, []byte("\r"))
		if rest, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			l.data = append(append(l.data, bytes.TrimPrefix(rest, []byte(" "))...), '\n')
		} else if len(line) == 0 && len(l.data) > 0 {
			l.heard(l.data)
			l.data = l.data[:0]
		}
		l.line = l.line[:0]
	}
	return n, err
}
