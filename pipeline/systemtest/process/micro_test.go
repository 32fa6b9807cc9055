//go:build unix

package process

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

// service asks the service protocol and returns the answers of n processes, which are all.
func service[T any](t *testing.T, c *cluster, subject string, n int) []T {
	t.Helper()
	sub, err := c.nc.SubscribeSync(c.nc.NewInbox())
	require.NoError(t, err)
	defer func() { _ = sub.Unsubscribe() }()
	require.NoError(t, c.nc.PublishRequest(subject, sub.Subject, nil))
	var out []T
	for {
		limit := time.Minute
		if len(out) >= n {
			limit = 50 * time.Millisecond
		}
		m, err := sub.NextMsg(limit)
		if err != nil {
			require.Len(t, out, n, subject)
			return out
		}
		var v T
		require.NoError(t, json.Unmarshal(m.Data, &v), string(m.Data))
		out = append(out, v)
	}
}

// TestMicro shows the installation as tools of the service protocol see it.
func TestMicro(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	_, base := c.gateway()
	c.worker("--stages", "all", "--serve", "model,tool").ready(t)
	const calls = 5
	for range calls {
		require.Equal(t, 200, c.http("POST", base+"/v1/chat/completions", echo).status)
	}
	for range 2 {
		require.Contains(t, string(c.req("shallot.v1.tool.request.add", `{"a":"x"}`).body), "invalid_arguments")
	}
	require.Equal(t, 200, c.http("POST", base+"/api/debug/interceptor/logging/disable", "").status)

	pings := service[micro.Ping](t, c, "$SRV.PING", 2)
	for _, p := range pings {
		require.Contains(t, []string{"shallot-gateway", "shallot-worker-model-tool-stages"}, p.Name)
		service[micro.Ping](t, c, "$SRV.PING."+p.Name, 1) // each process has a name of its own
		require.Equal(t, micro.PingResponseType, p.Type)
		require.Regexp(t, `^\d+\.\d+\.\d+`, p.Version)
		service[micro.Ping](t, c, "$SRV.PING.shallot."+p.ID, 1)
	}
	endpoints := map[string]micro.EndpointInfo{}
	for _, i := range service[micro.Info](t, c, "$SRV.INFO.shallot", 2) {
		require.Equal(t, micro.InfoResponseType, i.Type)
		require.Contains(t, i.Description, map[string]string{"true": "owns calls",
			"false": "model/demo"}[i.Metadata["entry"]])
		require.NotEmpty(t, i.Metadata["config_revision"])
		for _, e := range i.Endpoints {
			require.Regexp(t, `^[A-Za-z0-9_-]+$`, e.Name)
			endpoints[e.Name] = e
		}
	}
	require.Equal(t, "shallot.v1.hop.model.before.audit", endpoints["model-before-audit"].Subject)
	require.Equal(t, "audit", endpoints["model-before-audit"].QueueGroup)
	var stats map[string]*micro.EndpointStats // of all processes together
	require.Eventually(t, func() bool {
		stats = map[string]*micro.EndpointStats{}
		for _, s := range service[micro.Stats](t, c, "$SRV.STATS.shallot", 2) {
			for _, e := range s.Endpoints {
				if all := stats[e.Name]; all != nil {
					e.NumRequests, e.NumErrors = e.NumRequests+all.NumRequests, e.NumErrors+all.NumErrors
					e.ProcessingTime += all.ProcessingTime
				}
				stats[e.Name] = e
			}
		}
		return stats["model-after-audit"] != nil && stats["model-after-audit"].NumRequests == calls
	}, 30*time.Second, 10*time.Millisecond)
	for _, name := range []string{"model-before-audit", "model-before-logging", "model-after-logging",
		"target-model-demo"} {
		e := stats[name]
		require.NotNil(t, e, name)
		require.Equal(t, calls, e.NumRequests, "%s: true counts", name)
		require.Zero(t, e.NumErrors, name)
		require.Positive(t, e.ProcessingTime, name)
	}
	target := stats["target-model-demo"]
	require.Equal(t, target.ProcessingTime/time.Duration(calls), target.AverageProcessingTime)
	e := stats["tool-before-tool-arguments"]
	require.Equal(t, []int{2, 2}, []int{e.NumRequests, e.NumErrors}, "errors are counted")
	require.NotEmpty(t, e.LastError)
	require.False(t, gjson.GetBytes(stats["model-before-logging"].Data, "enabled").Bool(), "a stage that is off says so")
	require.True(t, gjson.GetBytes(stats["model-before-audit"].Data, "enabled").Bool())
}
