package bus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// TestTrap_Lease5_BacklogIsRefusedAtTheDoor: while more hops are stored than the configured backlog, entry workers
// take nothing in, so the limited entry stream fills and refuses; what was accepted goes on when the targets are back.
func TestTrap_Lease5_BacklogIsRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{HopBacklog: 2, EntryMaxMsgs: 4})
	n := w.node(bus.Options{Entry: true})
	submit := func() (pipeline.Pending, error) {
		return n.Accept(t.Context(), pipeline.Request{Kind: messages.Model, Body: chatRequest().Body, Submit: true})
	}
	stored := func(stream string) uint64 {
		s, err := w.js.Stream(t.Context(), stream)
		require.NoError(t, err)
		return s.CachedInfo().State.Msgs
	}
	var accepted []pipeline.Pending
	for range 4 { // nobody runs the target: these wait in the hops stream
		p, err := submit()
		require.NoError(t, err)
		accepted = append(accepted, p)
	}
	require.Eventually(t, func() bool { return stored(jet.HopsStream) == 4 }, 10*time.Second, 10*time.Millisecond)
	// The backlog is looked at once a second; from then on calls stay at the door until it is full.
	var refused *messages.Fault
	require.Eventually(t, func() bool {
		p, err := submit()
		if err == nil {
			accepted = append(accepted, p)
			return false
		}
		require.ErrorAs(t, err, &refused)
		return true
	}, 20*time.Second, 50*time.Millisecond)
	require.Equal(t, messages.Overloaded, refused.Code)
	require.EqualValues(t, 4, stored(jet.CallsStream))

	w.node(bus.Options{Targets: roles(pipeline.TargetFunc(echo))})
	for _, p := range accepted {
		c, err := p.Wait(t.Context(), nil)
		require.NoError(t, err)
		require.Nil(t, c.Fault, "what was accepted is not lost")
	}
}
