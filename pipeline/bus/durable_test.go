package bus

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

func TestASubmittedCallEndsAndItsResultStays(t *testing.T) {
	t.Parallel()
	s := newStock(t, Config{})
	p := s.process(true, echo)
	c := s.call("", `{"n":1}`)
	got, err := p.durables.accept(t.Context(), c, pipeline.Request{Submit: true})
	require.NoError(t, err)
	end, err := p.durables.result(t.Context(), "default", got.ID())
	require.NoError(t, err)
	require.Equal(t, `{"echo":{"n":1}}`, string(end.Reply()))
	require.Equal(t, `{"echo":{"n":1}}`, string(s.wait(got).Reply()), "also for whoever waits after all")
	s.settled()
	_, _, err = p.durables.peek(t.Context(), "other", got.ID())
	require.Equal(t, messages.NotFound, messages.AsFault(err, "").Code, "another tenant's call is not found (security)")
}

func TestWhoWaitsHearsTheEndWhereverTheCallRan(t *testing.T) {
	t.Parallel()
	s := newStock(t, Config{})
	door := s.process(false, nil)
	s.process(true, echo)
	own := s.process(true, echo)
	var all sync.WaitGroup
	took := make([]time.Duration, 40)
	for i := range took {
		from := door
		if i%2 == 0 {
			from = own
		}
		all.Go(func() {
			begun := time.Now()
			p, err := from.durables.accept(t.Context(), s.call("", fmt.Sprintf(`{"n":%d}`, i)), pipeline.Request{})
			if !assertNoError(t, err) {
				return
			}
			c := s.wait(p)
			if string(c.Reply()) != fmt.Sprintf(`{"echo":{"n":%d}}`, i) {
				t.Errorf("call %d: %s", i, c.Reply())
			}
			took[i] = time.Since(begun)
		})
	}
	all.Wait()
	for from := range 2 { // a busy machine takes its time, so the fastest of each count
		fastest := time.Hour
		for i := from; i < len(took); i += 2 {
			fastest = min(fastest, took[i])
		}
		require.Less(t, fastest, 3*time.Second, "the end came from the record, not from the owner")
	}
	s.settled()
}

func assertNoError(t *testing.T, err error) bool {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
	return err == nil
}

func TestOneKeyIsOneCall(t *testing.T) {
	t.Parallel()
	s := newStock(t, Config{})
	var runs atomic.Int32
	release := make(chan struct{})
	slow := func(p *ownerProcess, o *owned, told func(*messages.Call)) outcome {
		runs.Add(1)
		<-release
		return echo(p, o, told)
	}
	a, b := s.process(true, slow), s.process(true, slow)
	var all sync.WaitGroup
	ids := make([]string, 12)
	for i := range ids {
		from := []*ownerProcess{a, b}[i%2]
		all.Go(func() {
			p, err := from.durables.accept(t.Context(), s.call("k", `{}`), pipeline.Request{})
			if assertNoError(t, err) {
				ids[i] = p.ID()
				s.wait(p)
			}
		})
	}
	require.Eventually(t, func() bool { return runs.Load() == 1 }, 30*time.Second, 5*time.Millisecond)
	_, err := a.durables.accept(t.Context(), s.call("k", `{"other":1}`), pipeline.Request{})
	require.Equal(t, messages.IdempotencyMismatch, messages.AsFault(err, "").Code)
	close(release)
	all.Wait()
	for _, id := range ids {
		require.Equal(t, ids[0], id)
	}
	require.EqualValues(t, 1, runs.Load())
	p, err := b.durables.accept(t.Context(), s.call("k", `{}`), pipeline.Request{})
	require.NoError(t, err)
	require.Equal(t, `{"echo":{}}`, string(s.wait(p).Reply()), "the result is given again")
	require.EqualValues(t, 1, runs.Load())
}

func TestARetryableEndFreesItsKeyAndAnUnknownOneKeepsIt(t *testing.T) {
	t.Parallel()
	s := newStock(t, Config{})
	var code atomic.Value
	code.Store(messages.Overloaded)
	p := s.process(true, func(_ *ownerProcess, o *owned, _ func(*messages.Call)) outcome {
		o.call.Fail(messages.NewFault(code.Load().(messages.Code), "no"))
		return ended
	})
	once := func(key string) string {
		w, err := p.durables.accept(t.Context(), s.call(key, `{}`), pipeline.Request{})
		require.NoError(t, err)
		s.wait(w)
		return w.ID()
	}
	first := once("a")
	require.Eventually(t, func() bool { return once("a") != first }, 30*time.Second, 20*time.Millisecond)
	code.Store(messages.OutcomeUnknown)
	first = once("b")
	require.Equal(t, first, once("b"))
}

func TestADeadOwnersCallsGoOnAtAnother(t *testing.T) {
	t.Parallel()
	s := newStock(t, Config{})
	const n = 10
	var began atomic.Int32
	never := func(p *ownerProcess, o *owned, _ func(*messages.Call)) outcome {
		began.Add(1)
		<-p.dead.Done()
		return yielded
	}
	door, dies := s.process(false, nil), s.process(true, never)
	var waits []pipeline.Pending
	for i := range n {
		p, err := door.durables.accept(t.Context(), s.call("", fmt.Sprint(i)), pipeline.Request{})
		require.NoError(t, err)
		waits = append(waits, p)
	}
	require.Eventually(t, func() bool { return began.Load() == n }, 30*time.Second, 5*time.Millisecond)
	var ran atomic.Int32
	s.process(true, func(p *ownerProcess, o *owned, told func(*messages.Call)) outcome {
		ran.Add(1)
		if o.fresh {
			t.Error("a call that another owner had is not fresh")
		}
		return echo(p, o, told)
	})
	dies.kill()
	for i, p := range waits {
		require.Equal(t, fmt.Sprintf(`{"echo":%d}`, i), string(s.wait(p).Reply()))
	}
	require.EqualValues(t, n, ran.Load())
	s.settled()
}

// A living owner keeps its call over many ack waits: the marks hold it, and nobody else gets it.
func TestALivingOwnerKeepsItsCall(t *testing.T) {
	t.Parallel()
	s := newStock(t, Config{AckWait: 2 * time.Second})
	var ran atomic.Int32
	run := func(p *ownerProcess, o *owned, told func(*messages.Call)) outcome {
		ran.Add(1)
		_ = wait(o.ctx, 7*time.Second)
		return echo(p, o, told)
	}
	a := s.process(true, run)
	s.process(true, run)
	p, err := a.durables.accept(t.Context(), s.call("", `{}`), pipeline.Request{})
	require.NoError(t, err)
	require.Equal(t, `{"echo":{}}`, string(s.wait(p).Reply()))
	require.EqualValues(t, 1, ran.Load())
	s.settled()
}

func TestACallThatRunsIsKnownAndOneThatNeverWasIsNot(t *testing.T) {
	t.Parallel()
	s := newStock(t, Config{})
	door := s.process(false, nil)
	p, err := door.durables.accept(t.Context(), s.call("", `{}`), pipeline.Request{Submit: true})
	require.NoError(t, err)
	c, _, err := door.durables.peek(t.Context(), "default", p.ID())
	require.NoError(t, err)
	require.Nil(t, c, "it runs (EN-4)")
	_, _, err = door.durables.peek(t.Context(), "default", messages.NewID())
	require.Equal(t, messages.NotFound, messages.AsFault(err, "").Code)
	s.srv.Shutdown()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, _, err = door.durables.peek(ctx, "default", p.ID())
	require.Equal(t, messages.StoreUnavailable, messages.AsFault(err, "").Code, "the store cannot say (EN-4)")
}

// Nobody runs the call; whoever waits for it or asks for it after its time ends it.
func TestADeadlineEndsACallThatNobodyRuns(t *testing.T) {
	t.Parallel()
	s := newStock(t, Config{})
	door := s.process(false, nil)
	short := func() *messages.Call {
		c := s.call("", `{}`)
		c.Deadline = time.Now().Add(time.Second).UTC()
		return c
	}
	p, err := door.durables.accept(t.Context(), short(), pipeline.Request{})
	require.NoError(t, err)
	submitted, err := door.durables.accept(t.Context(), short(), pipeline.Request{Submit: true})
	require.NoError(t, err)
	require.Equal(t, messages.DeadlineExceeded, s.wait(p).Fault.Code, "(EN-6)")
	end, err := door.durables.result(t.Context(), "default", submitted.ID())
	require.NoError(t, err)
	require.Equal(t, messages.DeadlineExceeded, end.Fault.Code, "(EN-6)")
	s.process(true, echo)
	s.settled()
	end, err = door.durables.result(t.Context(), "default", submitted.ID())
	require.NoError(t, err)
	require.Equal(t, messages.DeadlineExceeded, end.Fault.Code, "the first end counts")
}
