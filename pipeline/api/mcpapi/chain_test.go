package mcpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// chain starts everything in this process, with an embedded NATS server and the given MCP servers behind, and connects
// a client to the server.
func chain(t *testing.T, o *mcp.ClientOptions, servers ...map[string]any) *mcp.ClientSession {
	t.Helper()
	return chainOf(t, 64, o, servers...)
}

// chainOf is chain with so many slots for tools: with one, a slot that does not come back stops everything.
func chainOf(t *testing.T, slots int, o *mcp.ClientOptions, servers ...map[string]any) *mcp.ClientSession {
	t.Helper()
	return chainServerOf(t, slots, servers...).client(t, o, nil)
}

// client connects one to the server.
func (f *Server) client(t *testing.T, o *mcp.ClientOptions, so *mcp.ClientSessionOptions) *mcp.ClientSession {
	t.Helper()
	ours, theirs := mcp.NewInMemoryTransports()
	_, err := f.server.Connect(t.Context(), theirs, nil)
	require.NoError(t, err)
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o).Connect(t.Context(), ours, so)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func chainServer(t *testing.T, servers ...map[string]any) *Server {
	t.Helper()
	return chainServerOf(t, 64, servers...)
}

func chainServerOf(t *testing.T, slots int, servers ...map[string]any) *Server {
	t.Helper()
	dir := t.TempDir()
	raw, err := yaml.Marshal(map[string]any{
		"version": 1,
		"tool": map[string]any{
			"arguments": map[string]any{"coercion": "extended"}, "mcp-servers": servers,
			"executor": map[string]any{"core-pool": 1, "max-pool": slots},
		},
		"nats": map[string]any{"embedded": map[string]any{"port": -1, "data": filepath.Join(dir, "data")}},
	})
	require.NoError(t, err)
	file := filepath.Join(dir, "shallot.yaml")
	require.NoError(t, os.WriteFile(file, raw, 0o600))
	loaded, err := host.Load(file, nil, nil)
	require.NoError(t, err)
	h, err := host.Start(t.Context(), host.Options{Config: loaded, Roles: host.Everything(), Name: "test",
		Log: apitest.Log(t), Getenv: func(string) string { return "" }})
	require.NoError(t, err)
	server, err := New(Options{Entry: h.Entry(), Tools: h.Tools.Registry, Upstreams: h.MCP, Tasks: h.Node,
		GracefulIsError: loaded.Tool.Fallback.GracefulIsError != "false",
		Local:           api.Identity{Tenant: "default", Role: api.RoleCaller}, Log: apitest.Log(t)})
	require.NoError(t, err)
	t.Cleanup(func() {
		server.Close()
		stop, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		require.NoError(t, h.Stop(stop))
	})
	return server
}

// TestMCPThroughTheChain has an MCP server behind, the whole chain on a bus between, and an MCP client before it.
func TestMCPThroughTheChain(t *testing.T) {
	t.Parallel()
	stopped := make(chan struct{}, 1)
	up := mcp.NewServer(&mcp.Implementation{Name: "up", Version: "1"}, nil)
	add := func(name, schema string, h mcp.ToolHandler) {
		up.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(schema)}, h)
	}
	add("exact", `{"type":"object","properties":{"n":{"type":"integer"},"list":{"type":"array"}},"required":["n"]}`,
		func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{
				StructuredContent: json.RawMessage(r.Params.Arguments),
				Content: []mcp.Content{&mcp.TextContent{Text: string(r.Params.Arguments)},
					&mcp.ImageContent{MIMEType: "image/png", Data: []byte("x")}},
			}, nil
		})
	add("wait", `{"type":"object"}`, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(),
			Progress: 1})
		<-ctx.Done()
		stopped <- struct{}{}
		return nil, ctx.Err()
	})
	add("asks", `{"type":"object"}`, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		told, ok := r.Params.InputResponses["q"]
		if !ok {
			return &mcp.CallToolResult{RequestState: "s", InputRequests: mcp.InputRequestMap{"q": &mcp.ElicitParams{
				Message: "name?", RequestedSchema: map[string]any{"type": "object",
					"properties": map[string]any{"name": map[string]any{"type": "string"}}},
			}}}, nil
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: r.Params.RequestState + " " +
			told.(*mcp.ElicitResult).Content["name"].(string)}}}, nil
	})
	up.AddPrompt(&mcp.Prompt{Name: "greet"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "hello"}}}},
			nil
	})
	up.AddResource(&mcp.Resource{URI: "test://a", Name: "a"},
		func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "test://a", Text: "content"}}}, nil
		})
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return up },
		&mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true}))
	t.Cleanup(web.Close)
	progressed := make(chan struct{}, 64)
	s := chain(t, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
		},
		ProgressNotificationHandler: func(context.Context,
			*mcp.ProgressNotificationClientRequest) {
			progressed <- struct{}{}
		},
	}, map[string]any{"name": "up", "url": web.URL})
	apitest.Offered(t, s, "up_exact")

	r := apitest.Invoke(t, s, "up_exact", `{"n":"9007199254740993","list":"[1]"}`)
	require.False(t, r.IsError)
	require.Equal(t, `{"n":9007199254740993,"list":[1]}`, apitest.TextOf(t, r),
		"loose arguments are put right, integers stay exact")
	require.IsType(t, &mcp.ImageContent{}, r.Content[1], "native content passes")
	r = apitest.Invoke(t, s, "up_exact", `{"n":"many"}`)
	require.True(t, r.IsError)
	require.Contains(t, apitest.TextOf(t, r), string(messages.InvalidArguments), "the graceful error names its class")

	require.Equal(t, "s Ada", apitest.TextOf(t, apitest.Invoke(t, s, "up_asks", `{}`)),
		"the caller is asked, and their answer reaches the tool")

	got, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "up_greet"})
	if err != nil { // prompts are listed a moment after the tools
		require.Eventually(t, func() bool {
			got, err = s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "up_greet"})
			return err == nil
		}, 30*time.Second, 20*time.Millisecond)
	}
	require.Equal(t, "hello", got.Messages[0].Content.(*mcp.TextContent).Text)
	require.Eventually(t, func() bool {
		res, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "test://a"})
		return err == nil && res.Contents[0].Text == "content"
	}, 30*time.Second, 20*time.Millisecond)

	ctx, cancel := context.WithCancel(t.Context())
	p := &mcp.CallToolParams{Name: "up_wait"}
	p.SetProgressToken("p")
	done := make(chan error, 1)
	go func() { _, err := s.CallTool(ctx, p); done <- err }()
	<-progressed // it runs
	cancel()
	require.Error(t, <-done)
	select {
	case <-stopped:
	case <-time.After(time.Minute):
		t.Fatal("the cancel did not reach the MCP server behind")
	}
}
