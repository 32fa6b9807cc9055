package toolbox

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
)

// Connections sends the requests of tools, and judges what it means when a connection breaks. An upstream may close a
// kept connection just as a request leaves on it. Nobody can tell whether it took the request, so whoever may send
// twice sends once more, on a new connection; and whoever may not (Once) never uses a kept one. It is an
// http.RoundTripper and safe for concurrent use.
type Connections struct{ kept, fresh *http.Transport }

var _ http.RoundTripper = (*Connections)(nil)

// NewConnections takes over the transport.
func NewConnections(t *http.Transport) *Connections {
	fresh := t.Clone()
	fresh.DisableKeepAlives = true
	return &Connections{kept: t, fresh: fresh}
}

// CloseIdleConnections drops what is kept and not in use.
func (c *Connections) CloseIdleConnections() { c.kept.CloseIdleConnections() }

// onceKey is the key of Once in a request's context.
type onceKey struct{}

// Once makes a context whose requests are sent once: no kept connection, and no redirect, which 307 and 308 follow with
// the same request, while nobody knows what the first one did.
func Once(ctx context.Context) context.Context { return context.WithValue(ctx, onceKey{}, true) }

func mayRepeat(ctx context.Context) bool { return ctx.Value(onceKey{}) == nil }

// RoundTrip sends the request. Its body must be readable again (GetBody) to be sent once more.
func (c *Connections) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	req = hideKeys(req)
	if !mayRepeat(ctx) {
		return c.fresh.RoundTrip(req)
	}
	var reused, answered atomic.Bool
	res, err := c.kept.RoundTrip(req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:              func(g httptrace.GotConnInfo) { reused.Store(g.Reused) },
		GotFirstResponseByte: func() { answered.Store(true) },
	})))
	if err == nil || !reused.Load() || answered.Load() || ctx.Err() != nil || timedOut(err) {
		return res, err
	}
	body, ok := again(req)
	if !ok {
		return res, err
	}
	once := req.Clone(ctx)
	once.Body = body
	return c.fresh.RoundTrip(once)
}

// hideKeys keeps Go's transport from sending a request once more by itself when a connection breaks under it: it does
// that to every request that carries an idempotency key, by the canonical name of the header. On the wire the case of a
// name means nothing. Whether a request is sent again is decided by the tool's policy and nowhere else.
func hideKeys(req *http.Request) *http.Request {
	hidden := req
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		v, ok := req.Header[name]
		if !ok {
			continue
		}
		if hidden == req {
			hidden = req.Clone(req.Context())
		}
		delete(hidden.Header, name)
		hidden.Header[strings.ToLower(name)] = v
	}
	return hidden
}

// again is the body of a request for a second reading.
func again(req *http.Request) (body io.ReadCloser, ok bool) {
	if req.Body == nil || req.Body == http.NoBody {
		return req.Body, true
	}
	if req.GetBody == nil {
		return nil, false
	}
	body, err := req.GetBody()
	return body, err == nil
}

func timedOut(err error) bool {
	n, ok := errors.AsType[net.Error](err)
	return ok && n.Timeout()
}
