package agents

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/httpapi"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// The example does what its first lines say, without a key: the run waits, a person says yes, and it ends.
func TestTheExampleOfAnAgentRuns(t *testing.T) {
	t.Parallel()
	file, err := filepath.Abs("../../../examples/agent/shallot.yaml")
	require.NoError(t, err)
	l, err := host.Load(file, nil, map[string]string{
		"nats.embedded.port": "-1", "nats.embedded.data": t.TempDir(), "nats.embedded.sync": "1m"})
	require.NoError(t, err)
	h, err := host.Start(t.Context(), host.Options{Config: l, Roles: host.Everything(), Name: t.Name(), Log: testLog(),
		Drain: time.Second, Getenv: func(string) string { return "" }})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = h.Stop(ctx)
	})
	srv, err := httpapi.New(httpapi.Config{Addr: "127.0.0.1:8080"}, httpapi.Deps{Entry: h.Entry(), Control: h.Control(),
		Approvals: h.Approvals, Agents: h.Agents, Log: testLog()})
	require.NoError(t, err)
	front := httptest.NewServer(srv.Handler())
	t.Cleanup(front.Close)
	nc, err := nats.Connect(h.URL)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	i := &installation{t: t, url: front.URL, nc: nc}

	status, body := i.do(http.MethodPost, "/v1/agents/clerk/runs", `{"input":"Pay the bill."}`)
	require.Equal(t, http.StatusAccepted, status, body)
	require.Equal(t, api.RunWaiting, gjson.Get(body, "status").String(), body)
	waits := gjson.Get(body, "waits_for.calls.0")
	require.Equal(t, "pay", waits.Get("tool").String(), body)
	require.Equal(t, "payments", waits.Get("question.policy").String(), body)
	run := gjson.Get(body, "id").String()
	decision, err := json.Marshal(map[string]string{"decision": "approve"})
	require.NoError(t, err)
	status, body = i.do(http.MethodPost, "/v1/approvals/"+run, string(decision))
	require.Equal(t, http.StatusOK, status, body)
	require.Eventually(t, func() bool {
		_, body = i.do(http.MethodGet, "/v1/agents/clerk/runs/"+run, "")
		return gjson.Get(body, "status").String() == api.RunCompleted
	}, 30*time.Second, 20*time.Millisecond)
	require.Contains(t, gjson.Get(body, "output").String(), "42", body)
}
