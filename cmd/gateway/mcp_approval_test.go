package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/intake"
)

// mcpGateway is a gateway with an MCP face on the installation.
func mcpGateway(t *testing.T, h *host.Host, edit func(*settings, *parts)) *testGateway {
	t.Helper()
	face, err := newMCPFace(h.Entry(), h, true, identity{Tenant: "default", Role: intake.RoleCaller}, testLog(t))
	require.NoError(t, err)
	face.desk = h
	t.Cleanup(face.Close)
	return withApprovals(t, h, func(c *settings, p *parts) {
		p.Extra = append(p.Extra, surface{Pattern: "/mcp", Handler: face.handler(1 << 20)})
		if edit != nil {
			edit(c, p)
		}
	})
}

// person answers forms; answers are used up one after the other, the last one stays.
type person struct {
	asked   atomic.Int64
	last    atomic.Pointer[mcp.ElicitParams]
	answers []*mcp.ElicitResult
}

func (p *person) options() *mcp.ClientOptions {
	return &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		n := int(p.asked.Add(1))
		p.last.Store(r.Params)
		return p.answers[min(n, len(p.answers))-1], nil
	}}
}

func says(content map[string]any) *mcp.ElicitResult {
	return &mcp.ElicitResult{Action: "accept", Content: content}
}

func mcpCall(t *testing.T, s *mcp.ClientSession, p *mcp.CallToolParams) *mcp.CallToolResult {
	t.Helper()
	r, err := s.CallTool(t.Context(), p)
	require.NoError(t, err)
	return r
}

func addBig() *mcp.CallToolParams {
	return &mcp.CallToolParams{Name: "add", Arguments: json.RawMessage(`{"a":9007199254740993,"b":1}`)}
}

// A caller who is operator and can show a form decides himself, in every revision; the decision is the person's, not
// the model's, and all four are carried out.
func TestMCPApprovalIsAskedFor(t *testing.T) {
	t.Parallel()
	h := waitingHost(t, waitingTools)
	g := mcpGateway(t, h, nil)
	for _, revision := range revisions {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			do := func(answers ...*mcp.ElicitResult) (*mcp.CallToolResult, *person) {
				p := &person{answers: answers}
				s := mcpClient(t, g.URL, "", revision, p.options())
				offered(t, s, "add")
				return mcpCall(t, s, addBig()), p
			}
			r, p := do(says(map[string]any{"decision": "approve"}))
			require.False(t, r.IsError, textOf(t, r))
			require.Equal(t, `{"sum":9007199254740994}`, textOf(t, r), "HI-2")
			require.EqualValues(t, 1, p.asked.Load())
			require.Contains(t, p.last.Load().Message, `{"a":9007199254740993,"b":1}`)
			r, _ = do(says(map[string]any{"decision": "edit", "arguments": `{"a":"101","b":5}`}))
			require.Equal(t, `{"sum":106}`, textOf(t, r), "HI-3")
			r, _ = do(says(map[string]any{"decision": "reject", "reason": "not now"}))
			require.True(t, r.IsError)
			require.Contains(t, textOf(t, r), "not now", "HI-4")
			require.Contains(t, textOf(t, r), "open/mcp")
			r, _ = do(&mcp.ElicitResult{Action: "decline"})
			require.True(t, r.IsError)
			r, _ = do(says(map[string]any{"decision": "respond", "content": "forty-two"}))
			require.Equal(t, "forty-two", textOf(t, r))
			if revision < firstSessionless {
				r, _ = do(&mcp.ElicitResult{Action: "cancel"})
				require.Equal(t, "approval_pending", r.Meta["shallot/status"])
				r, _ = do(says(map[string]any{"decision": "edit", "arguments": `{"a":"x"}`}))
				require.False(t, r.IsError)
				require.Contains(t, textOf(t, r), "waits for a person's approval", "an edit that is refused leaves it waiting")
				return
			}
			r, p = do(says(map[string]any{"decision": "edit", "arguments": `{"a":"x"}`}), says(map[string]any{"decision": "edit", "arguments": `no`}), says(map[string]any{"decision": "approve"}))
			require.Equal(t, `{"sum":9007199254740994}`, textOf(t, r))
			require.EqualValues(t, 3, p.asked.Load(), "it is asked again, and told why")
			require.Contains(t, p.last.Load().Message, "no JSON")
		})
	}
}

// Who may not decide is not asked: he gets input_required with a state, comes back with it - to any gateway - and gets
// the result of the one call that he made.
func TestMCPApprovalByState(t *testing.T) {
	t.Parallel()
	h := waitingHost(t, waitingTools)
	keys := func(_ *settings, p *parts) { p.Keys = twoTenants(t) }
	one, other := mcpGateway(t, h, keys), mcpGateway(t, h, keys)
	manual := func(g *testGateway, key string) *mcp.ClientSession {
		p := &person{}
		o := p.options()
		o.MultiRoundTrip = &mcp.MultiRoundTripOptions{Disabled: true}
		s := mcpClient(t, g.URL, key, firstSessionless, o)
		offered(t, s, "add")
		return s
	}
	s := manual(one, "key-a")
	r := mcpCall(t, s, addBig())
	require.True(t, r.NeedsInput())
	require.Empty(t, r.InputRequests, "a caller is not asked to decide about his own call")
	require.NotEmpty(t, r.RequestState)
	require.Equal(t, "approval_pending", r.Meta["shallot/status"])
	id, ok := r.Meta["shallot/call"].(string)
	require.True(t, ok)
	again := addBig()
	again.RequestState = r.RequestState
	refused := func(s *mcp.ClientSession, p *mcp.CallToolParams, why string) {
		t.Helper()
		_, err := s.CallTool(t.Context(), p)
		require.ErrorContains(t, err, why)
	}
	bad := *again
	bad.RequestState = r.RequestState[:len(r.RequestState)-2] + "AA"
	refused(s, &bad, "not one that this installation gave out")
	bad.RequestState = strings.Replace(r.RequestState, ownState, ownState+"e30", 1)
	refused(s, &bad, "not one that this installation gave out")
	bad = *again
	bad.Arguments = json.RawMessage(`{"a":1,"b":1}`)
	refused(s, &bad, "belongs to another call")
	refused(manual(one, "key-b"), again, "belongs to another call")
	bad = *again
	bad.InputResponses = mcp.InputResponseMap{questionID: says(map[string]any{"decision": "approve"})}
	refused(s, &bad, "may not decide")
	_, err := h.Approval(t.Context(), "ta", id)
	require.NoError(t, err, "still waiting")

	got := make(chan *mcp.CallToolResult, 1)
	back := manual(other, "key-a")
	go func() {
		r, _ := back.CallTool(context.WithoutCancel(t.Context()), again)
		got <- r
	}()
	require.NoError(t, h.Decide(t.Context(), "ta", id, json.RawMessage(`"approve"`), "ann"))
	select {
	case r := <-got:
		require.NotNil(t, r)
		require.Equal(t, `{"sum":9007199254740994}`, textOf(t, r))
		require.Equal(t, id, r.Meta["shallot/call"])
	case <-time.After(heldWait):
		t.Fatal("whoever came back with the state did not see the decision")
	}
	r = mcpCall(t, s, again)
	require.Equal(t, `{"sum":9007199254740994}`, textOf(t, r), "the state is good for the result later, too")
}

// A client of an older revision that cannot be asked gets a text that says how to go on, and goes on so.
func TestMCPApprovalForOlderClients(t *testing.T) {
	t.Parallel()
	h := waitingHost(t, waitingTools)
	g := mcpGateway(t, h, nil)
	s := mcpClient(t, g.URL, "", "2025-11-25", nil)
	offered(t, s, "add")
	r := mcpCall(t, s, addBig())
	require.False(t, r.IsError)
	id, _ := r.Meta["shallot/call"].(string)
	require.Contains(t, textOf(t, r), id)
	require.Contains(t, textOf(t, r), "/v1/results/"+id)
	require.NoError(t, h.Decide(t.Context(), "default", id, json.RawMessage(`"approve"`), "ann"))
	again := addBig()
	again.Meta = mcp.Meta{metaState: r.Meta[metaState]}
	require.Equal(t, `{"sum":9007199254740994}`, textOf(t, mcpCall(t, s, again)))
	result := g.do(t, "GET", "/v1/results/"+id, "")
	require.Equal(t, `{"sum":9007199254740994}`, strings.TrimSpace(result.body))
}

// The person at a client on stdio is the operator.
func TestMCPApprovalOnStdio(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	require.NoError(t, os.WriteFile(file, []byte("version: 1\n"+waitingTools), 0o600))
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- runMCP(t.Context(), []string{"--config", file}, inR, outW, t.Output()) }()
	p := &person{answers: []*mcp.ElicitResult{says(map[string]any{"decision": "approve"})}}
	s := session(t, &mcp.IOTransport{Reader: outR, Writer: inW}, p.options())
	offered(t, s, "add")
	require.Equal(t, `{"sum":9007199254740994}`, textOf(t, mcpCall(t, s, addBig())))
	require.EqualValues(t, 1, p.asked.Load())
	_ = s.Close()
	require.NoError(t, <-done)
}

// The key that states are signed with is one for the installation, whoever asks first.
func TestStateKeyIsShared(t *testing.T) {
	t.Parallel()
	h := waitingHost(t, "")
	keys := make(chan []byte, 8)
	for range cap(keys) {
		go func() {
			k, _ := h.StateKey(context.Background())
			keys <- k
		}()
	}
	first := <-keys
	require.Len(t, first, 32)
	for range cap(keys) - 1 {
		require.Equal(t, first, <-keys)
	}
	s := heldState{Call: "c", Until: time.Now().Add(time.Minute)}
	got, ok := openState(first, s.seal(first), time.Now())
	require.True(t, ok)
	require.Equal(t, "c", got.Call)
	_, ok = openState(first, s.seal(first), time.Now().Add(2*time.Minute))
	require.False(t, ok, "too old")
	_, ok = openState(make([]byte, 32), s.seal(first), time.Now())
	require.False(t, ok, "another key")
}
