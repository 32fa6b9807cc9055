//go:build unix

package process

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A gateway that is told to stop says so in its readiness and serves on for a while; a call that outlives it is not
// lost: its caller learns where the answer will be, and another gateway has it (EN-5).
func TestAGatewayLeavesBeforeItStops(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "SHALLOT_BUS__LAME_DUCK=2s")
	leaving, base := c.gateway()
	_, other := c.gateway()
	c.worker("--stages", "all", "--serve", "model,tool").ready(t)
	long := make(chan answer, 1)
	begun := make(chan struct{})
	go func() {
		close(begun)
		a, _ := httpDo(t.Context(), "POST", base+"/v1/tools/slow/call", `{"ms":14000}`, "Idempotency-Key", "k1")
		long <- a
	}()
	<-begun
	require.Equal(t, 200, c.http("POST", base+"/v1/chat/completions", echo).status)
	require.Equal(t, 200, c.http("GET", base+"/readyz", "").status)
	leaving.signal(syscall.SIGTERM)
	require.Eventually(t, func() bool { return c.http("GET", base+"/readyz", "").status == 503 }, 30*time.Second,
		10*time.Millisecond)
	a := c.http("POST", base+"/v1/chat/completions", echo)
	require.Equal(t, 200, a.status, "new connections are served: %s", a.body)
	require.Equal(t, 200, c.http("GET", other+"/readyz", "").status)
	a = <-long
	require.Equal(t, 503, a.status, string(a.body))
	require.Equal(t, "stopping", a.header("Shallot-Fault"))
	require.NotEmpty(t, a.header("Retry-After"))
	require.Empty(t, a.header("X-Should-Retry"))
	place := a.header("Location")
	require.Regexp(t, `^/v1/results/[0-9a-f-]{36}$`, place)
	end := c.http("GET", other+place, "", "Prefer", "wait=30")
	require.Equal(t, 200, end.status, string(end.body))
}
