// Package apitest is what the tests of the APIs share: an entry in this process, an HTTP client, an installation.
package apitest

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
)

const (
	GoodBody   = `{"model":"m1","messages":[{"role":"user","content":"hi"}]}`
	StreamBody = `{"model":"m1","stream":true,"messages":[{"role":"user","content":"hi"}]}`
)

// Client sends requests to a server under test.
type Client struct{ *httptest.Server }

// Reply is a whole answer.
type Reply struct {
	*http.Response
	Body string
}

// Param is the field that an error names.
func (r Reply) Param() string { return gjson.Get(r.Body, "error.param").String() }

// Message is the text of an error.
func (r Reply) Message() string { return gjson.Get(r.Body, "error.message").String() }

// IsFault checks the whole form of an error: four keys, the code's header, x-should-retry.
func (r Reply) IsFault(t *testing.T, code messages.Code) {
	t.Helper()
	require.Equal(t, string(code), r.Header.Get("Shallot-Fault"), r.Body)
	require.Equal(t, "application/json", r.Header.Get("Content-Type"))
	for _, key := range []string{"message", "type", "param", "code"} {
		require.True(t, gjson.Get(r.Body, "error."+key).Exists(), "error.%s in %s", key, r.Body)
	}
	require.NotEmpty(t, r.Header.Get("X-Request-Id"))
	if !code.Info().Retryable {
		require.Equal(t, "false", r.Header.Get("X-Should-Retry"))
	}
}

// Do sends a request; headers are "Name: value" lines.
func (g Client) Do(t *testing.T, method, path, body string, headers ...string) Reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, g.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	if body == "" {
		req.Body = nil
	} else {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		switch name {
		case "Host":
			req.Host = value
		case "Content-Type":
			req.Header.Set(name, value)
		default:
			req.Header[name] = append(req.Header[name], value)
		}
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(t, err)
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return Reply{res, string(raw)}
}

// Chat posts a chat body.
func (g Client) Chat(t *testing.T, body string, headers ...string) Reply {
	t.Helper()
	return g.Do(t, "POST", "/v1/chat/completions", body, headers...)
}

// Raw sends bytes as they are, for requests that no client library would make.
func (g Client) Raw(t *testing.T, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", g.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = fmt.Fprint(conn, request)
	require.NoError(t, err)
	out, _ := io.ReadAll(conn)
	return string(out)
}

// TwoTenantsFile is a keys file with the keys a (tenant ta), b (tenant tb) and op (operator), with the pepper "pepper".
func TwoTenantsFile(hash func(key string, pepper []byte) string) string {
	return fmt.Sprintf(`
keys:
  - {id: a, hash: %q, tenant: ta, models: ["m1", "org/*"], agents: [helper]}
  - {id: b, hash: %q, tenant: tb, user: fixed}
  - {id: op, hash: %q, tenant: ops, role: operator}
`, hash("key-a", []byte("pepper")), hash("key-b", []byte("pepper")), hash("key-op", nil))
}

const (
	AuthA  = "Authorization: Bearer key-a"
	AuthB  = "Authorization: Bearer key-b"
	AuthOp = "Authorization: Bearer key-op"
)
