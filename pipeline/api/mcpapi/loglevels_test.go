package mcpapi

//lint:file-ignore SA1019 logging is deprecated since 2026-07-28 and kept for at least a year

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

// A log message reaches the caller of the call on whose stream it came, at their level, and nobody else; where streams
// are shared it reaches nobody.
func TestMCPLogMessages(t *testing.T) {
	t.Parallel()
	both := make(chan struct{})
	running := make(chan string, 8)
	up := mcp.NewServer(&mcp.Implementation{Name: "up", Version: "1"},
		&mcp.ServerOptions{Capabilities: &mcp.ServerCapabilities{Logging: &mcp.LoggingCapabilities{}}})
	up.AddTool(&mcp.Tool{Name: "say", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			running <- string(r.Params.Arguments)
			<-both // every call is under way when the first message is sent
			for _, level := range []mcp.LoggingLevel{"debug", "error"} {
				_ = r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: level, Logger: "l",
					Data: json.RawMessage(r.Params.Arguments)})
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "ok"}}}, nil
		})
	serve := func(o *mcp.StreamableHTTPOptions) string {
		web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return up }, o))
		t.Cleanup(web.Close)
		return web.URL
	}
	server := chainServer(t, map[string]any{"name": "now", "url": serve(&mcp.StreamableHTTPOptions{Stateless: true})},
		map[string]any{"name": "older", "url": serve(nil)})
	type heard struct{ who, level, data string }
	got := make(chan heard, 64)
	client := func(who, level, revision string) func(server string) error {
		s := server.client(t, &mcp.ClientOptions{LoggingMessageHandler: func(_ context.Context,
			r *mcp.LoggingMessageRequest) {
			got <- heard{who, string(r.Params.Level), string(rawjson.Encode(r.Params.Data))}
		}}, &mcp.ClientSessionOptions{ProtocolVersion: revision})
		apitest.Offered(t, s, "now_say")
		apitest.Offered(t, s, "older_say")
		meta := mcp.Meta{}
		if revision == firstSessionless && level != "" {
			meta[mcp.MetaKeyLogLevel] = level
		} else if level != "" {
			require.NoError(t, s.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: mcp.LoggingLevel(level)}))
		}
		return func(server string) error {
			_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: server + "_say",
				Arguments: map[string]string{"who": who, "server": server}, Meta: maps.Clone(meta)})
			return err
		}
	}
	callers := []func(string) error{client("all", "debug", firstSessionless), client("errors", "error", "2025-06-18"),
		client("nothing", "", "2025-11-25")}
	done := make(chan error, 8)
	for _, call := range callers {
		for _, server := range []string{"now", "older"} {
			go func() { done <- call(server) }()
		}
	}
	for range 6 {
		<-running
	}
	close(both)
	for range 6 {
		require.NoError(t, <-done)
	}
	want := map[heard]bool{}
	for _, server := range []string{"now", "older"} {
		data := func(who string) string { return `{"server":"` + server + `","who":"` + who + `"}` }
		want[heard{"all", "debug", data("all")}], want[heard{"all", "error", data("all")}],
			want[heard{"errors", "error", data("errors")}] = true, true, true
	}
	seen := map[heard]bool{}
	require.Eventually(t, func() bool {
		for len(got) > 0 {
			seen[<-got] = true
		}
		return len(seen) >= len(want)
	}, 30*time.Second, 10*time.Millisecond)
	require.Equal(t, want, seen)
}
