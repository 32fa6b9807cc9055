package host_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline"
)

// TestDegradedStream: FB-2 and S2-PRIN-4 for streams. The stage marks the reply at its end, when a stream's headers
// are long out, so the first chunk carries the mark; also where the end of an earlier stream is replayed.
func TestDegradedStream(t *testing.T) {
	t.Parallel()
	h := started(t, "version: 1\nagent: {interceptor: {model-fallback: {fallback-models: [demo/echo], max-retries: 1}}}\n")
	ask := func(model string) string {
		return `{"model":"` + model + `","stream":true,"messages":[{"role":"user","content":"fail 500"}]}`
	}
	const mark = "model-fallback;model=demo/echo"

	t.Run("to the process that accepted the call", func(t *testing.T) {
		for model, want := range map[string]string{"demo/fail": mark, "demo/echo": ""} {
			p, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: "model", Stream: true, Tenant: "default",
				Body: []byte(ask(model))})
			require.NoError(t, err)
			deltas := 0
			_, err = p.Wait(t.Context(), func(d pipeline.Delta) {
				deltas++
				require.Equal(t, want, d.Degraded, model)
			})
			require.NoError(t, err)
			require.Positive(t, deltas, model)
		}
	})

	t.Run("to a NATS caller", func(t *testing.T) {
		nc, err := nats.Connect(h.URL)
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		for range 2 { // the second attaches to the first by its key
			sub, err := nc.SubscribeSync(nc.NewInbox())
			require.NoError(t, err)
			require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: "shallot.v1.model.request", Reply: sub.Subject,
				Data:   []byte(ask("demo/fail")),
				Header: nats.Header{"Nats-Msg-Id": {"k"}}}))
			m, err := sub.NextMsg(20 * time.Second)
			require.NoError(t, err)
			require.Equal(t, mark, m.Header.Get("Shallot-Degraded"), string(m.Data))
			for len(m.Data) > 0 {
				m, err = sub.NextMsg(20 * time.Second)
				require.NoError(t, err)
				require.Empty(t, m.Header, string(m.Data))
			}
		}
	})

	t.Run("a wire version of another build is refused", func(t *testing.T) {
		nc, err := nats.Connect(h.URL)
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		for version, want := range map[string]string{"1": "", "9": "unsupported_version"} {
			m, err := nc.RequestMsg(&nats.Msg{Subject: "shallot.v1.model.request",
				Header: nats.Header{"Shallot-Wire": {version}},
				Data:   []byte(`{"model":"demo/echo","messages":[{"role":"user","content":"x"}]}`)}, 20*time.Second)
			require.NoError(t, err)
			require.Equal(t, want, m.Header.Get("Shallot-Fault"))
		}
	})
}
