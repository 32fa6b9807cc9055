package bus_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

// layouts runs a test with the stages in the owner's process, fused and spread, and with a node for each part. start
// starts the installation and returns its owner.
func layouts(t *testing.T, run func(t *testing.T, start func(o bus.Options) *bus.Node)) {
	t.Helper()
	both(t, func(t *testing.T, cfg bus.Config) {
		run(t, func(o bus.Options) *bus.Node {
			o.Entry = true
			return newWorld(t, cfg).node(o)
		})
	})
	t.Run("a node for each part", func(t *testing.T) {
		t.Parallel()
		run(t, func(o bus.Options) *bus.Node {
			w, targets := newWorld(t, bus.Config{}), o.Targets
			o.Targets = nil
			for _, s := range o.Manager.Stages("") {
				part := o
				part.Hosts = only(s.Name)
				w.node(part)
			}
			o.Hosts = nobody
			target := o
			target.Targets = targets
			w.node(target)
			o.Entry = true
			return w.node(o)
		})
	})
}

// A caller that leaves ends the phase that runs for it, wherever it runs, and keeps one from beginning that waits for
// its turn there.
func TestACallerThatLeavesEndsTheWorkOfAStage(t *testing.T) {
	t.Parallel()
	layouts(t, func(t *testing.T, start func(o bus.Options) *bus.Node) {
		began, cause := make(chan string, 8), make(chan error, 8)
		slow := pipeline.Stage{Name: "slow", Kind: messages.Model, Order: 10,
			Before: func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
				if c.Session == "quick" {
					return pipeline.Continue(), nil
				}
				began <- c.ID
				<-ctx.Done()
				cause <- context.Cause(ctx)
				return pipeline.Verdict{}, ctx.Err()
			}}
		n := start(bus.Options{Manager: manager(t, slow), Targets: roles(pipeline.TargetFunc(echo)), StageSlots: 1})
		first := accept(t, n, chatRequest())
		require.Equal(t, first.ID(), <-began)
		first.Leave()
		require.ErrorIs(t, <-cause, pipeline.ErrCancelled)
		require.Equal(t, messages.Cancelled, wait(t, first).Fault.Code)

		second := accept(t, n, chatRequest())
		require.Equal(t, second.ID(), <-began)
		third := accept(t, n, chatRequest())
		third.Leave() // spread, it waits for the only slot, and the second call has that
		require.Equal(t, messages.Cancelled, wait(t, third).Fault.Code)
		second.Leave()
		require.ErrorIs(t, <-cause, pipeline.ErrCancelled)
		quick := chatRequest()
		quick.Session = "quick"
		require.Nil(t, wait(t, accept(t, n, quick)).Fault, "the slot is free again")
	})
}

// A stage that panics fails its call, with a word of the stage; the process goes on.
func TestAPanicFailsItsCallAlone(t *testing.T) {
	t.Parallel()
	layouts(t, func(t *testing.T, start func(o bus.Options) *bus.Node) {
		bad := pipeline.Stage{Name: "bad", Kind: messages.Model, Order: 10,
			Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
				if c.Session == "bad" {
					panic("at the disco")
				}
				return pipeline.Continue(), nil
			}}
		n := start(bus.Options{Manager: manager(t, bad), Targets: roles(pipeline.TargetFunc(echo))})
		r := chatRequest()
		r.Session = "bad"
		c := wait(t, accept(t, n, r))
		require.Equal(t, messages.StageError, c.Fault.Code)
		require.Contains(t, c.Fault.Message, "at the disco")
		require.Equal(t, "bad", c.Fault.Origin)
		require.Nil(t, wait(t, accept(t, n, chatRequest())).Fault)
	})
}

// What is around a stage may panic too.
func TestAPanicOfMiddlewareFailsItsCallAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	var calls atomic.Int32
	m := manager(t, pipeline.Stage{Name: "s", Kind: messages.Model, Order: 10, Before: pass})
	breaks := func(h message.HandlerFunc) message.HandlerFunc {
		return func(in *message.Message) ([]*message.Message, error) {
			if calls.Add(1) == 1 {
				panic("around it")
			}
			return h(in)
		}
	}
	w.node(bus.Options{Manager: m, Middleware: []message.HandlerMiddleware{breaks}})
	n := w.node(bus.Options{Manager: m, Hosts: nobody, Entry: true, Targets: roles(pipeline.TargetFunc(echo))})
	c := wait(t, accept(t, n, chatRequest()))
	require.Equal(t, messages.StageError, c.Fault.Code)
	require.Contains(t, c.Fault.Message, "around it")
	require.Nil(t, wait(t, accept(t, n, chatRequest())).Fault)
}
