package agents

import (
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/chat"
)

const todoConfig = `version: 1
agent:
  agents:
    - {name: boss, instructions: You lead., model: m1, tools: [agent/mate, agent/loner], todo-list: own}
    - {name: clerk, instructions: You keep no list., model: m1, tools: [agent/mate, agent/loner]}
    - {name: mate, instructions: You help., model: m1, todo-list: shared}
    - {name: loner, instructions: You work alone., model: m1}
`

// A run works on a todo list with those of its sub-agents that are told to; the others have their own.
func TestATodoListIsSharedWithTheSubAgentsThatAskForIt(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	saw := map[string][]string{} // who -> the end of the system prompt and the last message, as they came
	i, _ := install(t, todoConfig, func(request []byte) ([]map[string]any, string) {
		mu.Lock()
		defer mu.Unlock()
		who, list, _ := strings.Cut(chat.SystemText(request), ".")
		saw[who] = append(saw[who], list+last(request).Text())
		switch {
		case who == "You help":
			return nil, "[TODO_UPDATE: id=1, status=COMPLETED] helped"
		case who == "You work alone":
			return nil, "[TODO_ADD: title=mine] worked"
		case last(request).Role() == "tool":
			return nil, "finished"
		}
		return []map[string]any{call("a", "agent_mate", `{"task":"help"}`), call("b", "agent_loner", `{"task":"work"}`)},
			"[TODO_ADD: title=plan]"
	})
	seen := func(agent string, header ...string) map[string][]string {
		mu.Lock()
		clear(saw)
		mu.Unlock()
		status, body := i.do("POST", "/v1/agents/"+agent+"/runs", `{"input":"go"}`, header...)
		require.Equal(t, 200, status, body)
		require.Equal(t, "finished", gjson.Get(body, "output").String())
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(saw)
	}
	for _, session := range [][]string{nil, {"Shallot-Session", "one"}} {
		got := seen("boss", session...)
		require.NotContains(t, got["You lead"][0], "plan")
		require.Contains(t, got["You help"][0], "#1 [PENDING] plan")
		require.NotContains(t, got["You work alone"][0], "plan")
		require.Contains(t, got["You work alone"][0], "TODO_ADD", "it has one of its own")
		require.Contains(t, got["You lead"][1], "#1 [COMPLETED] plan")
		require.NotContains(t, got["You lead"][1], "mine")
	}

	for who, lists := range seen("clerk") {
		for _, list := range lists {
			require.NotContains(t, list, "[TODO_ADD: title=...]", "a run without a session, and %s in it, has no list", who)
		}
	}
	got := seen("clerk", "Shallot-Session", "two")
	require.Contains(t, got["You help"][0], "#1 [PENDING] plan", "the session's")
	require.NotContains(t, got["You work alone"][0], "plan")
	got = seen("clerk", "Shallot-Session", "two")
	require.Contains(t, got["You keep no list"][0], "#1 [COMPLETED] plan", "it lives as long as the session")
}
