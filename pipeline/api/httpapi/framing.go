package httpapi

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// listener hands out connections on which a request that is not HTTP is refused as all others are. net/http answers
// such a request itself, before any handler, in plain text.
type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		return &conn{TCPConn: tcp}, err
	}
	return c, err
}

// conn is a connection of a caller. Once a handler has run on it, what is written is an answer and goes out as it is.
type conn struct {
	*net.TCPConn
	handled atomic.Bool
}

func handled(c net.Conn) {
	if c, ok := c.(*conn); ok {
		c.handled.Store(true)
	}
}

// plainRefusal is how net/http goes on after the status line of a refusal of its own.
const plainRefusal = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

// Write replaces a refusal of net/http, which is one write.
func (c *conn) Write(b []byte) (int, error) {
	if !c.handled.Load() {
		line, _, ok := bytes.Cut(b, []byte(plainRefusal))
		if status, why, is := refusedLine(string(line)); ok && is {
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

func refusal(status int, why string) []byte {
	code, text := messages.InvalidRequest, "the request is not HTTP/1.1 that can be read"
	switch status {
	case http.StatusRequestHeaderFieldsTooLarge:
		code, text = messages.TooLarge, fmt.Sprintf("the headers are larger than %d bytes", maxHeader)
	case http.StatusHTTPVersionNotSupported:
		code, text = messages.UnsupportedVersion, "this version of HTTP is not spoken here; HTTP/1.1 is"
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
