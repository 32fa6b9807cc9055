package mcpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// stdioServer runs gateway mcp's side of a pipe and returns what it writes, line by line.
type stdioServer struct {
	in    *io.PipeWriter
	lines chan string
	ended chan error
}

func overStdio(ctx context.Context, t *testing.T, entry *apitest.Entry, limit int) *stdioServer {
	server, err := New(Options{Entry: entry, Tools: &fakeTools{defs: []*tool.Definition{toolDef("slow", "go")}},
		Upstreams: &fakeTools{}, GracefulIsError: true, Local: api.Identity{Tenant: "default", Role: api.RoleCaller},
		Log: apitest.Log(t)})
	require.NoError(t, err)
	server.Alone = true
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	s := &stdioServer{in: inW, lines: make(chan string, 100), ended: make(chan error, 1)}
	go func() {
		s.ended <- server.ServeStdio(ctx, inR, outW, limit)
		server.Close()
		_ = outW.Close()
	}()
	go func() {
		defer close(s.lines)
		for r := bufio.NewReader(outR); ; {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			s.lines <- line
		}
	}()
	return s
}

func (s *stdioServer) say(t *testing.T, lines ...string) {
	for _, l := range lines {
		_, err := io.WriteString(s.in, l+"\n")
		require.NoError(t, err)
	}
}

func (s *stdioServer) next(t *testing.T) string {
	t.Helper()
	select {
	case l := <-s.lines:
		return l
	case <-time.After(time.Minute):
		t.Fatal("nothing was written")
		return ""
	}
}

const (
	sayHello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26",` +
		`"capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
	sayReady = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	sayPing  = `{"jsonrpc":"2.0","id":"p","method":"ping"}`
)

func sayCall(id int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"slow","arguments":{}}}`, id)
}

// A line that is no message is answered and harms nothing else; batches are taken where the revision has them.
func TestMCPStdioBadLines(t *testing.T) {
	t.Parallel()
	s := overStdio(t.Context(), t, &apitest.Entry{Target: apitest.Replies(`{}`)}, 1000)
	s.say(t, sayHello, sayReady)
	require.Contains(t, s.next(t), `"protocolVersion":"2025-03-26"`)
	for line, want := range map[string][]string{
		`{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`: {"-32600", `"id":9007199254740993`, "2^53"},
		"not json": {"-32700", `"id":null`}, "{}": {"-32600"}, `{"jsonrpc":"1.0","id":4,"method":"ping"}`: {"-32600",
			`"id":4`}, "[]": {"-32600"},
		`{"x":"` + strings.Repeat("y", 2000) +
			`"}`: {"-32600", "1000 bytes"},
		`{"jsonrpc":"2.0","id":5,"method":"ping","method":"tools/list"}`:    {"-32600", `"id":5`, "twice"},
		"{\"jsonrpc\":\"2.0\",\"id\":6,\"method\":\"ping\",\"x\":\"\xff\"}": {"-32600", "UTF-8"},
		`{"jsonrpc":"2.0","id":7,"method":"ping","x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) +
			`}`: {"-32600", `"id":7`, "deeper than 64"},
		sayPing + "   \r": {`"id":"p"`, `"result":{}`},
	} {
		s.say(t, "", line)
		got := s.next(t)
		require.True(t, json.Valid([]byte(got)), got)
		for _, w := range want {
			require.Contains(t, got, w, line)
		}
	}
	s.say(t, `[{"jsonrpc":"2.0","id":8,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/x"},`+
		`{"jsonrpc":"2.0","id":8,"method":"ping"},{"jsonrpc":"2.0","id":9,"method":"ping"}]`)
	require.Contains(t, s.next(t), "its own id")
	batch := s.next(t)
	require.ElementsMatch(t, []any{8.0, 9.0}, gjson.Get(batch, "#.id").Value(), "one array has the answers")
	require.NoError(t, s.in.Close())
	require.NoError(t, <-s.ended)
}

// The end of stdin loses no answer; a cancelled call has none; a stop answers what is under way and cancels it.
func TestMCPStdioEnds(t *testing.T) {
	t.Parallel()
	begun, free := make(chan struct{}, 4), make(chan struct{})
	entry := &apitest.Entry{Left: make(chan string, 4),
		Target: func(ctx context.Context, c *messages.Call, _ pipeline.Emit) error {
			begun <- struct{}{}
			select {
			case <-free:
				c.SetReply([]byte(`{"done":true}`))
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	told := overStdio(ctx, t, entry, 1<<20)
	told.say(t, sayHello, sayReady, sayCall(1), sayCall(2), sayCall(2))
	first := told.next(t) + told.next(t) // in either order
	require.Contains(t, first, `"id":0`)
	require.Contains(t, first, "its own id", "the second call 2")
	<-begun
	<-begun
	told.say(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	<-entry.Left
	told.say(t, sayPing)
	require.Contains(t, told.next(t), `"id":"p"`, "not the cancelled call")
	stop()
	require.Contains(t, told.next(t), "told to stop")
	<-entry.Left
	require.NoError(t, <-told.ended)

	piped := overStdio(t.Context(), t, entry, 1<<20)
	piped.say(t, sayHello, sayReady, sayCall(3))
	require.NoError(t, piped.in.Close())
	require.Contains(t, piped.next(t), `"id":0`)
	<-begun
	close(free)
	require.Contains(t, piped.next(t), `"done":true`, "the answer came after the end of stdin")
	require.NoError(t, <-piped.ended)
	_, open := <-piped.lines
	require.False(t, open)
}

// A gateway that stops tells who waits where the result will be, or that the call ends with it, before it cuts
// anything.
func TestMCPHaltAnswers(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		revision, words string
		bound           bool
	}{{"2026-07-28", "/v1/results/", false}, {"2025-06-18", "/v1/results/", false},
		{"2026-07-28", "send it again", true}} {
		t.Run(row.revision+" "+row.words, func(t *testing.T) {
			t.Parallel()
			begun := make(chan struct{}, 1)
			entry := &apitest.Entry{Bound: row.bound,
				Target: func(ctx context.Context, _ *messages.Call, _ pipeline.Emit) error {
					begun <- struct{}{}
					<-ctx.Done()
					return ctx.Err()
				}}
			server, err := New(Options{Entry: entry, Tools: &fakeTools{defs: []*tool.Definition{toolDef("slow", "go")}},
				Upstreams: &fakeTools{}, GracefulIsError: true, Local: api.Identity{}, Log: apitest.Log(t)})
			require.NoError(t, err)
			t.Cleanup(server.Close)
			g := serveMCP(t, entry, server, nil)
			c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
			s, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: g.URL + "/mcp", MaxRetries: -1,
				DisableStandaloneSSE: true},
				// a standing stream that ends may end the client before it has read the answer
				&mcp.ClientSessionOptions{ProtocolVersion: row.revision})
			require.NoError(t, err)
			t.Cleanup(func() { _ = s.Close() })
			got := make(chan *mcp.CallToolResult, 1)
			go func() { r, _ := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "slow"}); got <- r }()
			<-begun
			server.EndSessions()
			r := <-got
			require.NotNil(t, r)
			require.True(t, r.IsError)
			require.Contains(t, apitest.TextOf(t, r), row.words)
			require.Equal(t, !row.bound, strings.Contains(apitest.TextOf(t, r), "/v1/results/"))
		})
	}
}
