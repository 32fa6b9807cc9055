package bus_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// S0-CACHE-6: the process that hosts a stage runs its clean-up, and goes on after an error. The end of the test stops the node, which waits for it.
func TestStagesAreSwept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	pass := func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }
	swept, elsewhere := make(chan struct{}, 100), make(chan struct{}, 100)
	stage := func(name string, order int, on chan struct{}) pipeline.Stage {
		return pipeline.Stage{Name: name, Kind: messages.Tool, Order: order, Before: pass, SweepEvery: time.Millisecond, Sweep: func(context.Context) error {
			select {
			case on <- struct{}{}:
			default:
			}
			return errors.New("not this time")
		}}
	}
	w.node(bus.Options{
		Manager: manager(t, stage("here", 10, swept), stage("there", 20, elsewhere)),
		Hosts:   func(s pipeline.Stage) bool { return s.Name == "here" },
	})
	for range 2 {
		<-swept
	}
	require.Empty(t, elsewhere)

	var m pipeline.Manager
	require.ErrorContains(t, m.Register(pipeline.Stage{Name: "x", Kind: messages.Tool, Order: 10, Before: pass, Sweep: func(context.Context) error { return nil }}, true), "sweep")
}

func TestObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	js, err := jetstream.New(w.conn())
	require.NoError(t, err)
	o, err := jet.OpenObjects(t.Context(), js, jet.EvictedObjects)
	require.NoError(t, err)
	_, err = o.Get(t.Context(), "g1/t_1.txt")
	require.ErrorIs(t, err, pipeline.ErrNotFound)
	big := make([]byte, 300<<10)
	require.NoError(t, o.Put(t.Context(), "g1/t_1.txt", []byte("old")))
	require.NoError(t, o.Put(t.Context(), "g1/t_1.txt", big))
	raw, err := o.Get(t.Context(), "g1/t_1.txt")
	require.NoError(t, err)
	require.Equal(t, big, raw)
	_, err = jet.OpenObjects(t.Context(), js, "nowhere")
	require.ErrorContains(t, err, "provisioning")
}
