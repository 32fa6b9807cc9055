package agents

import (
	"encoding/json"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

func offered(t *testing.T, s *mcp.ClientSession) map[string]*mcp.Tool {
	t.Helper()
	list, err := s.ListTools(t.Context(), nil)
	require.NoError(t, err)
	out := map[string]*mcp.Tool{}
	for _, d := range list.Tools {
		out[d.Name] = d
	}
	return out
}

func run(agent, task string) *mcp.CallToolParams {
	return &mcp.CallToolParams{Name: "agent_" + agent, Arguments: json.RawMessage(`{"task":"` + task + `"}`)}
}

// An agent is a tool of the MCP server, in every revision, and its answer is the tool's result.
func TestAnAgentIsAToolOverMCP(t *testing.T) {
	t.Parallel()
	i, ran := newInstallation(t, func(request []byte) ([]map[string]any, string) {
		switch m := last(request); {
		case m.Role() == "tool":
			return nil, "I have looked, and " + m.Text()
		case m.Text() == "judge":
			return nil, `{"verdict":"good"}`
		}
		return []map[string]any{call("a", "look", `{}`)}, ""
	})
	for _, revision := range []string{"2026-07-28", "2025-11-25"} {
		s := apitest.DialMCP(t, i.url, "", revision, nil)
		tools := offered(t, s)
		require.Equal(t, "pays", tools["agent_clerk"].Description)
		require.NotNil(t, tools["agent_judge"].OutputSchema)
		require.Contains(t, tools, "pay")
		r := apitest.CallTool(t, s, run("clerk", "go"))
		require.False(t, r.IsError)
		require.Equal(t, "I have looked, and look is done", apitest.TextOf(t, r))
		r = apitest.CallTool(t, s, run("judge", "judge"))
		require.Equal(t, map[string]any{"verdict": "good"}, r.StructuredContent)
		_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "agent_clerk", Arguments: json.RawMessage(`{"work":1}`)})
		require.ErrorContains(t, err, "needs a task")
	}
	require.Equal(t, []string{"look{}"}, ran.all())
}

// A run that asks about a batch asks the person at the client about one call after the other; a person who declines
// means all of it.
func TestARunAsksThePersonAtTheMCPClient(t *testing.T) {
	t.Parallel()
	i, ran := newInstallation(t, func(request []byte) ([]map[string]any, string) {
		if last(request).Role() == "tool" {
			return nil, "paid"
		}
		return []map[string]any{call("a", "pay", `{"amount":50}`), call("b", "pay", `{"amount":5}`),
			call("c", "pay", `{"amount":70}`)}, ""
	})
	do := func(answers ...*mcp.ElicitResult) (*mcp.CallToolResult, *apitest.Person) {
		p := &apitest.Person{Answers: answers}
		s := apitest.DialMCP(t, i.url, "", "2026-07-28", p.Options())
		offered(t, s)
		return apitest.CallTool(t, s, run("clerk", "go")), p
	}
	yes := func(id string) *mcp.ElicitResult {
		return apitest.Filled(map[string]any{"decision": "approve", "call": id})
	}
	r, p := do(yes("a"), apitest.Filled(map[string]any{"decision": "reject", "call": "c", "reason": "no"}))
	require.Equal(t, "paid", apitest.TextOf(t, r))
	require.EqualValues(t, 2, p.Asked.Load())
	require.Contains(t, p.Last.Load().Message, "In a run of agent 'clerk'")
	require.ElementsMatch(t, []string{`pay{"amount":50}`, `pay{"amount":5}`}, ran.all())

	r, p = do(&mcp.ElicitResult{Action: "decline"})
	require.Equal(t, "paid", apitest.TextOf(t, r), "the model reads the rejections")
	require.EqualValues(t, 1, p.Asked.Load())
	require.Len(t, ran.all(), 3, "only what needed no yes has run")
}
