package tools_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/tool/approval"
)

// A person's edit is judged again by all policies, for what the call has become (SE-4).
func TestAnEditedCallIsAskedAboutAgain(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	require.NoError(t,
		os.WriteFile(file, []byte("version: 1\nnats: {embedded: {port: 0, sync: 1m, data: "+t.TempDir()+"}}\n"+`
agent:
  interceptor:
    approval:
      policies:
        - {tool: pay, when: args.amount > 10 && args.amount < 100}
        - {tool: pay, when: args.amount >= 1000, decisions: [approve, reject]}
        - {name: odd, tool: flip, when: args.n % 2 == 1}
        - {name: even, tool: flip, when: args.n % 2 == 0}
        - {name: writes, tool: file, when: 'args.op == "write"'}
        - {name: deletes, tool: file, when: 'args.op == "delete"'}
tool:
  tools:
    - {name: pay, executor: "go:pay", effect: external, input-schema: {type: object,
        properties: {amount: {type: integer}}}}
    - {name: flip, executor: "go:pay", effect: write, input-schema: {type: object, properties: {n: {type: integer}}}}
    - {name: file, executor: "go:pay", effect: write, input-schema: {type: object, properties: {op: {type: string}}}}
`), 0o600))
	b := tillFrom(t, file, host.Everything())
	decide := func(t *testing.T, id, answer string) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := b.Node.Decide(ctx, "default", id, json.RawMessage(answer), "ann")
		require.NoError(t, err)
	}
	waits := func(t *testing.T, id, args string) approval.Question {
		var q approval.Question
		require.Eventually(t, func() bool {
			p, err := b.Node.HeldCall(t.Context(), "default", id)
			return err == nil && json.Unmarshal(p.Question, &q) == nil && string(q.Arguments) == args
		}, 30*time.Second, 5*time.Millisecond, args)
		return q
	}
	edit := func(args string) string { return `{"decision":"edit","arguments":` + args + `}` }
	paid := func(args string) bool {
		for _, p := range b.payments() {
			if p == args {
				return true
			}
		}
		return false
	}
	t.Run("what the same policy covers runs", func(t *testing.T) {
		id := b.held(t, "pay", `{"amount":50}`)
		decide(t, id, edit(`{"amount":60}`))
		require.Nil(t, b.end(t, id).Fault)
		require.True(t, paid(`{"amount":60}`))
	})
	t.Run("another policy asks, also one of the same label", func(t *testing.T) {
		id := b.held(t, "pay", `{"amount":50}`)
		decide(t, id, edit(`{"amount":1000}`))
		q := waits(t, id, `{"amount":1000}`)
		require.Equal(t, []string{"approve", "reject"}, q.Decisions)
		require.False(t, paid(`{"amount":1000}`))
		decide(t, id, `"approve"`)
		require.Nil(t, b.end(t, id).Fault)
		require.True(t, paid(`{"amount":1000}`))
	})
	t.Run("and its no holds", func(t *testing.T) {
		id := b.held(t, "file", `{"op":"write"}`)
		decide(t, id, edit(`{"op":"delete"}`))
		require.Equal(t, "deletes", waits(t, id, `{"op":"delete"}`).Policy)
		decide(t, id, `"reject"`)
		require.Equal(t, messages.Blocked, b.end(t, id).Fault.Code)
		require.False(t, paid(`{"op":"delete"}`))
	})
	t.Run("not for ever", func(t *testing.T) {
		id := b.held(t, "flip", `{"n":0}`, func(r *pipeline.Request) { r.Deadline = time.Now().Add(2 * time.Minute) })
		for n := 1; n <= 10; n++ {
			waits(t, id, fmt.Sprintf(`{"n":%d}`, n-1))
			decide(t, id, edit(fmt.Sprintf(`{"n":%d}`, n)))
		}
		f := b.end(t, id).Fault
		require.NotNil(t, f)
		require.Equal(t, messages.Blocked, f.Code)
		require.Contains(t, f.Message, "10 times")
	})
}
