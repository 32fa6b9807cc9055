package tools_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// A refusal by a limit is no result: whoever calls reads that it is one, and when to come again (TL-8).
func TestRefusalsByLimitsStayRefusals(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "slow") {
			entered <- struct{}{}
			<-leave
		}
		_, _ = io.WriteString(w, `{"ok":true}`)
	}))
	t.Cleanup(srv.Close)
	h := startRoles(t, "nats: {embedded: {port: 0, sync: 1m, data: "+t.TempDir()+"}}\n"+`
agent:
  interceptor:
    rate-limit: {enabled: true, tools: {limited: {limit: 1, per: 1h}}}
    concurrency: {enabled: true, wait: 10ms, groups: {one: 1}}
tool:
  tools:
    - {name: limited, effect: read, cache: "off", stub-data: {stub: true}, executor: "`+srv.URL+`/x"}
    - {name: busy, effect: write, concurrency-group: one, executor: "`+srv.URL+`/slow"}
`, host.Everything())
	url := faces(t, h, api.RoleCaller)
	refused := func(t *testing.T, tool, code string, status int) {
		resp, body := post(t, url+"/v1/tools/"+tool+"/call", `{}`)
		require.Equal(t, status, resp.StatusCode, body)
		require.NotEmpty(t, resp.Header.Get("Retry-After"))
		require.Empty(t, resp.Header.Get("Shallot-Degraded"))
		m := ask(t, h.Conn, "shallot.v1.tool.request."+tool, `{}`)
		require.Equal(t, fmt.Sprint(status), m.Header.Get("Nats-Service-Error-Code"), string(m.Data))
		require.Equal(t, code, m.Header.Get("Shallot-Fault"))
		require.NotEmpty(t, m.Header.Get("Retry-After"))
		r := callMCP(t, url, tool, `{}`).Get("result")
		require.True(t, r.Get("isError").Bool(), r.Raw)
		require.Equal(t, code, r.Get("_meta.shallot/fault").String())
		require.Positive(t, r.Get("_meta.shallot/retry-after-ms").Int())
	}
	resp, body := post(t, url+"/v1/tools/limited/call", `{}`)
	require.Equal(t, 200, resp.StatusCode, body)
	refused(t, "limited", "rate_limited", 429)
	done := make(chan struct{})
	go func() { defer close(done); ask(t, h.Conn, "shallot.v1.tool.request.busy", `{}`) }()
	<-entered
	refused(t, "busy", "overloaded", 503)
	close(leave)
	<-done
}

// A result that only stands in for one is not kept for the idempotency key: the next try runs the tool (EN-10).
func TestADegradedEndFreesTheKey(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, `{"ok":true}`)
	}))
	t.Cleanup(srv.Close)
	h := startRoles(t, "nats: {embedded: {port: 0, sync: 1m, data: "+t.TempDir()+"}}\n"+`
tool:
  tools:
    - {name: look, effect: read, cache: "off", retry: noRetry, executor: "`+srv.URL+`"}
`, host.Everything())
	url := faces(t, h, api.RoleCaller) + "/v1/tools/look/call"
	resp, body := post(t, url, `{}`, "Idempotency-Key", "k1")
	require.Equal(t, "graceful_error", resp.Header.Get("Shallot-Degraded"), body)
	require.Eventually(t, func() bool {
		resp, body = post(t, url, `{}`, "Idempotency-Key", "k1")
		return body == `{"ok":true}`
	}, 30*time.Second, 20*time.Millisecond, "the key is free as soon as the end is stored")
	_, body = post(t, url, `{}`, "Idempotency-Key", "k1")
	require.Equal(t, `{"ok":true}`, body)
	require.EqualValues(t, 2, asked.Load(), "a result is kept")
}

// A redirect would send the request of a tool that may not run twice a second time (TL-9).
func TestRedirectsAreFollowedForIdempotentToolsOnly(t *testing.T) {
	t.Parallel()
	for _, status := range []int{307, 308} {
		var asked atomic.Int64
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			if r.URL.Path == "/end" {
				_, _ = io.WriteString(w, `{"ok":true}`)
				return
			}
			http.Redirect(w, r, "/end", status)
		}))
		t.Cleanup(srv.Close)
		h := toolHost(t, `
tool:
  tools:
    - {name: save, effect: write, executor: "`+srv.URL+`/begin"}
    - {name: put, effect: write, idempotent: true, executor: "`+srv.URL+`/begin"}
`)
		m := ask(t, h.Conn, "shallot.v1.tool.request.save", `{}`)
		require.Equal(t, "outcome_unknown", m.Header.Get("Shallot-Fault"), string(m.Data))
		require.Contains(t, string(m.Data), fmt.Sprint(status))
		require.EqualValues(t, 1, asked.Load())
		require.JSONEq(t, `{"ok":true}`, string(ask(t, h.Conn, "shallot.v1.tool.request.put", `{}`).Data))
		require.EqualValues(t, 3, asked.Load())
	}
}
