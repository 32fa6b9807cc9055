package bus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

// until waits for the end of its context.
func until(ctx context.Context, _ *messages.Call, _ pipeline.Emit) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// runsOut makes a call with ever more time until its time is over where the test wants it: a slow machine takes longer
// to get there.
func runsOut(t *testing.T, n *bus.Node, r pipeline.Request, there func(c *messages.Call) bool) *messages.Call {
	t.Helper()
	for limit := 300 * time.Millisecond; ; limit *= 2 {
		r.Deadline = time.Now().Add(limit)
		if c := wait(t, accept(t, n, r)); there(c) {
			return c
		}
	}
}

// known reports whether it was known by the deadline for whom the call waited.
func known(c *messages.Call) bool { return c.Fault.Code != messages.DeadlineExceeded }

// begun are the calls whose target has begun.
type begun struct{ ids sync.Map }

func (b *begun) has(c *messages.Call) bool { _, is := b.ids.Load(c.ID); return is }

// roles are targets that work as do says.
func (b *begun) roles(do pipeline.TargetFunc) []bus.TargetRole {
	return roles(pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
		b.ids.Store(c.ID, true)
		return do(ctx, c, emit)
	}))
}

// both runs a test with calls that are fused and with calls that are spread.
func both(t *testing.T, run func(t *testing.T, cfg bus.Config)) {
	t.Helper()
	for name, fused := range map[string]bool{"spread": false, "fused": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, bus.Config{Fusion: fused})
		})
	}
}

// At its deadline the caller is answered at once; the stages that must see every call see it after that (EN-2).
func TestTheDeadlineEndsTheWaitNotTheMandatoryStages(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		w := newWorld(t, cfg)
		seen, gate := make(chan messages.Code, 16), make(chan struct{})
		audit := pipeline.Stage{Name: "audit", Kind: messages.Model, Order: 1, Tier: pipeline.Mandatory, Before: pass,
			After: func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
				<-gate
				seen <- c.Fault.Code
				return pipeline.Continue(), ctx.Err()
			}}
		var optional atomic.Int32
		other := pipeline.Stage{Name: "other", Kind: messages.Model, Order: 20, Before: pass,
			After: func(context.Context, *messages.Call) (pipeline.Verdict, error) {
				optional.Add(1)
				return pipeline.Continue(), nil
			}}
		var there begun
		n := w.node(bus.Options{Entry: true, Targets: there.roles(until), Manager: manager(t, audit, other)})
		c := runsOut(t, n, chatRequest(), there.has)
		require.NotNil(t, c.Fault)
		require.Equal(t, messages.DeadlineExceeded, c.Fault.Code, c.Fault.Message)
		close(gate)
		require.Equal(t, messages.DeadlineExceeded, <-seen)
		require.Zero(t, optional.Load())
	})
}

// What a stage has taken it gives back although the call's time is over, wherever the stage runs; and the call was
// answered before.
func TestAStageThatGivesSomethingBackRunsAfterTheDeadline(t *testing.T) { // (EN-2)
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		for name, elsewhere := range map[string]bool{"in the owner's process": false, "elsewhere": true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, cfg)
				var there begun
				gate, back := make(chan struct{}), make(chan error, 16)
				lends := pipeline.Stage{Name: "lends", Kind: messages.Model, Order: 30, Before: pass, Finally: true,
					After: func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
						<-gate
						back <- ctx.Err()
						return pipeline.Continue(), nil
					}}
				o := bus.Options{Manager: manager(t, lends), Hosts: nobody}
				if elsewhere {
					w.node(bus.Options{Manager: o.Manager, Hosts: only("lends")})
				} else {
					o.Hosts = nil
				}
				o.Entry, o.Targets = true, there.roles(until)
				c := runsOut(t, w.node(o), chatRequest(), there.has)
				require.Equal(t, messages.DeadlineExceeded, c.Fault.Code, c.Fault.Message)
				close(gate)
				require.NoError(t, <-back, "it has time of its own")
			})
		}
	})
}

// A worker's clock may be ahead of the owner's: what it says of the time ends the call all the same, and no phase
// begins between the two.
func TestAWorkerThatEndsEarlyForTheTimeBeginsNoOtherPhase(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		w := newWorld(t, cfg)
		var optional atomic.Int32
		seen := make(chan messages.Code, 16)
		after := func(then func(c *messages.Call)) pipeline.Func {
			return func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
				then(c)
				return pipeline.Continue(), nil
			}
		}
		audit := pipeline.Stage{Name: "audit", Kind: messages.Model, Order: 1, Tier: pipeline.Mandatory, Before: pass,
			After: after(func(c *messages.Call) { seen <- c.Fault.Code })}
		other := pipeline.Stage{Name: "other", Kind: messages.Model, Order: 20, Before: pass,
			After: after(func(*messages.Call) { optional.Add(1) })}
		ahead := func(ctx context.Context, _ *messages.Call, _ pipeline.Emit) error {
			until, _ := ctx.Deadline()
			ctx, cancel := context.WithDeadline(ctx, until.Add(-50*time.Millisecond))
			defer cancel()
			<-ctx.Done()
			return messages.NewFault(messages.DeadlineExceeded, "over").From("deadline")
		}
		var there begun
		n := w.node(bus.Options{Entry: true, Targets: there.roles(ahead), Manager: manager(t, audit, other)})
		c := runsOut(t, n, chatRequest(), there.has)
		require.Equal(t, messages.DeadlineExceeded, c.Fault.Code, c.Fault.Message)
		require.Equal(t, messages.DeadlineExceeded, <-seen)
		require.Zero(t, optional.Load())
	})
}

// A phase that does not listen to its context holds up nobody who waits.
func TestAPhaseThatIgnoresTheDeadlineDoesNotKeepItsCaller(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		w := newWorld(t, cfg)
		gate := make(chan struct{})
		defer close(gate)
		deaf := pipeline.Stage{Name: "deaf", Kind: messages.Model, Order: 10,
			Before: func(context.Context, *messages.Call) (pipeline.Verdict, error) {
				<-gate
				return pipeline.Continue(), nil
			}}
		n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, deaf)})
		r := chatRequest()
		r.Deadline = time.Now().Add(200 * time.Millisecond)
		c := wait(t, accept(t, n, r)) // although the phase goes on
		require.Equal(t, messages.DeadlineExceeded, c.Fault.Code)
	})
}

// A caller that leaves cancels the work that runs for it, and every stage that the call has passed sees that.
func TestACallerThatLeavesCancelsTheWork(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		w := newWorld(t, cfg)
		began, cancelled, seen := make(chan struct{}), make(chan error, 1), make(chan messages.Code, 1)
		target := func(ctx context.Context, _ *messages.Call, _ pipeline.Emit) error {
			close(began)
			<-ctx.Done()
			cancelled <- context.Cause(ctx)
			return context.Cause(ctx)
		}
		s := pipeline.Stage{Name: "s", Kind: messages.Model, Order: 10, Before: pass,
			After: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
				seen <- c.Fault.Code
				return pipeline.Continue(), nil
			}}
		n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(target)), Manager: manager(t, s)})
		p := accept(t, n, chatRequest())
		<-began
		p.Leave()
		require.ErrorIs(t, <-cancelled, pipeline.ErrCancelled)
		require.Equal(t, messages.Cancelled, <-seen)
		require.Equal(t, messages.Cancelled, wait(t, p).Fault.Code)
	})
}

// Work that must not run twice and has begun ends as unknown at the deadline; what has not begun was not executed.
func TestOnceWorkAtTheDeadline(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		w := newWorld(t, cfg)
		var there begun
		deaf := func(context.Context, *messages.Call, pipeline.Emit) error {
			<-t.Context().Done()
			return nil
		}
		n := w.node(bus.Options{Entry: true, Targets: there.roles(deaf), Manager: manager(t)})
		r := pipeline.Request{Kind: messages.Tool, Tool: "t", Body: []byte(`{}`)}
		c := runsOut(t, n, r, there.has) // although the work goes on
		require.Equal(t, messages.OutcomeUnknown, c.Fault.Code, c.Fault.Message)
	})
	t.Run("nobody there", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, bus.Config{})
		n := w.node(bus.Options{Entry: true, Manager: manager(t)})
		r := pipeline.Request{Kind: messages.Tool, Tool: "t", Body: []byte(`{}`)}
		c := runsOut(t, n, r, known)
		require.Equal(t, messages.TargetAbsent, c.Fault.Code, c.Fault.Message)
	})
}

// Again runs work again also where it must not run twice: it is another run, which a stage has decided.
func TestAgainRunsOnceWorkAnew(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		w := newWorld(t, cfg)
		var runs atomic.Int32
		s := pipeline.Stage{Name: "s", Kind: messages.Tool, Order: 10, Keep: true, Before: pass,
			After: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
				if c.Attempt() < 3 {
					return pipeline.Again(10 * time.Millisecond), nil
				}
				return pipeline.Continue(), nil
			}}
		n := w.node(bus.Options{Entry: true, Manager: manager(t, s), Targets: roles(pipeline.TargetFunc(
			func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
				if runs.Add(1) == 1 {
					f := messages.NewFault(messages.ToolNetwork, "not sent")
					f.Unsent = true
					return f
				}
				return echo(t.Context(), c, nil)
			}))})
		r := pipeline.Request{Kind: messages.Tool, Tool: "t", Body: []byte(`{}`), Deadline: time.Now().Add(20 * time.Second)}
		c := wait(t, accept(t, n, r))
		require.Nil(t, c.Fault)
		require.EqualValues(t, 3, runs.Load())
		require.Equal(t, 3, c.Slip.Tries)
	})
}

// A class that nobody serves stops no calls of another one (BU-3).
func TestADeadClassStopsNoOther(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		cfg.ModelClasses = []string{"dead", "default"}
		w := newWorld(t, cfg)
		n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, through("s", 10)),
			Classify: func(c *messages.Call) (string, error) {
				if c.Session != "" {
					return "dead", nil
				}
				return "default", nil
			}})
		dead := chatRequest()
		dead.Session, dead.Deadline = "x", time.Now().Add(time.Hour)
		var stuck []pipeline.Pending
		for range 300 {
			stuck = append(stuck, accept(t, n, dead))
		}
		for range 50 { // while the others wait, and they do so for an hour
			require.Nil(t, wait(t, accept(t, n, chatRequest())).Fault)
		}
		for _, p := range stuck {
			p.Leave()
			require.Equal(t, messages.Cancelled, wait(t, p).Fault.Code)
		}
		c := runsOut(t, n, dead, known)
		require.Equal(t, messages.TargetAbsent, c.Fault.Code, c.Fault.Message)
	})
}

// A stage that nobody serves is skipped if it may be, and waited for otherwise.
func TestAStageThatNobodyServes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	skips, waits := through("skips", 20), through("waits", 30)
	skips.SkipAbsent = true
	stages := []pipeline.Stage{skips, waits}
	n := w.node(bus.Options{Entry: true, Hosts: nobody, Targets: roles(pipeline.TargetFunc(echo)),
		Manager: manager(t, stages...)})
	c := runsOut(t, n, chatRequest(), known)
	require.Equal(t, messages.StageAbsent, c.Fault.Code, c.Fault.Message)
	p := accept(t, n, chatRequest())
	w.node(bus.Options{Hosts: only("waits"), Manager: manager(t, stages...)})
	c = wait(t, p)
	require.Nil(t, c.Fault)
	require.Equal(t, []string{"skips.beforeModel(skipped)", "waits.beforeModel", "model", "waits.afterModel"}, c.Slip.Path)
}

// What a model streams reaches who follows the call, in order and whole.
func TestAStreamedReplyReachesItsFollower(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		w := newWorld(t, cfg)
		const pieces = 200
		chunk := func(i int) []byte {
			return fmt.Appendf(nil,
				`{"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"%d "}}]}`, i)
		}
		n := w.node(bus.Options{Entry: true, Manager: manager(t, through("s", 10)), Targets: roles(pipeline.TargetFunc(
			func(_ context.Context, c *messages.Call, emit pipeline.Emit) error {
				var text string
				for i := range pieces {
					if err := emit(chunk(i)); err != nil {
						return err
					}
					text += fmt.Sprintf("%d ", i)
				}
				c.SetReply(fmt.Appendf(nil, `{"id":"1","choices":[{"index":0,"message":{"role":"assistant",`+
					`"content":%q},"finish_reason":"stop"}]}`, text))
				return nil
			}))})
		r := chatRequest()
		r.Stream = true
		p := accept(t, n, r)
		f := stream.NewFollower(r.Body)
		var shown int
		c, err := p.Wait(t.Context(), func(d pipeline.Delta) { shown += len(f.Delta(d)) })
		require.NoError(t, err)
		require.Nil(t, c.Fault)
		require.Equal(t, pieces, shown)
		_, fault := f.End(c)
		require.Nil(t, fault)
	})
}

// More work than slots waits its turn, at the worker and in line, and all of it is done.
func TestMoreWorkThanSlots(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		cfg.QueueCapacity = 2
		w := newWorld(t, cfg)
		var now, most atomic.Int32
		role := bus.TargetRole{Kind: messages.Model, Class: "default", Slots: 3, Target: pipeline.TargetFunc(
			func(ctx context.Context, c *messages.Call, _ pipeline.Emit) error {
				n := now.Add(1)
				defer now.Add(-1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				select {
				case <-time.After(5 * time.Millisecond): // the model thinks
				case <-ctx.Done():
					return errors.New("too late")
				}
				return echo(ctx, c, nil)
			})}
		n := w.node(bus.Options{Entry: true, Manager: manager(t), Targets: []bus.TargetRole{role}})
		var all []pipeline.Pending
		for range 100 {
			all = append(all, accept(t, n, chatRequest()))
		}
		for _, p := range all {
			require.Nil(t, wait(t, p).Fault)
		}
		require.LessOrEqual(t, most.Load(), int32(3))
	})
}
