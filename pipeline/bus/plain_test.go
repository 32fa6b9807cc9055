package bus_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

// diary notes who ran which phase.
type diary struct {
	mu  sync.Mutex
	all []string
}

func (d *diary) stage(process string) pipeline.Stage {
	note := func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
		_, phase := c.Slip.Stage()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.all = append(d.all, process+" "+string(phase))
		return pipeline.Continue(), nil
	}
	return pipeline.Stage{Name: "easy", Kind: messages.Model, Order: 50, Before: note, After: note,
		Plain: func(c *messages.Call) bool { return !c.Slip.Back }}
}

// A phase that needs nothing but the call is run by its owner, and any other by a member.
func TestAPlainPhaseIsNotAsked(t *testing.T) {
	t.Parallel()
	w, d := newWorld(t, bus.Config{}), &diary{}
	w.node(bus.Options{Manager: manager(t, d.stage("member")), Hosts: only("easy"),
		Targets: roles(pipeline.TargetFunc(echo))})
	n := w.node(bus.Options{Entry: true, Manager: manager(t, d.stage("owner")), Hosts: nobody})
	require.Eventually(t, func() bool {
		d.all = nil
		c := wait(t, accept(t, n, chatRequest()))
		require.Nil(t, c.Fault)
		require.Equal(t, []string{"easy.beforeModel", "model", "easy.afterModel"}, c.Slip.Path)
		return d.all[0] == "owner before" // as soon as it is known that somebody serves the stage
	}, 30*time.Second, time.Millisecond)
	require.Equal(t, []string{"owner before", "member after"}, d.all)
}

// As long as nobody serves the stage, the call waits before all of its phases.
func TestAPlainPhaseWaitsForSomebodyWhoServesTheStage(t *testing.T) {
	t.Parallel()
	w, d := newWorld(t, bus.Config{}), &diary{}
	n := w.node(bus.Options{Entry: true, Manager: manager(t, d.stage("owner")), Hosts: nobody,
		Targets: roles(pipeline.TargetFunc(echo))})
	c := runsOut(t, n, chatRequest(), known)
	require.Equal(t, messages.StageAbsent, c.Fault.Code)
	require.Empty(t, d.all)
}
