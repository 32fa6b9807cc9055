package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// listener hands out connections on which a request that is not HTTP is refused as all others are. net/http answers
// such a request itself, before any handler, in plain text.
type listener struct {
	net.Listener
	log  *slog.Logger
	full bool      // the last connection could not be accepted
	said time.Time // when the log was told
}

// Accept is called by one goroutine, which waits a moment after an error that passes.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	l.note(err)
	if tcp, ok := c.(*net.TCPConn); ok {
		return &conn{TCPConn: tcp}, err
	}
	return c, err
}

// fullAgain is how often the log is told that no connection can be accepted.
const fullAgain = 10 * time.Second

// note tells the log that connections wait because the process has no descriptor left for them, and that they wait no
// more.
func (l *listener) note(err error) {
	full := errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
	switch {
	case full && time.Since(l.said) > fullAgain:
		l.said = time.Now()
		l.log.Warn("no connection can be accepted, because too many files are open; callers wait until others leave: "+
			"raise the limit of the process (ulimit -n)", "addr", l.Addr().String(), "err", err)
	case !full && l.full && err == nil && time.Since(l.said) > fullAgain/10:
		l.log.Info("connections are accepted again", "addr", l.Addr().String())
	case !full && l.full && err == nil:
		return // it says so when it has lasted
	}
	l.full = full
}

// conn is a connection of a caller. While a handler runs on it, what is written is an answer and goes out as it is.
type conn struct {
	*net.TCPConn
	handled atomic.Bool
}

func handled(c net.Conn, by bool) {
	if c, ok := c.(*conn); ok {
		c.handled.Store(by)
	}
}

// onState notices that a request has been answered: the next one may be refused again.
func onState(c net.Conn, s http.ConnState) {
	if s == http.StateIdle {
		handled(c, false)
	}
}

// Write replaces a refusal of net/http, which is one write: a status line and, for most, text. Before a handler nothing
// else is written but 100 Continue.
func (c *conn) Write(b []byte) (int, error) {
	if !c.handled.Load() {
		line, _, _ := bytes.Cut(b, []byte("\r\n"))
		if status, why, is := refusedLine(string(line)); is {
			_, err := c.TCPConn.Write(refusal(status, why))
			return len(b), err
		}
	}
	return c.TCPConn.Write(b)
}

// refusedLine reads a status line; why may be empty.
func refusedLine(line string) (status int, why string, ok bool) {
	rest, ok := strings.CutPrefix(line, "HTTP/1.1 ")
	code, text, _ := strings.Cut(rest, " ")
	status, err := strconv.Atoi(code)
	_, why, _ = strings.Cut(text, ": ")
	return status, why, ok && err == nil && status >= 400 && len(code) == 3
}

const otherVersion = "this version of HTTP is not spoken here; HTTP/1.1 is"

func versionFault() *messages.Fault {
	f := messages.NewFault(messages.UnsupportedVersion, otherVersion).From("entry")
	f.Status = http.StatusHTTPVersionNotSupported
	return f
}

func refusal(status int, why string) []byte {
	code, text := messages.InvalidRequest, "the request is not HTTP/1.1 that can be read"
	switch status {
	case http.StatusRequestHeaderFieldsTooLarge:
		code, text = messages.TooLarge, fmt.Sprintf("the headers are larger than %d bytes", maxHeader)
	case http.StatusExpectationFailed:
		text = "of Expect only 100-continue is known; send the request without this header"
	case http.StatusHTTPVersionNotSupported:
		code, text = messages.UnsupportedVersion, otherVersion
	}
	if why != "" {
		text += ": " + why
	}
	f := messages.NewFault(code, "%s", text).From("entry")
	f.Status = status
	h := http.Header{"Content-Type": {"application/json"}, "Connection": {"close"}, "X-Request-Id": {messages.NewID()}}
	for k, v := range api.FaultHeaders(f) {
		setHeader(h, k, v)
	}
	body := f.Body()
	h.Set("Content-Length", strconv.Itoa(len(body)))
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
	_ = h.Write(&b) // into memory
	b.WriteString("\r\n")
	return append(b.Bytes(), body...)
}
