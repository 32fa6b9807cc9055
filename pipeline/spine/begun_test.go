package spine

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

// The answer to each claim of a record is lost: the work begins all the same, once, and within its second.
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
					begin := time.Now()
					c := s.tool(n, pipeline.Request{Body: []byte(body), Keep: keep})
					if c.Fault != nil || string(c.Reply()) != body {
						t.Errorf("%d ended with %s %v", i, c.Reply(), c.Fault)
					}
					if took := time.Since(begin); took > 5*time.Second {
						t.Errorf("%d took %s", i, took)
					}
				})
			}
			all.Wait()
			require.EqualValues(t, 40, lost.Load())
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
		entry := strings.HasPrefix(m.Subject, "shallot.v1.call.entry.") || strings.HasPrefix(m.Subject, "$KV.shallot_idempotency.")
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
					IdempotencyKey: "k", Deadline: time.Now().Add(40 * time.Second)})
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
