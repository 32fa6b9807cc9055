package bus_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/systemtest/pace"
)

// newCluster makes three servers that form a cluster; start starts one of them.
func newCluster(t *testing.T) (urls []string, start func(i int)) {
	t.Helper()
	const size = 3
	var ports []int
	for len(ports) < 2*size {
		port, err := strconv.Atoi(pace.Port(t))
		require.NoError(t, err)
		if !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	routes := ""
	for i := range size {
		routes += fmt.Sprintf(",nats://127.0.0.1:%d", ports[size+i])
		urls = append(urls, fmt.Sprintf("nats://127.0.0.1:%d", ports[i]))
	}
	return urls, func(i int) {
		s, err := server.NewServer(&server.Options{ServerName: fmt.Sprint("n", i), Host: "127.0.0.1", Port: ports[i],
			NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(), Routes: server.RoutesFromStr(routes[1:]),
			Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: ports[size+i]}})
		require.NoError(t, err)
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		require.True(t, s.ReadyForConnections(time.Minute))
	}
}

// Six processes start together with a fresh cluster of three servers, of which the last comes when they are already at
// it: each of them comes up, and they share one set of streams and buckets (BU-17).
func TestProcessesThatStartTogetherOnAFreshClusterComeUp(t *testing.T) {
	t.Parallel()
	urls, startServer := newCluster(t)
	startServer(0)
	startServer(1)
	cfg := classes(bus.Config{Replicas: 3})
	m := manager(t, through("s", 10))
	nodes := make([]*bus.Node, 6)
	errs := make([]error, len(nodes))
	var all sync.WaitGroup
	for i := range nodes {
		nc := dial(t, urls[i%2])
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			js, err := jetstream.New(nc)
			if err == nil {
				err = bus.Provision(ctx, js, cfg)
			}
			o := bus.Options{Config: cfg, Conn: nc, Log: testLog(), Entry: i == 0, Manager: m, Hosts: nobody}
			if i > 0 {
				o.Hosts, o.Targets = nil, roles(pipeline.TargetFunc(echo))
			}
			if err == nil {
				nodes[i], err = bus.New(ctx, o)
			}
			if err == nil {
				err = nodes[i].Start(ctx)
			}
			errs[i] = err
		})
	}
	startServer(2)
	all.Wait()
	for i, err := range errs {
		require.NoError(t, err, "process %d", i)
		t.Cleanup(func() { _ = stop(nodes[i]) })
	}
	st, err := nodes[0].JetStream().Stream(t.Context(), jet.CallsStream)
	require.NoError(t, err)
	require.Equal(t, 3, st.CachedInfo().Config.Replicas)
	for _, keep := range []bool{false, true} {
		r := chatRequest()
		r.Keep = keep
		c := wait(t, accept(t, nodes[0], r))
		require.Nil(t, c.Fault, "%v", c.Fault)
		require.Equal(t, messages.Model, c.Kind)
	}
}
