package stages

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

// TestRedeliveredStagesCountOnce: phases that run again because the lease of their call came back are one invocation.
// It is the bus's alone: nothing is redelivered in one process.
func TestRedeliveredStagesCountOnce(t *testing.T) {
	t.Parallel()
	for name, phase := range map[string]messages.Phase{"before": messages.Before, "after": messages.After} {
		t.Run("a worker dies in "+name+" (ST-6)", func(t *testing.T) {
			t.Parallel()
			redelivered(t, phase)
		})
	}
}

// redelivered makes three calls, of which a worker holds all in the given phase of "inner" when it is gone.
func redelivered(t *testing.T, dies messages.Phase) {
	const calls = 3
	var runs [2]atomic.Int64 // of the two phases of inner
	began, block := make(chan struct{}, calls), make(chan struct{})
	var dead atomic.Bool
	phase := func(i int, p messages.Phase) pipeline.Func {
		return func(context.Context, *messages.Call) (pipeline.Verdict, error) {
			runs[i].Add(1)
			if p == dies && !dead.Load() {
				began <- struct{}{}
				<-block
			}
			return pipeline.Continue(), nil
		}
	}
	pass := func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }
	w := newWorld(t, bus.Config{AckWait: time.Second})
	node := func(o bus.Options) *bus.Node {
		o.Manager = &pipeline.Manager{}
		require.NoError(t, o.Manager.Register(pipeline.Stage{Name: "outer", Kind: messages.Model, Order: 10, Before: pass,
			After: pass}, true))
		require.NoError(t, o.Manager.Register(pipeline.Stage{Name: "inner", Kind: messages.Model, Order: 20,
			Before: phase(0, messages.Before), After: phase(1, messages.After)}, true))
		return w.start(t, o)
	}
	only := func(name string) func(pipeline.Stage) bool {
		return func(s pipeline.Stage) bool { return s.Name == name }
	}
	gate := node(bus.Options{Entry: true, Hosts: only("outer"),
		Targets: []bus.TargetRole{{Kind: messages.Model, Class: "default", Target: says1}}})
	dying := w.conn(t)
	node(bus.Options{Conn: dying, Hosts: only("inner")})
	var all []pipeline.Pending
	for range calls {
		p, err := gate.Accept(t.Context(), pipeline.Request{Kind: messages.Model, Tenant: "t1", Body: request(user("hi")),
			Deadline: time.Now().Add(30 * time.Second)})
		require.NoError(t, err)
		all = append(all, p)
	}
	for range calls {
		<-began
	}
	dying.Close() // as a kill: nothing is acknowledged or handed over
	dead.Store(true)
	close(block)
	node(bus.Options{Hosts: only("inner")})
	for _, p := range all {
		c, err := p.Wait(t.Context(), nil)
		require.NoError(t, err)
		require.Nil(t, c.Fault)
		require.Equal(t, []string{"outer.beforeModel", "inner.beforeModel", "model", "inner.afterModel",
			"outer.afterModel"}, c.Slip.Path)
	}
	require.GreaterOrEqual(t, runs[0].Load()+runs[1].Load(), int64(3*calls), "the phase ran twice for each call")
	st, err := gate.Stats(t.Context())
	require.NoError(t, err)
	counted := map[string]int64{}
	for _, s := range st.Interceptors {
		counted[s.Stage] = s.Invocations
	}
	require.Equal(t, map[string]int64{"outer": calls, "inner": calls}, counted)
}
