//go:build unix

package process

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

// A caller over NATS whose connection ends is noticed: the call ends as cancelled, and not after the minute that its
// tool would take (EN-7).
func TestACallerOverNATSThatIsGoneIsNoticed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.gateway()
	c.worker("--stages", "all", "--serve", "model,tool").ready(t)
	caller, err := nats.Connect(c.url)
	require.NoError(t, err)
	stored, err := c.nc.SubscribeSync("shallot.v1.call.entry.tool.>")
	require.NoError(t, err)
	require.NoError(t, c.nc.Flush())
	go func() { _, _ = caller.Request("shallot.v1.tool.request.slow", []byte(`{"ms":55000}`), time.Minute) }()
	m, err := stored.NextMsg(20 * time.Second)
	require.NoError(t, err)
	caller.Close()
	call := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	require.Eventually(t, func() bool {
		return c.req("shallot.v1.result."+call, "").header("Shallot-Fault") == "cancelled"
	}, 40*time.Second, 100*time.Millisecond)
	require.Equal(t, "cancelled", gjson.GetBytes(c.req("shallot.v1.cancel."+call, "").body, "status").Str)
}
