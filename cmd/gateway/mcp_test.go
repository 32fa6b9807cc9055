package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/intake"
	"github.com/shallot-nats/shallot/pipeline/toolbox/toolspec"
)

// fakeTools is a registry of fixed definitions without MCP servers behind.
type fakeTools struct {
	mu   sync.Mutex
	defs []*toolspec.Definition
}

func (f *fakeTools) Tools(context.Context) ([]*toolspec.Definition, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.defs, nil
}
func (f *fakeTools) MCPNames() (names, prefixes []string) { return nil, nil }
func (f *fakeTools) AskMCP(context.Context, string, string, any) (json.RawMessage, error) {
	return nil, errors.New("none")
}
func (f *fakeTools) OnMCPChange(func(host.MCPChange)) (func(), error) { return func() {}, nil }

func tool(name, kind string) *toolspec.Definition {
	return &toolspec.Definition{Name: name, Version: "1", Description: "d", Executor: toolspec.Executor{Kind: kind},
		InputSchema: toolspec.JSON(`{"properties":{"n":{"type":"integer"}}}`), Annotations: &toolspec.Annotations{Title: "T"}}
}

// withMCP serves /mcp of the test gateway.
func withMCP(t *testing.T, door *localEntry, source mcpSource, edit func(*settings, *parts)) *testGateway {
	face, err := newMCPFace(door, source, true, identity{Tenant: "default", Role: intake.RoleCaller}, testLog(t))
	require.NoError(t, err)
	t.Cleanup(face.Close)
	return start(t, door, func(c *settings, p *parts) {
		p.Extra = append(p.Extra, surface{Pattern: "/mcp", Handler: face.handler(1 << 20)})
		if edit != nil {
			edit(c, p)
		}
	})
}

type bearerOf string

func (b bearerOf) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if b != "" {
		r.Header.Set("Authorization", "Bearer "+string(b))
	}
	return http.DefaultTransport.RoundTrip(r)
}

func mcpClient(t *testing.T, url, key, revision string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o)
	s, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url + "/mcp", HTTPClient: &http.Client{Transport: bearerOf(key)}, MaxRetries: -1},
		&mcp.ClientSessionOptions{ProtocolVersion: revision})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func textOf(t *testing.T, r *mcp.CallToolResult) string {
	t.Helper()
	require.NotEmpty(t, r.Content)
	return r.Content[0].(*mcp.TextContent).Text
}

var revisions = []string{"2026-07-28", "2025-11-25", "2025-06-18"}

func TestMCPCall(t *testing.T) {
	t.Parallel()
	door := &localEntry{target: func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		switch string(c.Request()) {
		case `{"n":1}`:
			c.SetReply([]byte(`{"sum":9007199254740993}`))
		case `{"n":2}`:
			c.SetReply([]byte(`"words"`))
		case `{"n":3}`:
			return messages.NewFault(messages.InvalidArguments, "n: expected integer, got string; m: missing").From("tool-arguments")
		case `{"n":4}`:
			c.SetReply([]byte(`{"error":"no luck","suggestion":"later"}`))
			c.Note(messages.NoteDegraded, "graceful_error")
		case `{"n":5}`:
			c.SetReply([]byte(`{"old":true}`))
			c.Note(messages.NoteDegraded, "stale_cache")
		case `{"n":6}`:
			c.SetReply([]byte("no such city"))
			c.Note(messages.NoteIsError, true)
		case `{"n":7}`:
			c.SetReply([]byte(`{"sum":7}`))
			c.Note(messages.NoteMetadata, map[string]any{"from_cache": true})
		case `{"n":9007199254740993}`:
			c.SetReply([]byte(`[1,2]`))
		}
		return nil
	}}
	g := withMCP(t, door, &fakeTools{defs: []*toolspec.Definition{tool("add", "go"), tool("zoo", "go")}}, func(_ *settings, p *parts) { p.Keys = twoTenants(t) })
	for _, revision := range revisions {
		t.Run(revision, func(t *testing.T) {
			s := mcpClient(t, g.URL, "key-a", revision, nil)
			require.Equal(t, revision, s.InitializeResult().ProtocolVersion)
			list, err := s.ListTools(t.Context(), nil)
			require.NoError(t, err)
			require.Len(t, list.Tools, 2)
			require.Equal(t, []string{"add", "zoo", "T"}, []string{list.Tools[0].Name, list.Tools[1].Name, list.Tools[0].Title})
			do := func(args string) *mcp.CallToolResult {
				r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "add", Arguments: json.RawMessage(args), Meta: mcp.Meta{"shallot/session": "s1"}})
				require.NoError(t, err)
				return r
			}
			r := do(`{"n":1}`)
			require.Equal(t, `{"sum":9007199254740993}`, textOf(t, r), "exact integers")
			require.NotNil(t, r.StructuredContent)
			require.False(t, r.IsError)
			require.NotEmpty(t, r.Meta["shallot/call"])
			last := door.last(t)
			require.Equal(t, []any{messages.Tool, "add", "ta", "s1"}, []any{last.Kind, last.Tool, last.Tenant, last.Session}, "the tenant is the key's")

			require.Equal(t, "words", textOf(t, do(`{"n":2}`)))
			r = do(`{"n":3}`)
			require.True(t, r.IsError, "SEP-1303: bad arguments are a result")
			require.Contains(t, textOf(t, r), "m: missing")
			require.Equal(t, "invalid_arguments", r.Meta["shallot/fault"])
			r = do(`{"n":4}`)
			require.True(t, r.IsError, "contracts 13: over MCP a graceful error is an error")
			require.Equal(t, "graceful_error", r.Meta["shallot/degraded"])
			r = do(`{"n":5}`)
			require.False(t, r.IsError)
			require.Contains(t, r.Content[len(r.Content)-1].(*mcp.TextContent).Text, "stale_cache", "X-34: the model sees the mark")
			r = do(`{"n":6}`)
			require.True(t, r.IsError)
			require.Equal(t, "no such city", textOf(t, r))
			require.NotContains(t, r.Meta, "shallot/from_cache")
			r = do(`{"n":7}`)
			require.Equal(t, true, r.Meta["shallot/from_cache"], "S2-CACHE-4")
			r = do(`{"n":9007199254740993}`)
			require.Equal(t, "[1,2]", textOf(t, r))
			require.Nil(t, r.StructuredContent)

			_, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "none"})
			var wire *jsonrpc.Error
			require.ErrorAs(t, err, &wire, "an unknown tool is an error of the protocol")
			require.EqualValues(t, jsonrpc.CodeInvalidParams, wire.Code)
			_, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "add", Meta: mcp.Meta{"shallot/idempotency-key": "a b"}})
			require.ErrorAs(t, err, &wire)
			_, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "add", Arguments: json.RawMessage(`{"n":1}`), Meta: mcp.Meta{"shallot/idempotency-key": "k1"}})
			require.NoError(t, err)
			require.Equal(t, "k1", door.last(t).IdempotencyKey)
		})
	}
}

func TestMCPCancel(t *testing.T) {
	t.Parallel()
	for _, revision := range revisions {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			begun, progressed := make(chan struct{}, 1), make(chan float64, 4)
			door := &localEntry{left: make(chan string, 1), target: func(ctx context.Context, _ *messages.Call, emit pipeline.Emit) error {
				_ = emit([]byte(`{"progress":{"progress":1,"total":3}}`))
				_ = emit([]byte(`{"progress":{"progress":1}}`))
				_ = emit([]byte(`{"progress":{"progress":2,"message":"m"}}`))
				begun <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}}
			g := withMCP(t, door, &fakeTools{defs: []*toolspec.Definition{tool("slow", "go")}}, nil)
			s := mcpClient(t, g.URL, "", revision, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
				progressed <- r.Params.Progress
			}})
			ctx, cancel := context.WithCancel(t.Context())
			p := &mcp.CallToolParams{Name: "slow"}
			p.SetProgressToken("token-1")
			done := make(chan error, 1)
			go func() { _, err := s.CallTool(ctx, p); done <- err }()
			<-begun
			require.Equal(t, []float64{1, 2}, []float64{<-progressed, <-progressed}, "progress only grows")
			cancel()
			require.Error(t, <-done)
			select {
			case <-door.left:
			case <-time.After(10 * time.Second):
				t.Fatal("the call was not left")
			}
		})
	}
}

func TestMCPGuards(t *testing.T) {
	t.Parallel()
	door := &localEntry{}
	source := &fakeTools{defs: []*toolspec.Definition{tool("add", "go")}}
	const ask = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	headers := []string{"Accept: application/json, text/event-stream", "Mcp-Protocol-Version: 2026-07-28", "Mcp-Method: tools/list"}
	open := withMCP(t, door, source, nil)
	require.Equal(t, http.StatusOK, open.do(t, "POST", "/mcp", ask, headers...).StatusCode)
	require.Equal(t, http.StatusForbidden, open.do(t, "POST", "/mcp", ask, append(headers, "Host: evil.example")...).StatusCode, "DNS rebinding")
	require.Equal(t, http.StatusForbidden, open.do(t, "POST", "/mcp", ask, append(headers, "Origin: https://evil.example")...).StatusCode)
	require.Equal(t, http.StatusMethodNotAllowed, open.do(t, "GET", "/mcp", "", headers...).StatusCode)

	keyed := withMCP(t, door, source, func(_ *settings, p *parts) { p.Keys = twoTenants(t) })
	require.Equal(t, http.StatusUnauthorized, keyed.do(t, "POST", "/mcp", ask, headers...).StatusCode)
	require.Equal(t, http.StatusOK, keyed.do(t, "POST", "/mcp", ask, append(headers, authA)...).StatusCode)

	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
	accept := "Accept: application/json, text/event-stream"
	r := keyed.do(t, "POST", "/mcp", hello, accept, authA)
	require.Equal(t, http.StatusOK, r.StatusCode, r.body)
	session := "Mcp-Session-Id: " + r.Header.Get("Mcp-Session-Id")
	const list = `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`
	keyed.do(t, "POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, accept, authA, session)
	require.Equal(t, http.StatusForbidden, keyed.do(t, "POST", "/mcp", list, accept, authB, session).StatusCode, "another key's session")
	require.Equal(t, http.StatusOK, keyed.do(t, "POST", "/mcp", list, accept, authA, session).StatusCode)
}

func TestMCPListFollowsTheRegistry(t *testing.T) {
	t.Parallel()
	held := tool("held", "go")
	held.Held = "changed"
	source := &fakeTools{defs: []*toolspec.Definition{tool("add", "go"), held}}
	g := withMCP(t, &localEntry{}, source, nil)
	changed := make(chan struct{}, 8)
	s := mcpClient(t, g.URL, "", "2026-07-28", &mcp.ClientOptions{ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} }})
	names := func() (out []string) {
		l, err := s.ListTools(t.Context(), nil)
		require.NoError(t, err)
		for _, t := range l.Tools {
			out = append(out, t.Name)
		}
		return out
	}
	require.Equal(t, []string{"add"}, names(), "held tools are not offered")
	source.mu.Lock()
	source.defs = []*toolspec.Definition{tool("bad", "go"), tool("new", "go")}
	source.defs[0].InputSchema = toolspec.JSON(`{"type":"object","properties":{"a":{"type":"object","x-mcp-header":"A"}}}`)
	source.mu.Unlock()
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Fatal("no news of the list")
	}
	require.Eventually(t, func() bool { return len(names()) == 1 && names()[0] == "new" }, 10*time.Second, 10*time.Millisecond,
		"a tool that the SDK refuses does not take the others with it")
}

func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}
