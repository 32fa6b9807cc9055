package bus_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

// The process that hosts a stage runs its clean-up, and goes on after an error, until it stops (S0-CACHE-6).
func TestStagesAreSweptWhereTheyLive(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		w := newWorld(t, cfg)
		swept, elsewhere, ended := make(chan struct{}), make(chan struct{}, 100), make(chan struct{})
		stage := func(name string, order int, sweep func(ctx context.Context) error) pipeline.Stage {
			return pipeline.Stage{Name: name, Kind: messages.Tool, Order: order, Before: pass,
				SweepEvery: time.Millisecond, Sweep: sweep}
		}
		runs := 0
		here := func(ctx context.Context) error {
			if runs++; runs < 3 {
				return errors.New("not this time")
			}
			close(swept)
			<-ctx.Done()
			close(ended)
			return ctx.Err()
		}
		there := func(context.Context) error { elsewhere <- struct{}{}; return nil }
		m := manager(t, stage("here", 10, here), stage("there", 20, there))
		n := w.start(bus.Options{Manager: m, Hosts: only("here")})
		<-swept
		require.NoError(t, stop(n))
		select {
		case <-ended:
		default:
			t.Error("the node stopped before the clean-up had ended")
		}
		require.Empty(t, elsewhere)
	})
}
