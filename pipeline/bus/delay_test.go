package bus_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// again asks for so many attempts, with a delay between each two.
func again(kind messages.Kind, attempts int, delay time.Duration) pipeline.Stage {
	return pipeline.Stage{Name: "again", Kind: kind, Order: 20, Keep: true, Reads: []string{pipeline.ReadKept},
		Before: pass,
		After: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			if c.Attempt() < attempts {
				return pipeline.Again(delay), nil
			}
			return pipeline.Continue(), nil
		}}
}

// counted replies with the number of its run.
func counted(runs *atomic.Int32) pipeline.TargetFunc {
	return func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		c.SetReply(fmt.Appendf(nil, `{"run":%d}`, runs.Add(1)))
		return nil
	}
}

// queued is how many calls are in the work queue.
func (w *world) queued() uint64 {
	w.t.Helper()
	st, err := w.js.Stream(w.t.Context(), jet.CallsStream)
	require.NoError(w.t, err)
	info, err := st.Info(w.t.Context())
	require.NoError(w.t, err)
	return info.State.Msgs
}

// A stored call that is to be tried again much later is held by no process meanwhile, nobody is asked about it, and
// its caller waits on; each attempt is another run of the target.
func TestALongDelayParksAStoredCall(t *testing.T) {
	t.Parallel()
	for _, kind := range []messages.Kind{messages.Model, messages.Tool} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, cfg bus.Config) {
				cfg.LongDelay = 50 * time.Millisecond
				w := newWorld(t, cfg)
				var runs atomic.Int32
				n := w.node(bus.Options{Entry: true, Manager: manager(t, through("outer", 10), again(kind, 3, 2*time.Second)),
					Targets: roles(counted(&runs))})
				r := chatRequest()
				r.Kind, r.Keep = kind, true
				if kind == messages.Tool {
					r.Tool = "t"
				}
				p := accept(t, n, r)
				require.Eventually(t, func() bool { return runs.Load() > 0 && w.queued() == 0 }, 30*time.Second, time.Millisecond,
					"it leaves the queue")
				held, err := n.HeldCalls(t.Context(), "")
				require.NoError(t, err)
				require.Empty(t, held)
				err = n.Answer(t.Context(), "default", p.ID(), []byte(`"yes"`))
				require.Equal(t, messages.NotFound, messages.AsFault(err, "").Code)
				c, _, err := n.Peek(t.Context(), "default", p.ID())
				require.NoError(t, err)
				require.Nil(t, c, "it is under way")
				c = wait(t, p)
				require.Nil(t, c.Fault, "%v", c.Fault)
				require.JSONEq(t, `{"run":3}`, string(c.Reply()))
				require.Equal(t, 3, c.Slip.Tries)
			})
		})
	}
}

// Whoever is there when the time comes goes on with it.
func TestAParkedDelayOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{LongDelay: 50 * time.Millisecond})
	var runs atomic.Int32
	m := manager(t, again(messages.Model, 2, 3*time.Second))
	o := bus.Options{Entry: true, Manager: m, Targets: roles(counted(&runs))}
	first := w.start(o)
	r := chatRequest()
	r.Submit = true
	p := accept(t, first, r)
	require.Eventually(t, func() bool { return runs.Load() > 0 && w.queued() == 0 }, 30*time.Second, 5*time.Millisecond)
	require.NoError(t, stop(first))
	c, err := w.node(o).Result(t.Context(), "default", p.ID())
	require.NoError(t, err)
	require.Nil(t, c.Fault, "%v", c.Fault)
	require.JSONEq(t, `{"run":2}`, string(c.Reply()))
}

// Its time runs on, and it can be cancelled.
func TestAParkedDelayEndsAtTheDeadlineAndByCancel(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]messages.Code{"deadline": messages.DeadlineExceeded, "cancel": messages.Cancelled} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, bus.Config{LongDelay: 50 * time.Millisecond})
			var runs atomic.Int32
			m := manager(t, again(messages.Model, 2, time.Hour))
			n := w.node(bus.Options{Entry: true, Manager: m, Targets: roles(counted(&runs))})
			r := chatRequest()
			r.Submit, r.Deadline = true, time.Now().Add(4*time.Second)
			if name == "cancel" {
				r.Deadline = time.Now().Add(time.Minute)
			}
			p := accept(t, n, r)
			require.Eventually(t, func() bool { return runs.Load() > 0 && w.queued() == 0 }, 30*time.Second, 5*time.Millisecond)
			if name == "cancel" {
				n.Cancel(p.ID())
			}
			c, err := n.Result(t.Context(), "default", p.ID())
			require.NoError(t, err)
			require.Equal(t, code, c.Fault.Code, c.Fault.Message)
			require.EqualValues(t, 1, runs.Load())
		})
	}
}

// gaps are the times between the first and the second attempt of stored calls, the shortest and the longest.
func gaps(t *testing.T, w *world, delay time.Duration) (least, most time.Duration) {
	t.Helper()
	ran := make(chan time.Time, 2)
	n := w.start(bus.Options{Entry: true, Manager: manager(t, again(messages.Model, 2, delay)),
		Targets: roles(pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, e pipeline.Emit) error {
			ran <- time.Now()
			return echo(ctx, c, e)
		}))})
	least = time.Hour
	for range 6 {
		r := chatRequest()
		r.Keep = true
		require.Nil(t, wait(t, accept(t, n, r)).Fault)
		first := <-ran
		gap := (<-ran).Sub(first)
		least, most = min(least, gap), max(most, gap)
	}
	require.NoError(t, stop(n))
	return least, most
}

// A stored call waits for its next attempt as long as it was told to, and not until somebody looks: what comes on top
// is what an attempt takes without a delay (TL-13).
func TestAShortDelayTakesAsLongAsItSays(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		w := newWorld(t, cfg)
		const delay = 100 * time.Millisecond
		_, none := gaps(t, w, 0)
		least, _ := gaps(t, w, delay)
		require.GreaterOrEqual(t, least, delay)
		require.Less(t, least, delay+50*time.Millisecond+2*none, "without a delay: %s", none)
	})
}
