package apitest

import (
	"context"
	"encoding/json"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
)

// Person answers forms, with one answer after the other; the last one is repeated.
type Person struct {
	Asked   atomic.Int64
	Last    atomic.Pointer[mcp.ElicitParams]
	Answers []*mcp.ElicitResult
}

// Options are those of a client that the person uses.
func (p *Person) Options() *mcp.ClientOptions {
	answer := func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		n := int(p.Asked.Add(1))
		p.Last.Store(r.Params)
		return p.Answers[min(n, len(p.Answers))-1], nil
	}
	return &mcp.ClientOptions{ElicitationHandler: answer}
}

// Filled is a form that was filled in.
func Filled(content map[string]any) *mcp.ElicitResult {
	return &mcp.ElicitResult{Action: "accept", Content: content}
}

// CallTool calls a tool and requires that the call has a result.
func CallTool(t *testing.T, s *mcp.ClientSession, p *mcp.CallToolParams) *mcp.CallToolResult {
	t.Helper()
	r, err := s.CallTool(t.Context(), p)
	require.NoError(t, err)
	return r
}

// AddBig is a call that waits for a person with WaitingTools.
func AddBig() *mcp.CallToolParams {
	return &mcp.CallToolParams{Name: "add", Arguments: json.RawMessage(`{"a":9007199254740993,"b":1}`)}
}

// Connect opens a session that ends with the test.
func Connect(t *testing.T, transport mcp.Transport, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o).Connect(t.Context(), transport, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Offered waits until the server lists a tool.
func Offered(t *testing.T, s *mcp.ClientSession, tool string) {
	t.Helper()
	require.Eventually(t, func() bool {
		for x, err := range s.Tools(t.Context(), nil) {
			if err == nil && x.Name == tool {
				return true
			}
		}
		return false
	}, 30*time.Second, 20*time.Millisecond, "%s is not listed", tool)
}

// Invoke calls a tool with arguments in JSON.
func Invoke(t *testing.T, s *mcp.ClientSession, tool, args string) *mcp.CallToolResult {
	t.Helper()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(args)})
	require.NoError(t, err)
	return r
}

type bearerOf string

func (b bearerOf) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if b != "" {
		r.Header.Set("Authorization", "Bearer "+string(b))
	}
	return http.DefaultTransport.RoundTrip(r)
}

// DialMCP opens a session with /mcp of a server, with a key and a revision of the protocol.
func DialMCP(t *testing.T, url, key, revision string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o)
	dial := &mcp.StreamableClientTransport{
		Endpoint: url + "/mcp", HTTPClient: &http.Client{Transport: bearerOf(key)}, MaxRetries: -1,
	}
	s, err := c.Connect(t.Context(), dial, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TextOf is the text of a result.
func TextOf(t *testing.T, r *mcp.CallToolResult) string {
	t.Helper()
	require.NotEmpty(t, r.Content)
	return r.Content[0].(*mcp.TextContent).Text
}
