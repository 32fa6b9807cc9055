package bus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

// A call whose work queue nobody pulls ends at its deadline as target_absent: it names the queue, and says that nothing
// was executed. One that waits behind a target at work is not called absent.
func TestTargetAbsentNamesTheQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	n := w.node(bus.Options{Entry: true, Manager: manager(t, through("a", 10))})
	r := chatRequest()
	r.Deadline = time.Now().Add(time.Second)
	c := wait(t, accept(t, n, r))
	require.NotNil(t, c.Fault)
	require.Equal(t, messages.TargetAbsent, c.Fault.Code)
	require.Contains(t, c.Fault.Message, "model-default")
	require.Contains(t, c.Fault.Message, "not executed")
	require.True(t, c.Fault.OfTarget())

	w.node(bus.Options{Targets: roles(pipeline.TargetFunc(echo))}) // what was left in the queue ends without being run
	require.Nil(t, wait(t, accept(t, n, chatRequest())).Fault)
	w.settled()
}
