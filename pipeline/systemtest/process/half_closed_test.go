//go:build unix

package process

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// halfClosed sends a request, closes the sending side, and returns the answer behind all interim responses.
func halfClosed(t *testing.T, base, request string) (*http.Response, string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = io.WriteString(conn, request)
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	r := bufio.NewReader(conn)
	for {
		res, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		if res.StatusCode == http.StatusContinue {
			continue
		}
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res, string(body)
	}
}

func wire(method, path, body string, header ...string) string {
	lines := []string{method + " " + path + " HTTP/1.1", "Host: localhost"}
	if body != "" {
		lines = append(lines, "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body)))
	}
	return strings.Join(append(lines, header...), "\r\n") + "\r\n\r\n" + body
}

// Every kind of request is answered to a client that closes its sending side after it (EN-8).
func TestAHalfClosedClientGetsItsAnswer(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	_, base := c.gateway()
	c.worker("--stages", "all", "--serve", "model,tool").ready(t)
	const slow = `{"ms":600}`
	submitted := c.http("POST", base+"/v1/tools/slow/call", slow, "Prefer", "respond-async")
	require.Equal(t, 202, submitted.status)
	mcp := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"slow","arguments":` + slow + `,` +
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},` +
		`"io.modelcontextprotocol/clientInfo":{"name":"nc","version":"1"}}}}`
	stream := strings.Replace(echo, "{", `{"stream":true,`, 1)
	for name, tt := range map[string]struct{ request, answer string }{
		"a chat":              {wire("POST", "/v1/chat/completions", echo), "hello"},
		"a stream":            {wire("POST", "/v1/chat/completions", stream), "[DONE]"},
		"a tool":              {wire("POST", "/v1/tools/slow/call", slow), "600"},
		"a tool that streams": {wire("POST", "/v1/tools/slow/call", slow, "Accept: text/event-stream"), "event: result"},
		"a list":              {wire("GET", "/v1/models", ""), "demo/echo"},
		"a result":            {wire("GET", submitted.header("Location"), "", "Prefer: wait=30"), "600"},
		"mcp": {wire("POST", "/mcp", mcp, "Accept: application/json, text/event-stream", "Mcp-Protocol-Version: 2026-07-28",
			"Mcp-Method: tools/call", "Mcp-Name: slow"), `"id":7`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res, body := halfClosed(t, base, tt.request)
			require.Equal(t, 200, res.StatusCode, body)
			require.Contains(t, body, tt.answer)
		})
	}
}
