package agents

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

const cancelConfig = `version: 1
agent:
  agents:
    - {name: boss, instructions: You lead., model: m1, tools: [pay, look, agent/mate]}
    - {name: mate, instructions: You help., model: m1, tools: [pay, look]}
  interceptor:
    approval: {policies: [{name: payments, tool: pay}]}
tool:
  tools:
    - {name: pay, executor: "go:note", effect: write, idempotent: false}
    - {name: look, executor: "go:note", effect: write}
`

// A run is cancelled wherever it is, its sub-agents with it: what works for it is told, what it asks is asked no more,
// and who follows it reads the end.
func TestARunIsCancelledWhateverItDoes(t *testing.T) {
	t.Parallel()
	at, over, gone := make(chan string, 8), make(chan struct{}), make(chan string, 8)
	i, ran := install(t, cancelConfig, func(request []byte) ([]map[string]any, string) {
		task := last(request).Text()
		if below, ok := strings.CutPrefix(task, "delegate "); ok && strings.HasPrefix(chat.SystemText(request), "You lead") {
			return []map[string]any{call("a", "agent_mate", `{"task":"`+below+`"}`)}, ""
		}
		if task, _, _ = strings.Cut(task, " "); task != "think" {
			return []map[string]any{call("a", task, `{}`)}, ""
		}
		at <- "think"
		<-over
		return nil, "too late"
	})
	t.Cleanup(func() { close(over) })
	i.work = func(ctx context.Context, inv toolbox.Invocation) error {
		at <- inv.Tool.Name
		<-ctx.Done()
		gone <- inv.Tool.Name
		return ctx.Err()
	}
	next := func(c chan string) string {
		select {
		case what := <-c:
			return what
		case <-time.After(60 * time.Second):
			t.Fatal("nothing happens")
			return ""
		}
	}
	for _, row := range []struct{ input, where string }{
		{"think", "think"}, {"look", "look"}, {"pay", ""},
		{"delegate think", "think"}, {"delegate look", "look"}, {"delegate pay", ""},
	} {
		_, body := i.do("POST", "/v1/agents/boss/runs", `{"input":"`+row.input+`","background":true}`)
		path, run := gjson.Get(body, "location").String(), gjson.Get(body, "id").String()
		if row.where != "" {
			require.Equal(t, row.where, next(at), row.input)
		} else {
			require.Eventually(t, func() bool {
				_, body = i.do("GET", path, "")
				return gjson.Get(body, "status").String() == api.RunWaiting
			}, 20*time.Second, 20*time.Millisecond)
			require.Equal(t, "pay", gjson.Get(body, "waits_for.calls.0.tool").String(), body)
		}
		status, body := i.do("POST", path+"/cancel", "")
		require.Equal(t, 202, status, body)
		if row.where == "look" {
			require.Equal(t, "look", next(gone), row.input)
		}
		require.Eventually(t, func() bool {
			_, body = i.do("GET", path, "")
			return gjson.Get(body, "status").String() == api.RunCancelled
		}, 20*time.Second, 20*time.Millisecond, row.input)
		_, body = i.do("GET", path+"/events", "") // to its end
		require.Equal(t, row.where == "", strings.Contains(body, "event: approval.wanted"), body)
		end := body[strings.LastIndex(body, "data: ")+6:]
		require.Equal(t, api.RunCancelled, gjson.Get(end, "reason").String(), body)
		require.NotContains(t, gjson.Get(end, "error.message").String(), "audit", "it was elsewhere")
		status, body = i.do("POST", "/v1/approvals/"+run, `{"decision":"approve"}`)
		require.NotEqual(t, 200, status, body)
	}
	_, body := i.do("GET", "/v1/approvals", "")
	require.Empty(t, gjson.Get(body, "data").Array(), body)
	require.Empty(t, ran.all())
}
