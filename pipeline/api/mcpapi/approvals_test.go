package mcpapi

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/api/httpapi"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// approvalGateway is a gateway with an MCP face on the installation.
func approvalGateway(t *testing.T, h *host.Host, edit func(*httpapi.Config, *httpapi.Deps)) apitest.Client {
	t.Helper()
	server, err := New(Options{Entry: h.Entry(), Tools: h.Tools.Registry, Upstreams: h.MCP, Tasks: h.Node,
		GracefulIsError: true, Local: api.Identity{Tenant: "default", Role: api.RoleCaller}, Log: apitest.Log(t)})
	require.NoError(t, err)
	server.Approvals = h.Approvals
	t.Cleanup(server.Close)
	return serveMCP(t, h.Entry(), server, func(c *httpapi.Config, p *httpapi.Deps) {
		c.Embedded = true
		p.Tools, p.Approvals = h.Tools, h.Approvals
		if edit != nil {
			edit(c, p)
		}
	})
}

// A caller who is operator and can show a form decides himself, in every revision; the decision is the person's, not
// the model's, and all four are carried out.
func TestMCPApprovalIsAskedFor(t *testing.T) {
	t.Parallel()
	h := apitest.Host(t, apitest.WaitingTools, nil)
	g := approvalGateway(t, h, nil)
	for _, revision := range revisions {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			do := func(answers ...*mcp.ElicitResult) (*mcp.CallToolResult, *apitest.Person) {
				p := &apitest.Person{Answers: answers}
				s := apitest.DialMCP(t, g.URL, "", revision, p.Options())
				apitest.Offered(t, s, "add")
				return apitest.CallTool(t, s, apitest.AddBig()), p
			}
			r, p := do(apitest.Filled(map[string]any{"decision": "approve"}))
			require.False(t, r.IsError, apitest.TextOf(t, r))
			require.Equal(t, `{"sum":9007199254740994}`, apitest.TextOf(t, r), "HI-2")
			require.EqualValues(t, 1, p.Asked.Load())
			require.Contains(t, p.Last.Load().Message, `{"a":9007199254740993,"b":1}`)
			r, _ = do(apitest.Filled(map[string]any{"decision": "edit", "arguments": `{"a":"101","b":5}`}))
			require.Equal(t, `{"sum":106}`, apitest.TextOf(t, r), "HI-3")
			r, _ = do(apitest.Filled(map[string]any{"decision": "reject", "reason": "not now"}))
			require.True(t, r.IsError)
			require.Contains(t, apitest.TextOf(t, r), "not now", "HI-4")
			require.Contains(t, apitest.TextOf(t, r), "open/mcp")
			r, _ = do(&mcp.ElicitResult{Action: "decline"})
			require.True(t, r.IsError)
			r, _ = do(apitest.Filled(map[string]any{"decision": "respond", "content": "forty-two"}))
			require.Equal(t, "forty-two", apitest.TextOf(t, r))
			if revision < firstSessionless {
				r, _ = do(&mcp.ElicitResult{Action: "cancel"})
				require.Equal(t, "approval_pending", r.Meta["shallot/status"])
				r, _ = do(apitest.Filled(map[string]any{"decision": "edit", "arguments": `{"a":"x"}`}))
				require.False(t, r.IsError)
				require.Contains(t, apitest.TextOf(t, r), "waits for a person's approval",
					"an edit that is refused leaves it waiting")
				return
			}
			r, p = do(apitest.Filled(map[string]any{"decision": "edit", "arguments": `{"a":"x"}`}),
				apitest.Filled(map[string]any{"decision": "edit", "arguments": `no`}),
				apitest.Filled(map[string]any{"decision": "approve"}))
			require.Equal(t, `{"sum":9007199254740994}`, apitest.TextOf(t, r))
			require.EqualValues(t, 3, p.Asked.Load(), "it is asked again, and told why")
			require.Contains(t, p.Last.Load().Message, "not JSON")
		})
	}
}

// A caller that may not decide is not asked: they get input_required with a state, come back with it - to any
// gateway - and get the result of the one call that they made.
func TestMCPApprovalByState(t *testing.T) {
	t.Parallel()
	h := apitest.Host(t, apitest.WaitingTools, nil)
	keys := func(_ *httpapi.Config, p *httpapi.Deps) { p.Keys = twoTenants(t) }
	one, other := approvalGateway(t, h, keys), approvalGateway(t, h, keys)
	manual := func(g apitest.Client, key string) *mcp.ClientSession {
		p := &apitest.Person{}
		o := p.Options()
		o.MultiRoundTrip = &mcp.MultiRoundTripOptions{Disabled: true}
		s := apitest.DialMCP(t, g.URL, key, firstSessionless, o)
		apitest.Offered(t, s, "add")
		return s
	}
	s := manual(one, "key-a")
	r := apitest.CallTool(t, s, apitest.AddBig())
	require.True(t, r.NeedsInput())
	require.Empty(t, r.InputRequests, "a caller is not asked to decide about their own call")
	require.NotEmpty(t, r.RequestState)
	require.Equal(t, "approval_pending", r.Meta["shallot/status"])
	id, ok := r.Meta["shallot/call"].(string)
	require.True(t, ok)
	again := apitest.AddBig()
	again.RequestState = r.RequestState
	refused := func(s *mcp.ClientSession, p *mcp.CallToolParams, why string) {
		t.Helper()
		_, err := s.CallTool(t.Context(), p)
		require.ErrorContains(t, err, why)
	}
	bad := *again
	bad.RequestState = r.RequestState[:len(r.RequestState)-2] + "AA"
	if bad.RequestState == r.RequestState {
		bad.RequestState = r.RequestState[:len(r.RequestState)-2] + "BA"
	}
	refused(s, &bad, "this installation did not issue it")
	bad.RequestState = strings.Replace(r.RequestState, ownState, ownState+"e30", 1)
	refused(s, &bad, "this installation did not issue it")
	bad = *again
	bad.Arguments = json.RawMessage(`{"a":1,"b":1}`)
	refused(s, &bad, "belongs to another call")
	refused(manual(one, "key-b"), again, "belongs to another call")
	bad = *again
	bad.InputResponses = mcp.InputResponseMap{questionID: apitest.Filled(map[string]any{"decision": "approve"})}
	refused(s, &bad, "may not decide")
	_, err := h.Approvals.Approval(t.Context(), "ta", id)
	require.NoError(t, err, "still waiting")

	got := make(chan *mcp.CallToolResult, 1)
	back := manual(other, "key-a")
	go func() {
		r, _ := back.CallTool(context.WithoutCancel(t.Context()), again)
		got <- r
	}()
	require.NoError(t, h.Approvals.Decide(t.Context(), "ta", id, json.RawMessage(`"approve"`), "ann"))
	select {
	case r := <-got:
		require.NotNil(t, r)
		require.Equal(t, `{"sum":9007199254740994}`, apitest.TextOf(t, r))
		require.Equal(t, id, r.Meta["shallot/call"])
	case <-time.After(heldWait):
		t.Fatal("whoever came back with the state did not see the decision")
	}
	r = apitest.CallTool(t, s, again)
	require.Equal(t, `{"sum":9007199254740994}`, apitest.TextOf(t, r), "the state is good for the result later, too")
}

// A client of an older revision that cannot be asked gets a text that says how to go on, and goes on so.
func TestMCPApprovalForOlderClients(t *testing.T) {
	t.Parallel()
	h := apitest.Host(t, apitest.WaitingTools, nil)
	g := approvalGateway(t, h, nil)
	s := apitest.DialMCP(t, g.URL, "", "2025-11-25", nil)
	apitest.Offered(t, s, "add")
	r := apitest.CallTool(t, s, apitest.AddBig())
	require.False(t, r.IsError)
	id, _ := r.Meta["shallot/call"].(string)
	require.Contains(t, apitest.TextOf(t, r), id)
	require.Contains(t, apitest.TextOf(t, r), "/v1/results/"+id)
	require.NoError(t, h.Approvals.Decide(t.Context(), "default", id, json.RawMessage(`"approve"`), "ann"))
	again := apitest.AddBig()
	again.Meta = mcp.Meta{metaState: r.Meta[metaState]}
	require.Equal(t, `{"sum":9007199254740994}`, apitest.TextOf(t, apitest.CallTool(t, s, again)))
	result := g.Do(t, "GET", "/v1/results/"+id, "")
	require.Equal(t, `{"sum":9007199254740994}`, strings.TrimSpace(result.Body))
}

// The key that states are signed with is one for the installation, whoever asks first.
func TestStateKeyIsShared(t *testing.T) {
	t.Parallel()
	h := apitest.Host(t, "", nil)
	keys := make(chan []byte, 8)
	for range cap(keys) {
		go func() {
			k, _ := h.Approvals.StateKey(context.Background())
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
