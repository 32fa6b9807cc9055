package bus_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

// witness writes down what an observer is told, by call.
type witness struct {
	mu    sync.Mutex
	lines map[string][]string
	left  chan string
}

func newWitness() *witness {
	return &witness{lines: map[string][]string{}, left: make(chan string, 100)}
}

func (w *witness) say(c *messages.Call, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines[c.ID] = append(w.lines[c.ID], fmt.Sprintf(format, args...))
}

func (w *witness) Owns(c *messages.Call, o pipeline.Ownership) pipeline.Watch {
	w.say(c, "owned durable=%t again=%t", o.Durable, o.Again)
	c.Trace.State = "seen=1"
	return w
}

func (w *witness) Ran(c *messages.Call, r pipeline.PhaseRun) {
	if r.Began.IsZero() || r.Elapsed < r.Took {
		w.say(c, "times of %s: began %s, took %s of %s", r.Stage, r.Began, r.Took, r.Elapsed)
	}
	verdict := r.Verdict.String()
	if r.Skipped {
		verdict = "skipped"
	}
	w.say(c, "%s %s %s", r.Stage, r.Phase, verdict)
}

func (w *witness) Target(c *messages.Call, r pipeline.TargetRun) {
	took := time.Duration(r.Facts.Micros) * time.Microsecond
	if r.Began.IsZero() || took > r.Elapsed+time.Millisecond {
		w.say(c, "times of the target: began %s, took %s of %s", r.Began, took, r.Elapsed)
	}
	w.say(c, "target %s fault=%t err=%t first=%t", r.Class, c.Fault != nil, r.Err != nil, r.First > 0)
}

func (w *witness) Left(c *messages.Call, how pipeline.Departure) {
	w.say(c, "%s fault=%t", how, c.Fault != nil)
	w.left <- c.ID
}

// story is what was told of a call that has left n times.
func (w *witness) story(t *testing.T, id string, n int) []string {
	t.Helper()
	for range n {
		select {
		case <-w.left:
		case <-time.After(time.Minute):
			require.Fail(t, "the call has not left")
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.lines[id])
}

// An observer is told the same of a call however its phases run, and whether it is stored or not.
func TestAnObserverIsToldTheSameHoweverACallRuns(t *testing.T) {
	t.Parallel()
	again := through("again", 20)
	again.Keep = true
	again.After = func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
		if c.Attempt() == 1 {
			return pipeline.Again(0), nil
		}
		return pipeline.Continue(), nil
	}
	skipped := through("skipped", 30)
	skipped.SkipAbsent = true
	stages := []pipeline.Stage{through("outer", 10), again, skipped}
	streaming := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, emit pipeline.Emit) error {
		if c.Trace.State != "seen=1" {
			return fmt.Errorf("the trace is %q, not as the observer set it", c.Trace.State)
		}
		c.SetReply([]byte(`{}`))
		return emit([]byte(`{"choices":[{"index":0,"delta":{"content":"x"}}]}`))
	})
	for name, fused := range map[string]bool{"fused": true, "spread": false} {
		for stored, key := range map[string]string{"bound": "", "stored": "k1"} {
			t.Run(name+" "+stored, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, bus.Config{Fusion: fused})
				seen := newWitness()
				o := bus.Options{Entry: true, Manager: manager(t, stages...), Targets: roles(streaming), Observer: seen,
					Hosts: func(s pipeline.Stage) bool { return s.Name != "skipped" }}
				n := w.node(o)
				r := chatRequest()
				r.Stream, r.IdempotencyKey = true, key
				end := wait(t, accept(t, n, r))
				require.Nil(t, end.Fault)
				require.Empty(t, end.Notes[messages.NoteTargetRun], "the note of the run is the bus's own")
				require.Equal(t, []string{
					fmt.Sprintf("owned durable=%t again=false", key != ""),
					"outer before Continue",
					"again before Continue",
					"skipped before skipped",
					"target default fault=false err=false first=true",
					"again after Again",
					"skipped before skipped",
					"target default fault=false err=false first=true",
					"again after Continue",
					"outer after Continue",
					"ended fault=false",
				}, seen.story(t, end.ID, 1))
			})
		}
	}
}

// A call that its caller leaves is told of to its end, with the wait for its target cut short.
func TestAnObserverIsToldOfACallThatItsCallerLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	seen, came := newWitness(), make(chan struct{})
	n := w.node(bus.Options{Entry: true, Manager: manager(t, through("outer", 10)), Observer: seen,
		Targets: roles(pipeline.TargetFunc(func(ctx context.Context, _ *messages.Call, _ pipeline.Emit) error {
			close(came)
			<-ctx.Done()
			return ctx.Err()
		}))})
	p := accept(t, n, chatRequest())
	<-came
	p.Leave()
	require.Equal(
		t,
		[]string{
			"owned durable=false again=false",
			"outer before Continue",
			"target default fault=false err=true first=false",
			"outer after Continue",
			"ended fault=true",
		},
		seen.story(t, p.ID(), 1),
	)
}

// A call that is parked leaves, and is owned again after its answer.
func TestAnObserverIsToldOfBothHalvesOfAHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	seen := newWitness()
	ask := through("ask", 10)
	ask.Before = func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
		if c.Notes[messages.NoteAnswer] == nil {
			return pipeline.Hold([]byte(`"may I?"`)), nil
		}
		return pipeline.Continue(), nil
	}
	n := w.node(
		bus.Options{Entry: true, Manager: manager(t, ask), Observer: seen, Targets: roles(pipeline.TargetFunc(echo))},
	)
	r := chatRequest()
	r.IdempotencyKey = "k1"
	p := accept(t, n, r)
	_, err := p.Wait(t.Context(), nil)
	require.ErrorIs(t, err, pipeline.ErrHeld)
	seen.story(t, p.ID(), 1)
	require.NoError(t, n.Answer(t.Context(), "default", p.ID(), []byte(`"yes"`)))
	require.Equal(t, []string{"owned durable=true again=false", "ask before Hold", "parked fault=false",
		"owned durable=true again=true", "ask before Continue", "target default fault=false err=false first=false",
		"ask after Continue", "ended fault=false"}, seen.story(t, p.ID(), 1))
}
