package host_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// A process owns as many stored calls as it has slots: else a provider would stand idle while calls for it wait
// (BU-15).
func TestAsManyStoredCallsRunAsThereAreSlots(t *testing.T) {
	t.Parallel()
	const slots = 1030 // more than are owned without a word about slots
	release, there := make(chan struct{}), atomic.Int64{}
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			there.Add(1)
			select {
			case <-release:
			case <-r.Context().Done(): // a failed try is not there any more
				there.Add(-1)
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},` +
			`"finish_reason":"stop"}]}`))
	}))
	t.Cleanup(up.Close)
	t.Cleanup(func() { close(release) })
	h := started(t, `version: 1
models:
  timeouts: {connect: 10m, first-byte: 10m, attempt: 10m, total: 10m} # a busy machine takes its time
  providers: [{name: up, base-url: "`+up.URL+`/v1", models: ["up-*"], wires: [chat]}]
bus: {slots: {model: `+fmt.Sprint(slots)+`}}
`)
	nc, err := nats.Connect(h.URL)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	for range slots {
		require.NoError(t, nc.PublishRequest("shallot.v1.model.request", nats.NewInbox(),
			[]byte(`{"model":"up-1","messages":[{"role":"user","content":"x"}]}`)))
	}
	all := func() bool { return there.Load() == slots }
	require.Eventually(t, all, 5*time.Minute, 10*time.Millisecond, "all of them are at the provider at once")
}
