package tools_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// HI-12: the whole installation, server and all, goes down while a call waits and comes up again.
func TestApprovalOutlivesTheInstallation(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	first := startTill(t, "", data)
	id := first.held(t, "pay", `{"amount":500}`, func(r *pipeline.Request) { r.IdempotencyKey = "k1" })
	first.stop(t)
	second := startTill(t, "", data)
	require.Equal(t, id, second.held(t, "pay", `{"amount":500}`, func(r *pipeline.Request) { r.IdempotencyKey = "k1" }))
	require.Nil(t, second.decide(t, id, `"approve"`))
	c := second.end(t, id)
	require.Nil(t, c.Fault)
	require.Equal(t, 1, strings.Count(strings.Join(c.Slip.Path, " "), "tool-arguments.beforeTool"),
		"earlier stages do not run again")
	require.Len(t, append(first.payments(), second.payments()...), 1)
}

// Two processes on one server: one accepts and asks, the other one takes the decision and runs the tool.
func TestApprovalInTwoProcesses(t *testing.T) {
	t.Parallel()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Port: -1, Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	require.NoError(t, os.WriteFile(file, []byte("version: 1\ntexts: zh\nnats: {url: "+srv.ClientURL()+"}\n"+
		"agent:\n  interceptor:"+tillPolicies+"tool:\n  tools:"+tillTools), 0o600))
	gateway := tillFrom(t, file, host.Roles{Entry: true})
	worker := tillFrom(t, file, host.Roles{All: true, Tool: true, Model: true})
	other := tillFrom(t, file, host.Roles{Entry: true})
	id := gateway.held(t, "pay", `{"amount":500}`)
	require.Nil(t, other.decide(t, id, `"approve"`))
	require.Nil(t, gateway.end(t, id).Fault)
	require.Len(t, worker.payments(), 1)
}

// The plain NATS caller: a request that waits is answered with the status pending, the decision is a message, and the
// result is where results are.
func TestApprovalOverNATS(t *testing.T) { // (EN-9)
	t.Parallel()
	b := startTill(t, "", "")
	m := ask(t, b.Conn, "shallot.v1.tenant.acme.tool.request.pay", `{"amount":500}`)
	require.Equal(t, "pending", m.Header.Get("Shallot-Status"))
	id := m.Header.Get("Shallot-Call")
	list := ask(t, b.Conn, "shallot.v1.tenant.acme.approval.list", ``)
	require.Equal(t, "500", gjson.GetBytes(list.Data, "0.question.arguments.amount").Raw)
	require.Equal(t, "[]", string(ask(t, b.Conn, "shallot.v1.approval.list", ``).Data))
	m = ask(t, b.Conn, "shallot.v1.tenant.acme.approval.answer", `{"call":"`+id+`","decision":"maybe"}`)
	require.Contains(t, string(m.Data), "approve, edit, reject, respond")
	m = ask(t, b.Conn, "shallot.v1.tenant.acme.approval.answer",
		`{"call":"`+id+`","decision":"edit","arguments":{"amount":9007199254740993}}`)
	require.Equal(t, "decided", gjson.GetBytes(m.Data, "status").Str, string(m.Data))
	require.Eventually(t, func() bool {
		m = ask(t, b.Conn, "shallot.v1.tenant.acme.result."+id, ``)
		return string(m.Data) == `{"paid":true}`
	}, 30*time.Second, 20*time.Millisecond)
	require.Equal(t, []string{`{"amount":9007199254740993}`}, b.payments())
}
