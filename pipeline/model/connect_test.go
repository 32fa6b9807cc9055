package model_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
)

// keepAlive is a provider that answers the first request of each connection well, and of the others says only that much
// before it closes. It counts requests.
func keepAlive(t *testing.T, second string) (base string, requests *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	requests = &atomic.Int64{}
	serve := func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		r := bufio.NewReader(conn)
		for n := 0; ; n++ {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			requests.Add(1)
			if n > 0 {
				_, _ = io.WriteString(conn, second)
				return
			}
			res := http.Response{StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {"application/json"}},
				ContentLength: int64(len(okReply)), Body: io.NopCloser(strings.NewReader(okReply))}
			_ = res.Write(conn)
		}
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return "http://" + l.Addr().String(), requests
}

func TestKeptConnectionThatCloses(t *testing.T) { // (FO-5)
	t.Parallel()
	for name, tt := range map[string]struct {
		second   string
		code     messages.Code
		requests int64
	}{
		"without a word is asked once more":     {"", "", 3},
		"within the status line is a failure":   {"HTTP/1.1 2", messages.ProviderError, 2},
		"after the headers is a failure":        {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", messages.ProviderError, 2},
		"with a word that is not HTTP is bad":   {"hello", messages.ProviderError, 2},
		"with an error that it says is a fault": {"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", messages.ProviderError, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base, requests := keepAlive(t, tt.second)
			e := endpoint(t, base)
			c, _ := ask(t.Context(), e, `{"model":"m"}`, false)
			require.Nil(t, c.Fault)
			c, _ = ask(t.Context(), e, `{"model":"m"}`, false)
			require.Equal(t, tt.requests, requests.Load())
			if tt.code == "" {
				require.Nil(t, c.Fault)
				return
			}
			require.NotNil(t, c.Fault)
			require.Equal(t, tt.code, c.Fault.Code, c.Fault.Detail)
		})
	}
}
