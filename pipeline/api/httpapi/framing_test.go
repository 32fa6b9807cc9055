package httpapi

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

// served starts a server on the listener as a gateway does, and returns what it logs.
func served(t *testing.T, l net.Listener) *apitest.Output {
	t.Helper()
	log := &apitest.Output{}
	s, err := New(Config{Addr: "127.0.0.1:8080", BodyLimit: 1 << 20}, Deps{
		Entry: &apitest.Entry{Target: apitest.Replies(`{"ok":true}`)}, Log: slog.New(slog.NewTextHandler(log, nil))})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- s.ServeOn(l, s.Handler()) }()
	t.Cleanup(func() {
		require.NoError(t, s.Shutdown(context.WithoutCancel(t.Context())))
		require.NoError(t, <-done)
	})
	return log
}

func loopback(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l
}

// Whatever a client sends, it gets an answer whose body says what is wrong, on a fresh connection and after others.
func TestEveryRefusalHasABody(t *testing.T) {
	t.Parallel()
	l := loopback(t)
	served(t, l)
	post := "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
	length := "Content-Length: " + itoa(len(apitest.GoodBody)) + "\r\n"
	good := post + "Content-Type: application/json\r\n" + length + "\r\n" + apitest.GoodBody
	for name, row := range map[string]struct {
		request string
		status  int
		says    string
	}{
		"another expectation": {post + length + "Expect: other\r\n\r\n" + apitest.GoodBody, 417, "100-continue"},
		"a head of a megabyte": {post + "X-A: " + strings.Repeat("a", 1<<20) + "\r\n\r\n", 431,
			"larger than 65536 bytes"},
		"ten thousand headers": {post + strings.Repeat("X-A: a\r\n", 10_000) + "\r\n", 431, "larger than 65536 bytes"},
		"a path of a megabyte": {"GET /" + strings.Repeat("a", 1<<20) + " HTTP/1.1\r\n\r\n", 431, "larger than"},
		"HTTP/2 at once":       {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/1.1 is"},
		"another version":      {"GET / HTTP/3.1\r\nHost: localhost\r\n\r\n", 505, "HTTP/1.1 is"},
		"no HTTP at all":       {"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400, "not HTTP/1.1 that can be read"},
		"no host":              {"GET /livez HTTP/1.1\r\n\r\n", 400, "missing required Host header"},
		"a header with a zero byte": {"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-A: a\x00b\r\n\r\n", 400,
			"not HTTP/1.1 that can be read"},
		"a coding": {post + "Transfer-Encoding: gzip\r\n\r\n", 501, "not HTTP/1.1 that can be read"},
		"packed otherwise": {post + length + "Content-Encoding: br\r\n\r\n" + apitest.GoodBody, 415,
			"send the body plain or as gzip"},
		"not packed":   {post + length + "Content-Encoding: gzip\r\n\r\n" + apitest.GoodBody, 400, "is not gzip"},
		"another type": {post + length + "Content-Type: text/xml\r\n\r\n" + apitest.GoodBody, 415, "application/json"},
		"too long":     {post + "Content-Length: 1048577\r\n\r\n", 413, "http.body-limit"},
		"cut":          {post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "could not be read to its end"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, before := range []int{0, 2} {
				c, err := net.Dial("tcp", l.Addr().String())
				require.NoError(t, err)
				defer c.Close()
				require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
				r := bufio.NewReader(c)
				for range before {
					_, err := io.WriteString(c, good)
					require.NoError(t, err)
					require.Equal(t, 200, read(t, r).StatusCode)
				}
				go func() { _, _ = io.WriteString(c, row.request) }() // it may be refused before all of it is sent
				res := read(t, r)
				body, _ := io.ReadAll(res.Body)
				require.Equal(t, row.status, res.StatusCode, "%s", body)
				require.Contains(t, gjson.GetBytes(body, "error.message").Str, row.says)
				require.NotEmpty(t, res.Header.Get("X-Request-Id"))
				require.NotEmpty(t, res.Header.Get("Shallot-Fault"))
			}
		})
	}
}

func read(t *testing.T, r *bufio.Reader) *http.Response {
	t.Helper()
	res, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	if res.StatusCode == 200 {
		_, err = io.Copy(io.Discard, res.Body)
		require.NoError(t, err)
	}
	return res
}

// What is odd and clear is served: requests in a row, trailers, a query, an old version.
func TestOddRequestsAreServed(t *testing.T) {
	t.Parallel()
	l := loopback(t)
	served(t, l)
	begin, body := "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n", apitest.GoodBody
	length := "Content-Length: " + itoa(len(body)) + "\r\n\r\n"
	for name, request := range map[string]string{
		"three in a row": strings.Repeat(begin+length+body, 3),
		"chunks with trailers": begin + "Trailer: X-A\r\nTransfer-Encoding: chunked\r\n\r\n" + sixteen(len(body)) + "\r\n" +
			body + "\r\n0\r\nX-A: a\r\n\r\n",
		"a query":         strings.Replace(begin, "completions", "completions?a=b", 1) + length + body,
		"HTTP/1.0":        strings.Replace(begin, "1.1", "1.0", 1) + length + body,
		"it may continue": begin + "Expect: 100-continue\r\n" + length + body,
		"only a head":     "HEAD /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := net.Dial("tcp", l.Addr().String())
			require.NoError(t, err)
			defer c.Close()
			require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
			_, err = io.WriteString(c, request)
			require.NoError(t, err)
			r, method := bufio.NewReader(c), request[:strings.IndexByte(request, ' ')]
			for range strings.Count(request, " HTTP/1.") {
				res, err := http.ReadResponse(r, &http.Request{Method: method})
				require.NoError(t, err)
				if res.StatusCode == http.StatusContinue {
					res, err = http.ReadResponse(r, nil)
					require.NoError(t, err)
				}
				answer, err := io.ReadAll(res.Body)
				require.NoError(t, err)
				require.Equal(t, 200, res.StatusCode, "%s", answer)
			}
		})
	}
}

// crowded is a listener of a process that has no descriptor left for so many times.
type crowded struct {
	net.Listener
	times int
}

func (c *crowded) Accept() (net.Conn, error) {
	if c.times--; c.times >= 0 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return c.Listener.Accept()
}

// A process that has too many files open says so once, and goes on when it can.
func TestAProcessWithTooManyOpenFilesSaysSo(t *testing.T) {
	t.Parallel()
	l := &crowded{loopback(t), 5}
	log := served(t, l)
	res, err := http.Get("http://" + l.Addr().String() + "/livez")
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, 200, res.StatusCode)
	require.Equal(t, 1, strings.Count(log.String(), "too many files are open"), log.String())
	require.Contains(t, log.String(), "ulimit -n")
}
