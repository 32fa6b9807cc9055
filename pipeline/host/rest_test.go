//go:build long

package host_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/host"
)

// A process at rest publishes little: its marks, and now and then the question which services have tools.
func TestAProcessAtRestIsCalm(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	config := "version: 1\nnats: {embedded: {port: -1, sync: 1m, data: " + t.TempDir() + "}}\n"
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	l, err := host.Load(file, nil, nil)
	require.NoError(t, err)
	h, err := host.Start(t.Context(), host.Options{Config: l, Roles: host.Everything(), Name: t.Name(),
		Drain: time.Second, Getenv: func(string) string { return "" }})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		_ = h.Stop(ctx)
	})
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
