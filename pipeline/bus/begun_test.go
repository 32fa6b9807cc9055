package bus

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/systemtest/lossy"
)

// firstAcks loses the first answer to what is stored under each call's records of begun work.
func firstAcks(lost *atomic.Int32) func(m lossy.Message) lossy.Action {
	var seen sync.Map
	return func(m lossy.Message) lossy.Action {
		if m.ToServer && strings.HasPrefix(m.Subject, "$KV.shallot_begun.") && m.Reply != "" {
			if _, again := seen.LoadOrStore(m.Subject, true); !again {
				seen.Store(m.Reply, true)
			}
		} else if _, is := seen.LoadAndDelete(m.Subject); is && !m.ToServer {
			lost.Add(1)
			return lossy.Action{Lose: true}
		}
		return lossy.Action{}
	}
}

// The answer to each claim of a record is lost: the work begins all the same, once. Where the machine is so slow that a
// claim is too late by then, the next one is made, whose answer is lost too.
func TestALostAnswerToAClaimChargesOnce(t *testing.T) {
	t.Parallel()
	for name, keep := range map[string]bool{"bound": false, "stored": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lost atomic.Int32
			s, _ := newLossy(t, Config{}, firstAcks(&lost))
			var charged sync.Map
			n := s.newNode(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
				if _, again := charged.LoadOrStore(string(c.Request()), true); again {
					t.Errorf("%s was charged twice", c.Request())
				}
				c.SetReply(c.Request())
				return nil
			})
			var all sync.WaitGroup
			for i := range 40 {
				all.Go(func() {
					body := fmt.Sprintf(`{"n":%d}`, i)
					c := s.tool(n, pipeline.Request{Body: []byte(body), Keep: keep})
					if c.Fault != nil || string(c.Reply()) != body {
						t.Errorf("%d ended with %s %v", i, c.Reply(), c.Fault)
					}
				})
			}
			all.Wait()
			require.GreaterOrEqual(t, lost.Load(), int32(40))
		})
	}
}

// Two hundred callers with one key, at two processes, while the first two hundred acknowledgements of anything that is
// stored for the call are lost: one charge, one answer (EN-1).
func TestTwoHundredLostAcknowledgementsOfOneKeyChargeOnce(t *testing.T) {
	t.Parallel()
	const n = 200
	var lost atomic.Int32
	var replies sync.Map
	s, _ := newLossy(t, Config{}, func(m lossy.Message) lossy.Action {
		entry := strings.HasPrefix(m.Subject, "shallot.v1.call.entry.") ||
			strings.HasPrefix(m.Subject, "$KV.shallot_idempotency.")
		if m.ToServer && entry && m.Reply != "" {
			replies.Store(m.Reply, true)
		} else if _, is := replies.LoadAndDelete(m.Subject); is && !m.ToServer && lost.Load() < n {
			lost.Add(1)
			return lossy.Action{Lose: true}
		}
		return lossy.Action{}
	})
	var charges atomic.Int32
	charge := func(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
		charges.Add(1)
		return done(ctx, c, emit)
	}
	nodes := []*Node{s.newNode(charge), s.newNode(charge)}
	var all sync.WaitGroup
	var mu sync.Mutex
	ends := map[string]int{}
	for i := range n {
		all.Go(func() {
			for try := 0; ; try++ { // as a client does: the same key, anywhere
				p, err := nodes[(i+try)%2].Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "t", Body: []byte(`{}`),
					IdempotencyKey: "k", Deadline: time.Now().Add(55 * time.Second)})
				if err != nil {
					f := messages.AsFault(err, "")
					if f.Code != messages.StoreUnavailable || !strings.Contains(f.Message, "same idempotency key") || try > 40 {
						t.Errorf("try %d: %v", try, err)
						return
					}
					continue
				}
				c := s.wait(p)
				mu.Lock()
				defer mu.Unlock()
				ends[p.ID()+" "+string(c.Reply())]++
				return
			}
		})
	}
	all.Wait()
	require.Len(t, ends, 1, "%v", ends)
	require.EqualValues(t, 1, charges.Load())
	require.Positive(t, lost.Load())
	t.Logf("%d acknowledgements were lost", lost.Load())
}

// The owner of a call dies while the work runs that must not run twice. Another owner finds the outcome in the record,
// with the large body behind its claim check; if the worker is dead too, nobody says that nothing happened.
func TestTheWorkOfADeadOwnerIsFoundInItsRecord(t *testing.T) {
	t.Parallel()
	for name, workerLives := range map[string]bool{"its worker lives": true, "its worker is dead": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStock(t, Config{})
			big := `"` + strings.Repeat("y", 300<<10) + `"`
			var charges atomic.Int32
			began, goOn := make(chan struct{}), make(chan struct{})
			worker := s.part(Options{Targets: []TargetRole{{Kind: messages.Tool, Class: "default", Target: pipeline.TargetFunc(
				func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
					charges.Add(1)
					close(began)
					<-goOn
					c.SetReply([]byte(big))
					return nil
				})}}})
			dies := s.part(Options{Entry: true})
			limit := 12 * time.Second
			if workerLives {
				limit = 55 * time.Second
			}
			p, err := dies.Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "t", Body: []byte(`{}`), Submit: true,
				Deadline: time.Now().Add(limit)})
			require.NoError(t, err)
			<-began
			heir := s.part(Options{Entry: true})
			dies.nc.Close()
			if !workerLives {
				worker.nc.Close()
			}
			close(goOn)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			c, err := heir.Result(ctx, "default", p.ID())
			require.NoError(t, err)
			if workerLives {
				require.Nil(t, c.Fault)
				require.Equal(t, big, string(c.Reply()))
			} else {
				require.NotNil(t, c.Fault)
				require.Equal(t, messages.OutcomeUnknown, c.Fault.Code, c.Fault.Message)
			}
			require.EqualValues(t, 1, charges.Load())
		})
	}
}

// A worker that keeps more than it may puts outcomes into a bucket, where the next owner finds them: nothing is bought
// again.
func TestAnOutcomeThatItsWorkerCouldNotKeepIsFoundByTheNextOwner(t *testing.T) {
	t.Parallel()
	s := newStock(t, Config{KeepBytes: 1})
	var bought atomic.Int32
	began, goOn := make(chan struct{}), make(chan struct{})
	s.part(Options{Targets: []TargetRole{{Kind: messages.Model, Class: "default", Target: pipeline.TargetFunc(
		func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
			bought.Add(1)
			close(began)
			<-goOn
			c.SetReply([]byte(`"paid"`))
			return nil
		})}}})
	dies := s.part(Options{Entry: true})
	p, err := dies.Accept(t.Context(), pipeline.Request{Kind: messages.Model, Body: []byte(`{}`), Submit: true,
		Deadline: time.Now().Add(55 * time.Second)})
	require.NoError(t, err)
	<-began
	dies.nc.Close()
	close(goOn)
	spilled, err := s.js.KeyValue(t.Context(), jet.OutcomesBucket)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := spilled.Get(t.Context(), messages.Key("default", p.ID(), "1"))
		return err == nil
	}, 30*time.Second, 10*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, err := s.part(Options{Entry: true}).Result(ctx, "default", p.ID())
	require.NoError(t, err)
	require.Nil(t, c.Fault)
	require.Equal(t, `"paid"`, string(c.Reply()))
	require.EqualValues(t, 1, bought.Load())
}

// A member that is too slow for its messages loses some: offers that it never saw are made again, and what it was told
// and missed is said again.
func TestAMemberThatLosesMessagesGetsThemAgain(t *testing.T) {
	t.Parallel()
	for _, kind := range []messages.Kind{messages.Model, messages.Tool} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			var seen sync.Map
			var lost atomic.Int32
			s, _ := newLossy(t, Config{}, func(m lossy.Message) lossy.Action {
				work := strings.HasPrefix(m.Subject, "shallot.v1.target.") || strings.HasSuffix(m.Subject, ".confirm")
				if m.ToServer || !work {
					return lossy.Action{}
				}
				call := m.Subject + m.Reply // of an offer call and number, of a confirmation none: the first is lost
				if i := strings.Index(call, ".offer."); i >= 0 {
					call = strings.Join(strings.Split(call[i:], ".")[:4], ".")
				}
				if _, again := seen.LoadOrStore(call, true); again {
					return lossy.Action{}
				}
				lost.Add(1)
				return lossy.Action{Lose: true}
			})
			n := s.part(Options{Entry: true, Targets: []TargetRole{{Kind: kind, Class: "default",
				Target: pipeline.TargetFunc(done)}}})
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					p, err := n.Accept(t.Context(), pipeline.Request{Kind: kind, Tool: "t", Body: []byte(`{}`),
						Deadline: time.Now().Add(55 * time.Second)})
					if assertNoError(t, err) {
						if c := s.wait(p); c.Fault != nil {
							t.Error(c.Fault)
						}
					}
				})
			}
			all.Wait()
			require.GreaterOrEqual(t, lost.Load(), int32(20))
			kept := func() int {
				n.member.Lock()
				defer n.member.Unlock()
				return len(n.member.jobs)
			}
			require.Eventually(t, func() bool { return kept() == 0 }, 30*time.Second, 20*time.Millisecond,
				"nothing is kept for ever")
		})
	}
}

// A bound call whose work must not run twice, and has begun, ends as unknown at its deadline, also where the store is
// slow to say what its record holds: whoever hears that only the time was over would make the call again.
func TestBegunWorkIsUnknownAtTheDeadlineAlsoWhereTheStoreIsSlow(t *testing.T) {
	t.Parallel()
	slow := func(m lossy.Message) lossy.Action {
		if m.ToServer && strings.HasPrefix(m.Subject, "$KV.shallot_begun.") && strings.Contains(string(m.Data), `"void"`) {
			return lossy.Action{Delay: 4 * lateGrace}
		}
		return lossy.Action{}
	}
	s, _ := newLossy(t, Config{}, slow)
	var begun sync.Map
	n := s.newNode(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		begun.Store(c.ID, true)
		<-t.Context().Done()
		return nil
	})
	for limit := time.Second; ; limit *= 2 { // until it has begun in time
		p, err := n.Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "t", Body: []byte(`{}`),
			Deadline: time.Now().Add(limit)})
		require.NoError(t, err)
		c := s.wait(p)
		if _, is := begun.Load(c.ID); is {
			require.Equal(t, messages.OutcomeUnknown, c.Fault.Code, c.Fault.Message)
			return
		}
	}
}
