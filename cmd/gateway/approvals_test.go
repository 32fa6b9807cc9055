package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/host"
)

const waitingTools = `
agent:
  interceptor:
    approval: {policies: [{name: big, tool: add, when: "args.a > 100"}, {name: strict, decisions: [approve, reject]}]}
tool:
  tools:
    - {name: shout, description: Says it loud, executor: "go:echo", effect: read, approval: strict, input-schema: {type: object, properties: {text: {type: string}}, required: [text]}}
`

// waitingHost starts a whole one with an embedded server.
func waitingHost(t *testing.T, config string) *host.Host {
	t.Helper()
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	require.NoError(t, os.WriteFile(file, []byte("version: 1\nnats: {embedded: {port: 0, sync: 1m, data: "+t.TempDir()+"}}\n"+config), 0o600))
	l, err := host.Load(file, nil, nil)
	require.NoError(t, err)
	h, err := host.Start(t.Context(), host.Options{Config: l, Roles: host.Everything(), Name: t.Name(), Drain: time.Second, Getenv: func(string) string { return "" }})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		_ = h.Stop(ctx)
	})
	return h
}

func withApprovals(t *testing.T, h *host.Host, edit func(*settings, *parts)) *testGateway {
	t.Helper()
	return start(t, &localEntry{}, func(c *settings, p *parts) {
		c.Embedded = true
		p.Entry, p.Tools, p.Approvals = h.Entry(), h, h
		if edit != nil {
			edit(c, p)
		}
	})
}

// The way of a call that waits over HTTP: 202 with the place of its result, the same with its key again, the question
// on the control surface, the decision, and the result.
func TestApprovalsOverHTTP(t *testing.T) {
	t.Parallel()
	h := waitingHost(t, waitingTools)
	g := withApprovals(t, h, nil)
	const body = `{"a":9007199254740993,"b":"1"}`
	first := g.do(t, "POST", "/v1/tools/add/call", body, "Idempotency-Key: k1")
	require.Equal(t, 202, first.StatusCode, first.body)
	require.Equal(t, "approval_pending", gjson.Get(first.body, "status").Str)
	id, place := first.Header.Get("Shallot-Call"), first.Header.Get("Location")
	require.Equal(t, "/v1/results/"+id, place)
	again := g.do(t, "POST", "/v1/tools/add/call", body, "Idempotency-Key: k1")
	require.Equal(t, []any{202, id}, []any{again.StatusCode, again.Header.Get("Shallot-Call")})
	require.Equal(t, 202, g.do(t, "GET", place, "").StatusCode)

	list := g.do(t, "GET", "/v1/approvals", "")
	require.Equal(t, 200, list.StatusCode)
	require.Equal(t, int64(1), gjson.Get(list.body, "data.#").Int())
	require.Equal(t, `{"a":9007199254740993,"b":1}`, gjson.Get(list.body, "data.0.question.arguments").Raw)
	one := g.do(t, "GET", "/v1/approvals/"+id, "")
	require.Equal(t, gjson.Get(list.body, "data.0").Raw, strings.TrimSpace(one.body))
	require.Equal(t, "big", gjson.Get(one.body, "question.policy").Str)

	post := func(body string, headers ...string) reply {
		return g.do(t, "POST", "/v1/approvals/"+id, body, headers...)
	}
	post(`{"decision":"maybe"}`).isFault(t, messages.InvalidRequest)
	require.Contains(t, post(`{"decision":"maybe"}`).message(), "approve, edit, reject, respond", "HI-8")
	post(`{"decision":"edit","arguments":{"a":"x"}}`).isFault(t, messages.InvalidArguments)
	post(`{"decision":"approve","extra":1}`).isFault(t, messages.InvalidRequest)
	post(`{`).isFault(t, messages.InvalidRequest)
	require.Equal(t, 202, post(`{"decision":null}`).StatusCode, "HI-10")
	require.Equal(t, 202, g.do(t, "GET", place, "").StatusCode, "still waiting")
	done := post(`{"decision":"approve"}`, "Shallot-User: ann")
	require.Equal(t, 200, done.StatusCode, done.body)
	require.Equal(t, []string{"decided", "approve", "open/ann"}, []string{gjson.Get(done.body, "status").Str, gjson.Get(done.body, "decision").Str, gjson.Get(done.body, "by").Str})
	var end reply
	require.Eventually(t, func() bool { end = g.do(t, "GET", place, ""); return end.StatusCode == 200 }, 10*time.Second, 20*time.Millisecond)
	require.JSONEq(t, `{"sum":9007199254740994}`, end.body)
	require.Contains(t, end.body, "9007199254740994")
	again = g.do(t, "POST", "/v1/tools/add/call", body, "Idempotency-Key: k1")
	require.Equal(t, []any{200, end.body}, []any{again.StatusCode, again.body})
	post(`{"decision":"reject"}`).isFault(t, messages.Conflict)
	require.Contains(t, post(`{"decision":"reject"}`).message(), "by open/ann at ")
	g.do(t, "GET", "/v1/approvals/"+id, "").isFault(t, messages.NotFound)
	g.do(t, "POST", "/v1/approvals/"+messages.NewID(), `{"decision":"approve"}`).isFault(t, messages.NotFound)
	g.do(t, "DELETE", "/v1/approvals/"+id, "").isFault(t, messages.MethodNotAllowed)
}

// Who may see and decide: operators, of all tenants or of the one that they name; nobody on a port that other machines
// reach, and no page of another site.
func TestApprovalsAreControl(t *testing.T) {
	t.Parallel()
	h := waitingHost(t, waitingTools)
	g := withApprovals(t, h, func(_ *settings, p *parts) { p.Keys = twoTenants(t) })
	asOp, asAcme := authOp, authA
	held := g.do(t, "POST", "/v1/tools/shout/call", `{"text":"hi"}`, asAcme)
	require.Equal(t, 202, held.StatusCode, held.body)
	at := "/v1/approvals/" + held.Header.Get("Shallot-Call")
	for _, r := range [][3]string{{"GET", "/v1/approvals", ""}, {"GET", at, ""}, {"POST", at, `{"decision":"approve"}`}} {
		g.do(t, r[0], r[1], r[2], asAcme).isFault(t, messages.Forbidden)
		g.do(t, r[0], r[1], r[2]).isFault(t, messages.Unauthenticated)
	}
	g.do(t, "POST", at, `{"decision":"approve"}`, asOp, "Origin: https://evil.example", "Sec-Fetch-Site: cross-site").isFault(t, messages.Forbidden)
	require.Equal(t, "ta", gjson.Get(g.do(t, "GET", "/v1/approvals", "", asOp).body, "data.0.tenant").Str)
	require.Equal(t, int64(0), gjson.Get(g.do(t, "GET", "/v1/approvals", "", asOp, "Shallot-Tenant: default").body, "data.#").Int())
	g.do(t, "POST", at, `{"decision":"approve"}`, asOp, "Shallot-Tenant: default").isFault(t, messages.NotFound)
	require.Contains(t, g.do(t, "POST", at, `{"decision":"respond","content":1}`, asOp).message(), "allowed: approve, reject")
	require.Equal(t, "op", gjson.Get(g.do(t, "POST", at, `{"decision":"reject","reason":"no"}`, asOp).body, "by").Str)
	g.do(t, "POST", at, `{"decision":"approve"}`, asOp).isFault(t, messages.Conflict)
	require.Eventually(t, func() bool {
		r := g.do(t, "GET", held.Header.Get("Location"), "", asAcme)
		return r.Header.Get("Shallot-Fault") == string(messages.Blocked) && strings.Contains(r.message(), "no")
	}, 10*time.Second, 20*time.Millisecond)

	open := withApprovals(t, h, func(c *settings, p *parts) { p.Keys, c.Addr = twoTenants(t), "0.0.0.0:8080" })
	for _, path := range []string{"/v1/approvals", at} {
		r := open.do(t, "GET", path, "", asOp)
		r.isFault(t, messages.Forbidden)
		require.Contains(t, r.message(), "http.admin")
	}
}
