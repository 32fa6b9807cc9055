package protocol

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Work that is not offered takes a slot as any other, and goes before nobody who waits.
func TestWorkThatIsNotOfferedTakesASlot(t *testing.T) {
	t.Parallel()
	m := NewMember("m", Config{QueueCapacity: 2})
	m.Works.Serve("model.x", 1)
	offer := Offered{Work: Work{Call: "other", N: 1}, Owner: "o", Class: "model.x", Until: time.Hour, Once: true}
	require.False(t, m.Works.Enter(1, "model.y"), "nobody does it here")
	require.True(t, m.Works.Enter(1, "model.x"))
	require.False(t, m.Works.Enter(1, "model.x"), "the slot is taken")
	require.Empty(t, m.Works.Offered(2, offer, nil), "it waits")
	require.False(t, m.Works.Enter(2, "model.x"))
	out := m.Works.Exit(3, "model.x", nil)
	require.NotEmpty(t, out, "what waited begins")
	require.Equal(t, "other", out[0].Call)
	require.False(t, m.Works.Enter(4, "model.x"))
	require.Equal(t, []Load{{Class: "model.x", Busy: 1}}, m.Works.Loads(nil))
}

func TestWorkThatIsNotOfferedCountsAsUnderWay(t *testing.T) {
	t.Parallel()
	o := NewOwner("o", Config{})
	require.True(t, o.Runs.Enter("model.x"))
	require.Equal(t, 1, o.Runs.Loads(nil)[0].Away)
	o.Runs.Exit(time.Second, "model.x", 100*time.Millisecond)
	require.Zero(t, o.Runs.Loads(nil)[0].Away)
	l := o.Runs.line("model.x")
	require.Equal(t, 100*time.Millisecond, l.took)
	l.full = true
	require.False(t, o.Runs.Enter("model.x"), "others wait")
}
