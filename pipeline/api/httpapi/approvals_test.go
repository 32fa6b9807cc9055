package httpapi

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/host"
)

func withApprovals(t *testing.T, h *host.Host, edit func(*Config, *Deps)) *testGateway {
	t.Helper()
	return start(t, &apitest.Entry{}, func(c *Config, p *Deps) {
		c.Embedded = true
		p.Entry, p.Tools, p.Approvals = h.Entry(), h.Tools, h.Approvals
		if edit != nil {
			edit(c, p)
		}
	})
}

// The way of a call that waits over HTTP: 202 with the place of its result, the same with its key again, the question
// on the control surface, the decision, and the result.
func TestApprovalsOverHTTP(t *testing.T) {
	t.Parallel()
	h := apitest.Host(t, apitest.WaitingTools, nil)
	g := withApprovals(t, h, nil)
	const body = `{"a":9007199254740993,"b":"1"}`
	first := g.Do(t, "POST", "/v1/tools/add/call", body, "Idempotency-Key: k1")
	require.Equal(t, 202, first.StatusCode, first.Body)
	require.Equal(t, "approval_pending", gjson.Get(first.Body, "status").Str)
	id, place := first.Header.Get("Shallot-Call"), first.Header.Get("Location")
	require.Equal(t, "/v1/results/"+id, place)
	again := g.Do(t, "POST", "/v1/tools/add/call", body, "Idempotency-Key: k1")
	require.Equal(t, []any{202, id}, []any{again.StatusCode, again.Header.Get("Shallot-Call")})
	require.Equal(t, 202, g.Do(t, "GET", place, "").StatusCode)

	list := g.Do(t, "GET", "/v1/approvals", "")
	require.Equal(t, 200, list.StatusCode)
	require.Equal(t, int64(1), gjson.Get(list.Body, "data.#").Int())
	require.Equal(t, `{"a":9007199254740993,"b":1}`, gjson.Get(list.Body, "data.0.question.arguments").Raw)
	one := g.Do(t, "GET", "/v1/approvals/"+id, "")
	require.Equal(t, gjson.Get(list.Body, "data.0").Raw, strings.TrimSpace(one.Body))
	require.Equal(t, "big", gjson.Get(one.Body, "question.policy").Str)

	post := func(body string, headers ...string) apitest.Reply {
		return g.Do(t, "POST", "/v1/approvals/"+id, body, headers...)
	}
	post(`{"decision":"maybe"}`).IsFault(t, messages.InvalidRequest)
	require.Contains(t, post(`{"decision":"maybe"}`).Message(), "approve, edit, reject, respond", "HI-8")
	post(`{"decision":"edit","arguments":{"a":"x"}}`).IsFault(t, messages.InvalidArguments)
	post(`{"decision":"approve","extra":1}`).IsFault(t, messages.InvalidRequest)
	post(`{`).IsFault(t, messages.InvalidRequest)
	require.Equal(t, 202, post(`{"decision":null}`).StatusCode, "HI-10")
	require.Equal(t, 202, g.Do(t, "GET", place, "").StatusCode, "still waiting")
	done := post(`{"decision":"approve"}`, "Shallot-User: ann")
	require.Equal(t, 200, done.StatusCode, done.Body)
	require.Equal(t, []string{"decided", "approve", "open/ann"},
		[]string{gjson.Get(done.Body, "status").Str, gjson.Get(done.Body, "decision").Str, gjson.Get(done.Body, "by").Str})
	var end apitest.Reply
	require.Eventually(t, func() bool { end = g.Do(t, "GET", place, ""); return end.StatusCode == 200 }, 30*time.Second,
		20*time.Millisecond)
	require.JSONEq(t, `{"sum":9007199254740994}`, end.Body)
	require.Contains(t, end.Body, "9007199254740994")
	again = g.Do(t, "POST", "/v1/tools/add/call", body, "Idempotency-Key: k1")
	require.Equal(t, []any{200, end.Body}, []any{again.StatusCode, again.Body})
	post(`{"decision":"reject"}`).IsFault(t, messages.Conflict)
	require.Contains(t, post(`{"decision":"reject"}`).Message(), "by open/ann at ")
	g.Do(t, "GET", "/v1/approvals/"+id, "").IsFault(t, messages.NotFound)
	g.Do(t, "POST", "/v1/approvals/"+messages.NewID(), `{"decision":"approve"}`).IsFault(t, messages.NotFound)
	g.Do(t, "DELETE", "/v1/approvals/"+id, "").IsFault(t, messages.MethodNotAllowed)
}

// Who may see and decide: operators, of all tenants or of the one that they name; nobody on a port that other machines
// reach, and no page of another site.
func TestApprovalsAreControl(t *testing.T) {
	t.Parallel()
	h := apitest.Host(t, apitest.WaitingTools, nil)
	g := withApprovals(t, h, func(_ *Config, p *Deps) { p.Keys = twoTenants(t) })
	asOp, asAcme := apitest.AuthOp, apitest.AuthA
	held := g.Do(t, "POST", "/v1/tools/shout/call", `{"text":"hi"}`, asAcme)
	require.Equal(t, 202, held.StatusCode, held.Body)
	at := "/v1/approvals/" + held.Header.Get("Shallot-Call")
	for _, r := range [][3]string{{"GET", "/v1/approvals", ""}, {"GET", at, ""}, {"POST", at, `{"decision":"approve"}`}} {
		g.Do(t, r[0], r[1], r[2], asAcme).IsFault(t, messages.Forbidden)
		g.Do(t, r[0], r[1], r[2]).IsFault(t, messages.Unauthenticated)
	}
	g.Do(t, "POST", at, `{"decision":"approve"}`, asOp, "Origin: https://evil.example",
		"Sec-Fetch-Site: cross-site").IsFault(t, messages.Forbidden)
	require.Equal(t, "ta", gjson.Get(g.Do(t, "GET", "/v1/approvals", "", asOp).Body, "data.0.tenant").Str)
	require.Equal(t, int64(0), gjson.Get(g.Do(t, "GET", "/v1/approvals", "", asOp, "Shallot-Tenant: default").Body,
		"data.#").Int())
	g.Do(t, "POST", at, `{"decision":"approve"}`, asOp, "Shallot-Tenant: default").IsFault(t, messages.NotFound)
	require.Contains(t, g.Do(t, "POST", at, `{"decision":"respond","content":1}`, asOp).Message(),
		"allowed: approve, reject")
	require.Equal(t, "op", gjson.Get(g.Do(t, "POST", at, `{"decision":"reject","reason":"no"}`, asOp).Body, "by").Str)
	g.Do(t, "POST", at, `{"decision":"approve"}`, asOp).IsFault(t, messages.Conflict)
	require.Eventually(t, func() bool {
		r := g.Do(t, "GET", held.Header.Get("Location"), "", asAcme)
		return r.Header.Get("Shallot-Fault") == string(messages.Blocked) && strings.Contains(r.Message(), "no")
	}, 30*time.Second, 20*time.Millisecond)

	open := withApprovals(t, h, func(c *Config, p *Deps) { p.Keys, c.Addr = twoTenants(t), "0.0.0.0:8080" })
	for _, path := range []string{"/v1/approvals", at} {
		r := open.Do(t, "GET", path, "", asOp)
		r.IsFault(t, messages.Forbidden)
		require.Contains(t, r.Message(), "http.admin")
	}
}
