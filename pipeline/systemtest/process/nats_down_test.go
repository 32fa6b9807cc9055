//go:build unix

package process

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/systemtest/pace"
)

// A start waits for a server that is not there yet; once it is known that the server is away, nobody waits for what
// cannot come (BU-11).
func TestTheServerIsNotThereYetAndNotThereAnyMore(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	port := pace.Port(t)
	addr := "127.0.0.1:" + port
	hasty := c.process("gateway", "--nats", "nats://"+addr, "--http", "127.0.0.1:0", "--admin", "none")
	<-hasty.done
	require.Contains(t, hasty.String(), "is nats-server running there")
	g := c.process("gateway", "--nats", "nats://"+addr, "--http", "127.0.0.1:0", "--admin", "none", "--wait", "1m")
	w := c.process("worker", "--nats", "nats://"+addr, "--wait", "1m")
	g.await(t, "waited for")
	w.await(t, "waited for")
	server := c.process("nats-server", "-a", "127.0.0.1", "-p", port, "-js", "-sd", filepath.Join(t.TempDir(), "js2"))
	base := g.await(t, `HTTP +(http://\S+)/v1`)[1]
	g.await(t, "ready in")
	w.ready(t)
	require.Equal(t, 200, c.http("POST", base+"/v1/chat/completions", echo).status)

	server.signal(syscall.SIGKILL)
	<-server.done
	g.await(t, "disconnected from NATS")
	for _, header := range []string{"X-A", "Idempotency-Key", "Prefer"} {
		fastest := time.Hour // a busy machine takes its time
		for range 3 {
			begin := time.Now()
			a := c.http("POST", base+"/v1/chat/completions", echo, header, "respond-async")
			fastest = min(fastest, time.Since(begin))
			require.Equal(t, 503, a.status)
			require.Equal(t, "store_unavailable", a.header("Shallot-Fault"))
			require.NotEmpty(t, a.header("Retry-After"))
		}
		require.Less(t, fastest, 3*time.Second, "%s: nobody waits for the server", header)
	}
	require.Equal(t, 503, c.http("POST", base+"/v1/tools/echo/call", `{"message":"x"}`).status)
	// Operators are told the same, and not what the client says of its buffers.
	for _, path := range []string{"/api/calls", "/api/calls/x", "/api/dead", "/v1/approvals", "/readyz",
		"/api/debug/interceptor-stats", "/api/debug/interceptor/diagnostics"} {
		a := c.http("GET", base+path, "")
		require.Equal(t, 503, a.status, path)
		require.Contains(t, string(a.body), "NATS", path)
		require.NotContains(t, string(a.body), "buffer", path)
	}
}
