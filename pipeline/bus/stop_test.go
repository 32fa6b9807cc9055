package bus_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

// A process that stops takes no new calls, finishes those that end soon, and ends the others.
func TestStopEndsBoundCalls(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		cfg.Drain = 200 * time.Millisecond
		w := newWorld(t, cfg)
		began := make(chan struct{})
		n := w.start(bus.Options{Entry: true, Manager: manager(t), Targets: roles(pipeline.TargetFunc(
			func(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
				close(began)
				return until(ctx, c, emit)
			}))})
		p := accept(t, n, chatRequest())
		<-began
		require.NoError(t, stop(n))
		c := wait(t, p)
		require.Equal(t, messages.Stopping, c.Fault.Code, c.Fault.Message)
		require.False(t, c.Fault.Unsent, "its target has begun")
		_, err := n.Accept(t.Context(), chatRequest())
		require.Error(t, err)
	})
}

// A call that a process which stops ends before its target says that nothing was sent.
func TestStopSaysWhatWasNotSent(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		cfg.Drain = 200 * time.Millisecond
		w := newWorld(t, cfg)
		there := make(chan struct{}, 16)
		slow := pipeline.Stage{Name: "slow", Kind: messages.Tool, Order: 10,
			Before: func(ctx context.Context, _ *messages.Call) (pipeline.Verdict, error) {
				there <- struct{}{}
				<-ctx.Done()
				return pipeline.Continue(), context.Cause(ctx)
			}}
		n := w.start(bus.Options{Entry: true, Manager: manager(t, slow), Targets: roles(pipeline.TargetFunc(echo))})
		p := accept(t, n, pipeline.Request{Kind: messages.Tool, Tool: "t", Body: []byte(`{}`)})
		<-there
		require.NoError(t, stop(n))
		c := wait(t, p)
		require.Equal(t, messages.Stopping, c.Fault.Code, c.Fault.Message)
		require.True(t, c.Fault.Unsent)
	})
}
