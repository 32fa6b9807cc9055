package bus_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// TestTrap_LeaseB7_ParseLease: only ack subjects of our own streams are ever published to.
func TestTrap_LeaseB7_ParseLease(t *testing.T) {
	t.Parallel()
	const v1 = "$JS.ACK.SHALLOT_HOPS.model-default.2.77.3.1700000000000000000.0"
	const v2 = "$JS.ACK.hub.ACCHASH.SHALLOT_CALLS.entry-model.1.5.6.1700000000000000000.0.rnd"
	l, err := bus.ParseLease(v1)
	require.NoError(t, err)
	require.Equal(t, bus.Lease{Ack: v1, Stream: jet.HopsStream, Seq: 77, Delivered: 2}, l)
	l, err = bus.ParseLease(v2)
	require.NoError(t, err)
	require.Equal(t, bus.Lease{Ack: v2, Stream: jet.CallsStream, Seq: 5, Delivered: 1}, l)
	l, err = bus.ParseLease(strings.TrimSuffix(v2, ".rnd"))
	require.NoError(t, err, "a version 2 lease has 11 tokens or more")
	require.EqualValues(t, 5, l.Seq)
	for name, bad := range map[string]string{
		"empty":                "",
		"no ack subject":       "shallot.v1.dead.model.x",
		"another API":          "$JS.API.STREAM.DELETE.SHALLOT_CALLS.a.b.c.d",
		"foreign stream":       "$JS.ACK.ORDERS.worker.1.5.5.1700000000000000000.0",
		"foreign stream of v2": "$JS.ACK.hub.HASH.ORDERS.worker.1.5.5.1700000000000000000.0.x",
		"our stream elsewhere": "$JS.ACK.ORDERS.SHALLOT_CALLS.1.5.5.1700000000000000000.0",
		"prefix of ours":       "$JS.ACK.SHALLOT_CALLS2.entry-model.1.5.5.1700000000000000000.0",
		"too short":            "$JS.ACK.SHALLOT_CALLS.entry-model.1.5.5.1700000000000000000",
		"ten tokens":           v1 + ".x",
		"delivery 0":           strings.Replace(v1, ".2.77.", ".0.77.", 1),
		"delivery below 0":     strings.Replace(v1, ".2.77.", ".-1.77.", 1),
		"no number":            strings.Replace(v1, ".77.", ".x.", 1),
		"wildcard":             strings.Replace(v1, "model-default", "*", 1),
		"full wildcard":        strings.Replace(v1, ".0", ".>", 1),
		"blank":                strings.Replace(v1, "model-default", "a b", 1),
		"a second command":     v1 + "\r\nPUB x 0",
	} {
		_, err := bus.ParseLease(bad)
		require.Error(t, err, name)
	}
}

func FuzzParseLease(f *testing.F) {
	f.Add("$JS.ACK.SHALLOT_HOPS.model-default.2.77.3.1700000000000000000.0")
	f.Add("$JS.ACK.hub.ACCHASH.SHALLOT_CALLS.entry-model.1.5.6.1700000000000000000.0.rnd")
	f.Add("$JS.ACK.>........")
	f.Fuzz(func(t *testing.T, s string) {
		l, err := bus.ParseLease(s)
		if err != nil {
			return
		}
		require.Equal(t, s, l.Ack)
		require.True(t, strings.HasPrefix(s, "$JS.ACK."))
		require.Contains(t, []string{jet.CallsStream, jet.HopsStream}, l.Stream)
		require.Contains(t, strings.Split(s, "."), l.Stream)
		require.GreaterOrEqual(t, l.Delivered, 1)
		require.NotContains(t, s, "*")
		require.NotContains(t, s, " ")
		require.NotContains(t, s, "\r")
		require.NotContains(t, s, "\n")
	})
}
