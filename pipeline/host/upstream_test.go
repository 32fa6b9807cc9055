package host_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// TestUpstreamHeaders: the provider's rate limits and request id reach the caller with a success and with a fault.
func TestUpstreamHeaders(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", "theirs")
		w.Header().Set("X-RateLimit-Remaining-Requests", "3")
		w.Header().Set("Content-Type", "application/json")
		if r.Header.Get("X-Request-Id") == "fails" {
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = w.Write([]byte(`{"error":{"message":"slow down","type":"tokens","param":null,"code":null}}`))
			return
		}
		_, _ = w.Write([]byte(`{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},` +
			`"finish_reason":"stop"}]}`))
	}))
	t.Cleanup(up.Close)
	h := started(t, `version: 1
models: {providers: [{name: up, base-url: "`+up.URL+`/v1", models: ["up-*"]}]}
agent: {interceptor: {model-fallback: {enabled: false}}}
`)
	nc, err := nats.Connect(h.URL)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	for id, status := range map[string]string{"works": "", "fails": "429"} {
		m, err := nc.RequestMsg(&nats.Msg{Subject: "shallot.v1.model.request", Header: nats.Header{"X-Request-Id": {id}},
			Data: []byte(`{"model":"up-1","messages":[{"role":"user","content":"x"}]}`)}, 20*time.Second)
		require.NoError(t, err)
		require.Equal(t, status, m.Header.Get("Nats-Service-Error-Code"), string(m.Data))
		require.Equal(t, id, m.Header.Get("X-Request-Id"))
		require.Equal(t, "theirs", m.Header.Get("X-Upstream-Request-Id"), id)
		require.Equal(t, []string{"3"}, m.Header["x-ratelimit-remaining-requests"], id)
	}
}
