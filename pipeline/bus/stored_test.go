package bus_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
	"github.com/shallot-nats/shallot/pipeline/systemtest/pace"
)

// stored makes the suite's calls as stored ones: the end is recorded although the caller waits.
type stored struct{ n *bus.Node }

func (s stored) Call(ctx context.Context, call *messages.Call) (*messages.Call, error) {
	return s.CallStream(ctx, call, nil)
}

func (s stored) CallStream(ctx context.Context, call *messages.Call, onChunk func([]byte)) (*messages.Call, error) {
	body := call.Request()
	if text, ok := call.RequestText(); ok {
		body = []byte(text)
	}
	p, err := s.n.Accept(ctx, pipeline.Request{Kind: call.Kind, Tool: call.Tool, Body: body, Tenant: call.Tenant,
		Role:    call.Role,
		Session: call.Session, Run: call.Run, User: call.User, Agent: call.Agent, RequestID: call.RequestID, Skip: call.Skip,
		Parent: call.Parent, Cache: call.Cache, Explain: call.Explain, Trace: call.Trace, Notes: call.Notes,
		Deadline: call.Deadline, Stream: onChunk != nil, Keep: true})
	if err != nil {
		return nil, err
	}
	end, err := p.Wait(ctx, func(d pipeline.Delta) { onChunk(d.Chunk) })
	if err != nil {
		p.Leave()
	}
	return end, err
}

// The suite of the stages in process holds for stored calls, on one node and with a node for each part.
func TestRunnerWithStoredCalls(t *testing.T) {
	t.Parallel()
	for name, fused := range map[string]bool{"spread": false, "fused": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pipelinetest.Runner(t, func(t *testing.T, f pipelinetest.Fixture) pipeline.Caller {
				w := newWorld(t, bus.Config{Fusion: fused})
				return stored{w.node(bus.Options{Entry: true, Manager: manager(t, f.Stages...), Targets: roles(f.Target)})}
			})
		})
	}
}

func TestRunnerWithStoredCallsAndANodeForEachPart(t *testing.T) {
	t.Parallel()
	pipelinetest.Runner(t, func(t *testing.T, f pipelinetest.Fixture) pipeline.Caller {
		w := newWorld(t, bus.Config{})
		for _, s := range f.Stages {
			w.node(bus.Options{Manager: manager(t, f.Stages...), Hosts: only(s.Name)})
		}
		w.node(bus.Options{Manager: manager(t, f.Stages...), Hosts: nobody, Targets: roles(f.Target)})
		w.node(bus.Options{Manager: manager(t, f.Stages...), Hosts: nobody, Entry: true})
		return stored{w.node(bus.Options{Manager: manager(t, f.Stages...), Hosts: nobody, Entry: true})}
	})
}

// gate holds a call until somebody says yes.
func gate() pipeline.Stage {
	return pipeline.Stage{Name: "gate", Kind: messages.Tool, Order: 10,
		Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			var answer string
			if !c.Noted(messages.NoteAnswer, &answer) {
				return pipeline.Hold([]byte(`"may I?"`)), nil
			}
			if answer != "yes" {
				return pipeline.Stop(), nil
			}
			return pipeline.Continue(), nil
		}}
}

// A held call is parked and goes on with its answer, whether it was bound to its caller or stored before.
func TestAHeldCallGoesOnWithItsAnswer(t *testing.T) {
	t.Parallel()
	for name, submit := range map[string]bool{"bound": false, "stored": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, bus.Config{})
			n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, gate())})
			p := accept(t, n, pipeline.Request{Kind: messages.Tool, Tool: "x", Body: []byte(`{}`), Submit: submit})
			if !submit {
				_, err := p.Wait(t.Context(), nil)
				require.ErrorIs(t, err, pipeline.ErrHeld)
			}
			require.Eventually(t, func() bool {
				held, err := n.HeldCalls(t.Context(), "default")
				return err == nil && len(held) == 1 && held[0].Call == p.ID() && string(held[0].Question) == `"may I?"`
			}, 30*time.Second, 10*time.Millisecond)
			_, err := n.Result(t.Context(), "default", p.ID())
			require.ErrorIs(t, err, pipeline.ErrHeld)
			word, err := n.DecideInOneWord(t.Context(), "", p.ID(), json.RawMessage(`"yes"`), "ann")
			require.NoError(t, err)
			require.Equal(t, "yes", word)
			c, err := n.Result(t.Context(), "default", p.ID())
			require.NoError(t, err)
			require.Nil(t, c.Fault)
			require.JSONEq(t, `{"echo":{}}`, string(c.Reply()))
			_, err = n.Decide(t.Context(), "default", p.ID(), json.RawMessage(`"no"`), "bob")
			require.Equal(t, messages.Conflict, messages.AsFault(err, "").Code)
			require.ErrorContains(t, err, "by ann")
		})
	}
}

// Nobody decides: the question ends in its time, and the call with it.
func TestAHoldThatNobodyAnswersEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	stage := pipeline.Stage{Name: "gate", Kind: messages.Tool, Order: 10,
		Before: func(context.Context, *messages.Call) (pipeline.Verdict, error) {
			return pipeline.HoldFor([]byte(`"?"`), 300*time.Millisecond), nil
		}}
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, stage)})
	p := accept(t, n, pipeline.Request{Kind: messages.Tool, Tool: "x", Body: []byte(`{}`), Submit: true})
	require.Eventually(t, func() bool {
		c, _, err := n.Peek(t.Context(), "default", p.ID())
		return err == nil && c != nil && c.Fault.Code == messages.Blocked
	}, 30*time.Second, 20*time.Millisecond)
}

// The first of many decisions counts, and the call runs once.
func TestOneOfManyDecisionsCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	ran := make(chan struct{}, 16)
	target := pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
		ran <- struct{}{}
		return echo(ctx, c, emit)
	})
	var nodes []*bus.Node
	for range 3 {
		nodes = append(nodes, w.node(bus.Options{Entry: true, Targets: roles(target), Manager: manager(t, gate())}))
	}
	p := accept(t, nodes[0], pipeline.Request{Kind: messages.Tool, Tool: "x", Body: []byte(`{}`)})
	_, err := p.Wait(t.Context(), nil)
	require.ErrorIs(t, err, pipeline.ErrHeld)
	errs := make(chan error, 9)
	for i := range cap(errs) {
		go func() { errs <- nodes[i%3].Answer(t.Context(), "default", p.ID(), json.RawMessage(`"yes"`)) }()
	}
	won := 0
	for range cap(errs) {
		if err := <-errs; err == nil {
			won++
		} else {
			require.Equal(t, messages.Conflict, messages.AsFault(err, "").Code)
		}
	}
	require.Equal(t, 1, won)
	c, err := nodes[1].Result(t.Context(), "default", p.ID())
	require.NoError(t, err)
	require.Nil(t, c.Fault)
	require.Len(t, ran, 1)
}

// A process that stops hands its stored calls to another one at once, and the caller notices nothing.
func TestAStoppingProcessHandsItsCallsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{Drain: 200 * time.Millisecond, AckWait: time.Hour})
	began := make(chan string, 8)
	release := make(chan struct{})
	slow := pipeline.Stage{Name: "slow", Kind: messages.Model, Order: 10,
		Before: func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
			began <- c.ID
			select {
			case <-release:
			case <-ctx.Done():
			}
			return pipeline.Continue(), nil
		}}
	o := bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, slow)}
	leaves := w.start(o)
	r := chatRequest()
	r.Submit = true
	p := accept(t, leaves, r)
	require.Equal(t, p.ID(), <-began)
	stays := w.node(o)
	stopped := make(chan error, 1)
	go func() { stopped <- stop(leaves) }()
	require.Equal(t, p.ID(), <-began)
	close(release)
	c, err := stays.Result(t.Context(), "default", p.ID())
	require.NoError(t, err)
	require.Nil(t, c.Fault)
	require.NoError(t, <-stopped)
}

// A decided call goes on at once: nobody else can have it, so nobody is asked. A process that is busy for a moment may
// ask all the same, so one of many is enough.
func TestADecidedCallGoesOnAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, gate())})
	w.node(bus.Options{Entry: true, Manager: manager(t, gate())})
	for start := time.Now(); time.Since(start) < 3*time.Minute; {
		p := accept(t, n, pipeline.Request{Kind: messages.Tool, Tool: "x", Body: []byte(`{}`)})
		_, err := p.Wait(t.Context(), nil)
		require.ErrorIs(t, err, pipeline.ErrHeld)
		began := time.Now()
		_, err = n.Decide(t.Context(), "", p.ID(), json.RawMessage(`"yes"`), "ann")
		require.NoError(t, err)
		c, err := n.Result(t.Context(), "default", p.ID())
		require.NoError(t, err)
		require.Nil(t, c.Fault)
		if time.Since(began) < 800*time.Millisecond { // whoever asks waits for a second
			return
		}
	}
	require.Fail(t, "none of the calls went on at once")
}

// A held call is found by its id alone also while its record and others are written.
func TestAHeldCallIsFoundWhileRecordsAreWritten(t *testing.T) {
	t.Parallel()
	n := newWorld(t, bus.Config{}).node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)),
		Manager: manager(t, gate())})
	p := accept(t, n, pipeline.Request{Kind: messages.Tool, Tool: "x", Body: []byte(`{}`)})
	_, err := p.Wait(t.Context(), nil)
	require.ErrorIs(t, err, pipeline.ErrHeld)
	records, err := jet.OpenBucket(t.Context(), n.JetStream(), jet.ApprovalsBucket)
	require.NoError(t, err)
	key := messages.Key("default", p.ID())
	record, err := records.Get(t.Context(), key)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for _, one := range []string{key, messages.Key("default", "other")} {
		writers.Go(func() {
			for ctx.Err() == nil {
				rev, _ := records.Put(ctx, one, record.Value, 0, pipeline.Always())
				if one != key {
					_ = records.Clear(ctx, one, rev)
				}
			}
		})
	}
	defer writers.Wait()
	defer cancel()
	for range pace.Rounds(1000) {
		found, err := n.HeldCall(t.Context(), "", p.ID())
		require.NoError(t, err)
		require.Equal(t, p.ID(), found.Call)
	}
}

// Whoever waits in a process that stops hears of a bound call how it ended, and of a stored one that it goes on. Work
// that must not run twice and has begun is not said to be free for another try, not even where it does not listen.
func TestBoundCallsEndWithTheirProcess(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		once bool
		code messages.Code
	}{"may run again": {false, messages.Stopping}, "once": {true, messages.OutcomeUnknown}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, bus.Config{})
			began, release := make(chan string, 2), make(chan struct{})
			deaf := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
				began <- c.ID
				<-release
				return nil
			})
			n := w.node(bus.Options{Entry: true, Targets: roles(deaf), Manager: manager(t),
				Once: func(*messages.Call) bool { return row.once }})
			defer close(release)
			stored := chatRequest()
			stored.Submit = true
			p := accept(t, n, stored)
			<-began
			require.Nil(t, p.Stop(), "it goes on elsewhere")
			p = accept(t, n, chatRequest())
			<-began
			c := p.Stop()
			require.NotNil(t, c)
			require.NotNil(t, c.Fault)
			require.Equal(t, row.code, c.Fault.Code, c.Fault.Message)
		})
	}
}

// Whoever goes on with a decided call at once asks nobody whether they have its work: nobody can have it.
func TestADecidedCallAsksNobodyForItsWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	hold := gate()
	hold.Kind = messages.Model
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, hold)})
	asked, err := w.conn().SubscribeSync("shallot.v1.class.*.*.who")
	require.NoError(t, err)
	for range 20 { // a machine that stands still for a moment is reason enough to ask
		r := chatRequest()
		r.Submit = true
		p := accept(t, n, r)
		require.Eventually(t, func() bool {
			_, err := n.DecideInOneWord(t.Context(), "", p.ID(), json.RawMessage(`"yes"`), "ann")
			return err == nil
		}, 30*time.Second, 10*time.Millisecond)
		c, err := n.Result(t.Context(), "default", p.ID())
		require.NoError(t, err)
		require.Nil(t, c.Fault)
		if questions, _, err := asked.Pending(); err == nil && questions == 0 {
			return
		}
		require.NoError(t, asked.Unsubscribe())
		asked, err = w.conn().SubscribeSync("shallot.v1.class.*.*.who")
		require.NoError(t, err)
	}
	require.Fail(t, "each call was asked for")
}
