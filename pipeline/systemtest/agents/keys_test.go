package agents

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

// A key that is for one agent knows no other, by any face: neither the agent nor its runs. What its agent delegates is
// the operator's choice.
func TestAKeyForOneAgentUsesNoOther(t *testing.T) {
	t.Parallel()
	const limited = "the-key-for-the-clerk"
	i, _ := installWithKeys(t, agentsConfig, keyRecord("limited", limited, "agents: [clerk]"),
		func(request []byte) ([]map[string]any, string) {
			newest := last(request)
			if newest.Role() == "tool" || newest.Text() != "delegate" {
				return nil, "so: " + newest.Text()
			}
			return []map[string]any{call("a", "agent_finder", `{"task":"find"}`)}, ""
		})
	as := func(key string) []string { return []string{"Authorization", "Bearer " + key} }
	status, body := i.do("POST", "/v1/agents/finder/runs", `{"input":"secret"}`, as(operatorKey)...)
	require.Equal(t, 200, status, body)
	foreign := "/v1/agents/finder/runs/" + gjson.Get(body, "id").String()

	status, body = i.do("POST", "/v1/agents/clerk/runs", `{"input":"delegate"}`, as(limited)...)
	require.Equal(t, 200, status, body)
	require.Equal(t, "so: so: find", gjson.Get(body, "output").String())
	mine := gjson.Get(body, "location").String()
	for _, path := range []string{"", "/messages", "/events"} {
		status, body = i.do("GET", mine+path, "", as(limited)...)
		require.Equal(t, 200, status, body)
	}
	_, body = i.do("GET", "/v1/agents", "", as(limited)...)
	require.Equal(t, `["clerk"]`, gjson.Get(body, "data.#.name").String())
	_, body = i.do("GET", "/v1/models", "", as(limited)...)
	require.Contains(t, body, "agent/clerk")
	require.NotContains(t, body, "agent/finder")

	chat := `{"model":"agent/finder","messages":[{"role":"user","content":"go"}]}`
	id := foreign[len(foreign)-36:]
	for _, refused := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/v1/agents/finder/runs", `{"input":"go"}`, 403},
		{"POST", "/v1/agents/finder/chat/completions", chat, 403},
		{"POST", "/v1/chat/completions", chat, 403},
		{"POST", "/v1/responses", `{"model":"agent/finder","input":"go"}`, 403},
		{"POST", "/v1/messages", `{"model":"agent/finder","max_tokens":9,"messages":[{"role":"user","content":"go"}]}`, 403},
		{"GET", "/v1/agents/finder", "", 403},
		{"PUT", "/v1/agents/new", `{}`, 403},
		{"GET", foreign, "", 404},
		{"GET", foreign + "/messages", "", 404},
		{"GET", foreign + "/events", "", 404},
		{"POST", foreign + "/cancel", "", 404},
		{"GET", "/v1/agents/clerk/runs/" + id, "", 404},
		{"GET", "/v1/results/" + id, "", 404},
	} {
		status, body := i.do(refused.method, refused.path, refused.body, as(limited)...)
		require.Equal(t, refused.status, status, "%s %s: %s", refused.method, refused.path, body)
		require.NotContains(t, body, "secret")
	}

	s := apitest.DialMCP(t, i.url, limited, "2026-07-28", nil)
	tools := offered(t, s)
	require.Contains(t, tools, "agent_clerk")
	require.NotContains(t, tools, "agent_finder")
	require.Equal(t, "so: go", apitest.TextOf(t, apitest.CallTool(t, s, run("clerk", "go"))))
	_, err := s.CallTool(t.Context(), run("finder", "go"))
	require.Error(t, err)
	i.overNATS(limited)
}

// overNATS: a message does not say who sent it, so a key that is for some agents asks only where the subject names one.
func (i *installation) overNATS(key string) {
	t := i.t
	refused := make(chan error, 8)
	nc := i.dial("limited", key)
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err })
	const own = "shallot.v1.tenant.acme.agent."
	body := []byte(`{"input":"go"}`)
	for _, subject := range []string{own + "request", own + "submit", own + "request.finder", own + "submit.clerk",
		"shallot.v1.agent.request.clerk", "shallot.v1.tenant.globex.agent.request.clerk"} {
		require.NoError(t, nc.Publish(subject, []byte(`{"model":"agent/clerk","input":"go"}`)))
		select {
		case err := <-refused:
			require.ErrorContains(t, err, "Permissions Violation", subject)
		case <-time.After(time.Minute):
			t.Fatal("nobody refused " + subject)
		}
	}
	ask := func(nc *nats.Conn, subject string, body []byte, header ...string) []byte {
		m := &nats.Msg{Subject: own + subject, Data: body, Header: nats.Header{}}
		for k := 0; k < len(header); k += 2 {
			m.Header.Set(header[k], header[k+1])
		}
		m, err := nc.RequestMsg(m, time.Minute)
		require.NoError(t, err)
		return m.Data
	}
	output := func(raw []byte) string { return gjson.GetBytes(raw, "choices.0.message.content").String() }
	require.Equal(t, "so: go", output(ask(nc, "request.clerk", body)))
	require.Equal(t, "so: go", output(ask(nc, "request.clerk", []byte(`{"model":"agent/clerk","input":"go"}`))))
	for _, other := range [][]byte{
		ask(nc, "request.clerk", []byte(`{"model":"agent/finder","input":"secret"}`)),
		ask(nc, "request.clerk", body, "Shallot-Agent", "finder"),
		ask(nc, "request.clerk", body, "shallot-agent", "finder"),
	} {
		require.Contains(t, string(other), "names agent clerk and agent finder", "the subject decides")
	}
	require.Equal(t, "so: go", output(ask(i.nc, "request", []byte(`{"model":"agent/clerk","input":"go"}`))))
	require.Equal(t, "so: go", output(ask(i.nc, "request.finder", body)))
	require.Equal(t, "accepted", gjson.GetBytes(ask(i.nc, "submit.finder", body), "status").String())
}
