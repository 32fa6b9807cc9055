package bus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

// Statistics are those of all processes, and a switch reaches them all.
func TestStatisticsAndSwitchesAreThoseOfAllProcesses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	make := func() *bus.Node {
		return w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, through("s", 10))})
	}
	a, b := make(), make()
	for _, n := range []*bus.Node{a, b} {
		require.Nil(t, wait(t, accept(t, n, chatRequest())).Fault)
	}
	stats, err := a.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, stats.Interceptors[0].Invocations)
	_, err = a.Switch(t.Context(), "s", false, "", "me")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return len(wait(t, accept(t, b, chatRequest())).Slip.Path) == 1
	}, 5*time.Second, 10*time.Millisecond)
	_, err = b.Diagnostics(t.Context())
	require.NoError(t, err)
}
