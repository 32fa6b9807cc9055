package httpapi

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// connKey is the key of a request's connection in its context.
type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// attend replaces the request's context by one that ends when the caller is gone, and when the returned function is
// called. net/http ends a context as soon as nothing more can be read from the connection. But a client may close its
// sending side after its request, and still waits for the answer (RFC 9112, 9.6). Both look the same until something is
// sent: a client that is gone answers that with a reset.
func (s *Server) attend(r *http.Request, a *recorder, begin time.Time) (*http.Request, func()) {
	ctx := context.WithValue(context.WithoutCancel(r.Context()), beginKey{}, begin)
	ctx, cancel := context.WithCancel(ctx)
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	handled(conn, true)
	answered, watched := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(r.Context(), func() {
		defer close(watched)
		if conn != nil {
			s.untilGone(conn, r.ProtoAtLeast(1, 1), a, answered)
		}
		cancel()
	})
	return r.WithContext(ctx), func() {
		close(answered)
		if !stop() {
			<-watched
		}
		cancel()
	}
}

// untilGone returns when the caller is gone or answered. For a while it only looks, because most answers come soon;
// then it sends something that means nothing, at once and with every heartbeat, and looks what comes back. Nothing can
// be sent to a caller of HTTP/1.0 before the answer: only the probes of TCP find out that they are gone.
func (s *Server) untilGone(conn net.Conn, interim bool, a *recorder, answered <-chan struct{}) {
	if tcp, ok := conn.(interface {
		SetKeepAliveConfig(net.KeepAliveConfig) error
	}); ok {
		every := s.Heartbeat / 2
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: 3})
	}
	const often, seldom = 10 * time.Millisecond, time.Second
	wait, probe := often, time.Now().Add(s.Probe)
	for {
		now := !time.Now().Before(probe)
		if now {
			wait, probe = often, time.Now().Add(s.Heartbeat)
		}
		if a.gone(conn, now, interim, s.WriteTimeout) {
			return
		}
		select {
		case <-answered:
			return
		case <-time.After(min(wait, max(time.Until(probe), 0))):
			wait = min(2*wait, seldom)
		}
	}
}

// gone reports whether the connection is known to be dead. If speak, it first sends what makes a dead one known: an
// interim response before the answer, a comment between the events of a stream. A whole answer is sent without a pause
// and shows by itself whether somebody takes it.
func (a *recorder) gone(conn net.Conn, speak, interim bool, timeout time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	var err error
	switch {
	case speak && a.status == 0 && interim:
		_, err = io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\n")
	case speak && a.betweenEvents():
		rc := http.NewResponseController(a.ResponseWriter)
		_ = rc.SetWriteDeadline(time.Now().Add(timeout))
		if _, err = io.WriteString(a.ResponseWriter, ": ping\n\n"); err == nil {
			err = rc.Flush()
		}
	default:
		_, err = conn.Write(nil) // nothing to send: it only says whether something could be sent
	}
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

func (a *recorder) betweenEvents() bool {
	return a.whole && strings.HasPrefix(a.Header().Get("Content-Type"), "text/event-stream")
}
