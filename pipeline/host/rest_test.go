//go:build long

package host_test

import (
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

// A process at rest publishes little: its marks, and now and then the question which services have tools.
func TestAProcessAtRestIsCalm(t *testing.T) {
	t.Parallel()
	h := apitest.Host(t, "nats: {embedded: {port: -1, sync: 1m, data: "+t.TempDir()+"}}\n", nil)
	nc, err := nats.Connect(h.URL)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	const long = 24 * time.Second // eight marks, two rounds of discovery
	settled := time.NewTimer(3 * time.Second)
	<-settled.C
	var mu sync.Mutex
	seen := map[string]int{}
	_, err = nc.Subscribe(">", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		seen[m.Subject]++
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	before := h.Conn.Stats()
	over := time.NewTimer(long)
	<-over.C
	after := h.Conn.Stats()
	mu.Lock()
	defer mu.Unlock()
	sent, heard := after.OutMsgs-before.OutMsgs, after.InMsgs-before.InMsgs
	t.Logf("%d sent, %d heard in %s: %v", sent, heard, long, seen)
	require.Zero(t, seen["$JS.API.STREAM.INFO.KV_shallot_tools"], "the tools are watched")
	require.Less(t, float64(sent)/long.Seconds(), 1.25, "messages a second that it sends: %v", seen)
}
