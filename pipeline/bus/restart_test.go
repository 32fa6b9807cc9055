package bus_test

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// A watch of a bucket can die with its server; the switches are followed all the same once it is back, and calls pass.
func TestTrap_NatsC_SwitchesAfterAServerRestart(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp(scratch, "restart-")
	require.NoError(t, err)
	srv, err := embed.Start(embed.Options{Dir: dir, Port: -1, Sync: time.Minute})
	require.NoError(t, err)
	url, port := srv.ClientURL(), srv.Addr().(*net.TCPAddr).Port
	nc, err := jet.Connect(jet.ConnOptions{Name: t.Name(), URL: url})
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	cfg := classes(bus.Config{})
	require.NoError(t, bus.Provision(t.Context(), js, cfg))
	m := manager(t, through("a", 10))
	n, err := bus.New(t.Context(), bus.Options{Config: cfg, Conn: nc, Log: testLog(), Entry: true, Manager: m, Targets: roles(pipeline.TargetFunc(echo))})
	require.NoError(t, err)
	require.NoError(t, n.Start(t.Context()))
	require.Equal(t, []string{"a.beforeModel", "model", "a.afterModel"}, wait(t, accept(t, n, chatRequest())).Slip.Path)

	srv.Stop()
	srv, err = embed.Start(embed.Options{Dir: dir, Port: port, Sync: time.Minute})
	require.NoError(t, err)
	defer srv.Stop()
	require.Eventually(t, nc.IsConnected, 20*time.Second, 10*time.Millisecond)
	kv, err := js.KeyValue(t.Context(), jet.ControlBucket)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := kv.PutString(t.Context(), "stage.model.a.enabled", "false")
		return err == nil
	}, 20*time.Second, 50*time.Millisecond)
	require.Eventually(t, func() bool { s, _ := m.Get(messages.Model, "a"); return !s.Enabled() }, 40*time.Second, 10*time.Millisecond)
	require.Equal(t, []string{"model"}, wait(t, accept(t, n, chatRequest())).Slip.Path)
	require.NoError(t, stop(n))
}
