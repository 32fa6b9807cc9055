package mcpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/api/httpapi"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// fakeTools is a registry of fixed definitions without MCP servers behind.
type fakeTools struct {
	mu   sync.Mutex
	defs []*tool.Definition
}

func (f *fakeTools) List(context.Context) ([]*tool.Definition, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.defs, nil
}
func (f *fakeTools) Get(_ context.Context, name string) (*tool.Definition, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.defs {
		if d.Name == name {
			return d, nil
		}
	}
	return nil, tool.NotFound(name)
}
func (f *fakeTools) Servers() (names, prefixes []string) { return nil, nil }
func (f *fakeTools) Ask(context.Context, string, string, any) (json.RawMessage, error) {
	return nil, errors.New("none")
}
func (f *fakeTools) OnChange(func(tool.MCPChange)) (func(), error) { return func() {}, nil }

func toolDef(name, kind string) *tool.Definition {
	return &tool.Definition{Name: name, Version: "1", Description: "d", Executor: tool.Executor{Kind: kind},
		InputSchema: tool.JSON(`{"properties":{"n":{"type":"integer"}}}`), Annotations: &tool.Annotations{Title: "T"}}
}

// source is what a server asks; it may keep tasks too.
type source interface {
	Tools
	Upstreams
}

// serveSource serves /mcp of the test gateway.
func serveSource(t *testing.T, entry *apitest.Entry, s source,
	edit func(*httpapi.Config, *httpapi.Deps)) apitest.Client {
	tasks, _ := s.(TaskStore)
	server, err := New(Options{Entry: entry, Tools: s, Upstreams: s, Tasks: tasks, GracefulIsError: true,
		Local: api.Identity{Tenant: "default", Role: api.RoleCaller}, Log: apitest.Log(t)})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	if entry.Target == nil {
		entry.Target = apitest.Replies(`{"ok":true}`)
	}
	return serveMCP(t, entry, server, edit)
}

func TestToolIsCallableAsSoonAsItIsRegistered(t *testing.T) {
	t.Parallel()
	source := &fakeTools{}
	g := serveSource(t, &apitest.Entry{}, source, nil)
	s := apitest.DialMCP(t, g.URL, "", revisions[0], nil)
	call := func(name string) error {
		_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: json.RawMessage(`{"n":1}`)})
		return err
	}
	for _, name := range []string{"first", "second", "third"} {
		require.ErrorContains(t, call(name), "tools/list shows all tools")
		source.mu.Lock()
		source.defs = append(source.defs[:len(source.defs):len(source.defs)], toolDef(name, "go"))
		source.mu.Unlock()
		require.NoError(t, call(name), "the next sync may be half a second away")
	}
}

var revisions = []string{"2026-07-28", "2025-11-25", "2025-06-18"}

func TestMCPCall(t *testing.T) { // (S2-MCP-1, S2-RES-1)
	t.Parallel()
	entry := &apitest.Entry{Target: func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		switch string(c.Request()) {
		case `{"n":1}`:
			c.SetReply([]byte(`{"sum":9007199254740993}`))
		case `{"n":2}`:
			c.SetReply([]byte(`"words"`))
		case `{"n":3}`:
			return messages.NewFault(messages.InvalidArguments,
				"n: expected integer, got string; m: missing").From("tool-arguments")
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
	g := serveSource(t, entry, &fakeTools{defs: []*tool.Definition{toolDef("add", "go"), toolDef("zoo", "go")}},
		func(_ *httpapi.Config, p *httpapi.Deps) { p.Keys = twoTenants(t) })
	for _, revision := range revisions {
		t.Run(revision, func(t *testing.T) {
			s := apitest.DialMCP(t, g.URL, "key-a", revision, nil)
			require.Equal(t, revision, s.InitializeResult().ProtocolVersion)
			list, err := s.ListTools(t.Context(), nil)
			require.NoError(t, err)
			require.Len(t, list.Tools, 2)
			require.Equal(t, []string{"add", "zoo", "T"}, []string{list.Tools[0].Name, list.Tools[1].Name, list.Tools[0].Title})
			do := func(args string) *mcp.CallToolResult {
				r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "add", Arguments: json.RawMessage(args),
					Meta: mcp.Meta{"shallot/session": "s1"}})
				require.NoError(t, err)
				return r
			}
			r := do(`{"n":1}`)
			require.Equal(t, `{"sum":9007199254740993}`, apitest.TextOf(t, r), "exact integers")
			require.NotNil(t, r.StructuredContent)
			require.False(t, r.IsError)
			require.NotEmpty(t, r.Meta["shallot/call"])
			last := entry.Last(t)
			require.Equal(t, []any{messages.Tool, "add", "ta", "s1"}, []any{last.Kind, last.Tool, last.Tenant, last.Session},
				"the tenant is the key's")

			require.Equal(t, "words", apitest.TextOf(t, do(`{"n":2}`)))
			r = do(`{"n":3}`)
			require.True(t, r.IsError, "SEP-1303: bad arguments are a result")
			require.Contains(t, apitest.TextOf(t, r), "m: missing")
			require.Equal(t, "invalid_arguments", r.Meta["shallot/fault"])
			r = do(`{"n":4}`)
			require.True(t, r.IsError, "over MCP a graceful error is an error")
			require.Equal(t, "graceful_error", r.Meta["shallot/degraded"])
			r = do(`{"n":5}`)
			require.False(t, r.IsError)
			require.Contains(t, r.Content[len(r.Content)-1].(*mcp.TextContent).Text, "stale_cache",
				"X-34: the model sees the mark")
			r = do(`{"n":6}`)
			require.True(t, r.IsError)
			require.Equal(t, "no such city", apitest.TextOf(t, r))
			require.NotContains(t, r.Meta, "shallot/from_cache")
			r = do(`{"n":7}`)
			require.Equal(t, true, r.Meta["shallot/from_cache"], "S2-CACHE-4")
			r = do(`{"n":9007199254740993}`)
			require.Equal(t, "[1,2]", apitest.TextOf(t, r))
			require.Nil(t, r.StructuredContent)

			_, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "none"})
			var wire *jsonrpc.Error
			require.ErrorAs(t, err, &wire, "an unknown tool is an error of the protocol")
			require.EqualValues(t, jsonrpc.CodeInvalidParams, wire.Code)
			_, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "add", Meta: mcp.Meta{"shallot/idempotency-key": "a b"}})
			require.ErrorAs(t, err, &wire)
			_, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "add", Arguments: json.RawMessage(`{"n":1}`),
				Meta: mcp.Meta{"shallot/idempotency-key": "k1"}})
			require.NoError(t, err)
			require.Equal(t, "k1", entry.Last(t).IdempotencyKey)
		})
	}
}

func TestMCPCancel(t *testing.T) {
	t.Parallel()
	for _, revision := range revisions {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			begun, progressed := make(chan struct{}, 1), make(chan float64, 4)
			entry := &apitest.Entry{Left: make(chan string, 1),
				Target: func(ctx context.Context, _ *messages.Call, emit pipeline.Emit) error {
					_ = emit([]byte(`{"progress":{"progress":1,"total":3}}`))
					_ = emit([]byte(`{"progress":{"progress":1}}`))
					_ = emit([]byte(`{"progress":{"progress":2,"message":"m"}}`))
					begun <- struct{}{}
					<-ctx.Done()
					return ctx.Err()
				}}
			g := serveSource(t, entry, &fakeTools{defs: []*tool.Definition{toolDef("slow", "go")}}, nil)
			s := apitest.DialMCP(t, g.URL, "", revision, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context,
				r *mcp.ProgressNotificationClientRequest) {
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
			case <-entry.Left:
			case <-time.After(time.Minute):
				t.Fatal("the call was not left")
			}
		})
	}
}

func TestMCPGuards(t *testing.T) {
	t.Parallel()
	entry := &apitest.Entry{}
	source := &fakeTools{defs: []*tool.Definition{toolDef("add", "go")}}
	const ask = `{"jsonrpc":"2.0","id":1,"method":"tools/list",` +
		`"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientCapabilities":{}}}}`
	headers := []string{"Accept: application/json, text/event-stream", "Mcp-Protocol-Version: 2026-07-28",
		"Mcp-Method: tools/list"}
	open := serveSource(t, entry, source, nil)
	require.Equal(t, http.StatusOK, open.Do(t, "POST", "/mcp", ask, headers...).StatusCode)
	require.Equal(t, http.StatusForbidden, open.Do(t, "POST", "/mcp", ask,
		append(headers, "Host: evil.example")...).StatusCode, "DNS rebinding")
	require.Equal(t, http.StatusForbidden, open.Do(t, "POST", "/mcp", ask,
		append(headers, "Origin: https://evil.example")...).StatusCode)
	require.Equal(t, http.StatusMethodNotAllowed, open.Do(t, "GET", "/mcp", "", headers...).StatusCode)

	keyed := serveSource(t, entry, source, func(_ *httpapi.Config, p *httpapi.Deps) { p.Keys = twoTenants(t) })
	require.Equal(t, http.StatusUnauthorized, keyed.Do(t, "POST", "/mcp", ask, headers...).StatusCode)
	require.Equal(t, http.StatusOK, keyed.Do(t, "POST", "/mcp", ask, append(headers, apitest.AuthA)...).StatusCode)

	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
		`"capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
	accept := "Accept: application/json, text/event-stream"
	r := keyed.Do(t, "POST", "/mcp", hello, accept, apitest.AuthA)
	require.Equal(t, http.StatusOK, r.StatusCode, r.Body)
	session := "Mcp-Session-Id: " + r.Header.Get("Mcp-Session-Id")
	const list = `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`
	keyed.Do(t, "POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, accept, apitest.AuthA, session)
	require.Equal(t, http.StatusForbidden, keyed.Do(t, "POST", "/mcp", list, accept, apitest.AuthB, session).StatusCode,
		"another key's session")
	require.Equal(t, http.StatusOK, keyed.Do(t, "POST", "/mcp", list, accept, apitest.AuthA, session).StatusCode)
}

func TestMCPListFollowsTheRegistry(t *testing.T) {
	t.Parallel()
	held := toolDef("held", "go")
	held.Quarantined = "changed"
	source := &fakeTools{defs: []*tool.Definition{toolDef("add", "go"), held}}
	g := serveSource(t, &apitest.Entry{}, source, nil)
	changed := make(chan struct{}, 8)
	s := apitest.DialMCP(t, g.URL, "", "2026-07-28",
		&mcp.ClientOptions{ToolListChangedHandler: func(context.Context,
			*mcp.ToolListChangedRequest) {
			changed <- struct{}{}
		}})
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
	source.defs = []*tool.Definition{toolDef("bad", "go"), toolDef("new", "go")}
	source.defs[0].InputSchema = tool.JSON(`{"type":"object","properties":{"a":{"type":"object","x-mcp-header":"A"}}}`)
	source.mu.Unlock()
	select {
	case <-changed:
	case <-time.After(time.Minute):
		t.Fatal("no news of the list")
	}
	require.Eventually(t, func() bool { return len(names()) == 1 && names()[0] == "new" }, 30*time.Second,
		10*time.Millisecond,
		"a tool that the SDK refuses does not take the others with it")
}
