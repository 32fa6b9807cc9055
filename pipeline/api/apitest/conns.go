package apitest

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// Conns is a server for tests of what breaks on a connection: answer writes the bytes that it likes to the nth request
// of a connection, from 0, and may close it. It is called by a goroutine of each connection. requests counts the
// requests of all.
func Conns(t testing.TB, answer func(n int, body []byte, c net.Conn)) (url string, requests *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	requests = &atomic.Int64{}
	serve := func(c net.Conn) {
		defer func() { _ = c.Close() }()
		for n, r := 0, bufio.NewReader(c); ; n++ {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			body, _ := io.ReadAll(req.Body)
			requests.Add(1)
			answer(n, body, c)
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return "http://" + l.Addr().String(), requests
}

// KeptOpen answers the first request of a connection with JSON, and says only that much to the second before it closes,
// as a server does that closes idle connections.
func KeptOpen(reply func(body []byte) []byte, second string) func(n int, body []byte, c net.Conn) {
	return func(n int, body []byte, c net.Conn) {
		if n > 0 {
			_, _ = io.WriteString(c, second)
			_ = c.Close()
			return
		}
		res := http.Response{StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(len(reply(body))),
			Body: io.NopCloser(bytes.NewReader(reply(body)))}
		_ = res.Write(c)
	}
}
