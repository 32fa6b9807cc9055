package bus

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/systemtest/lossy"
)

// newLossy is a stock whose processes connect through a proxy.
func newLossy(t *testing.T, cfg Config, judge func(m lossy.Message) lossy.Action) (*stock, *lossy.Proxy) {
	t.Helper()
	s := newStockOn(t, cfg, embed.Options{Port: -1})
	p, err := lossy.Start(s.srv.Addr().String(), judge)
	require.NoError(t, err)
	t.Cleanup(p.Stop)
	s.url = p.URL()
	return s, p
}

// charges counts what was done for each key.
type charges struct {
	mu   sync.Mutex
	done map[string]int
}

func (c *charges) run(p *ownerProcess, o *owned, told func(*messages.Call)) outcome {
	c.mu.Lock()
	c.done[string(o.call.Request())]++
	c.mu.Unlock()
	return echo(p, o, told)
}

// acksOf loses the answers to what a process stores on a subject.
type acksOf struct {
	prefix string
	mu     sync.Mutex
	lost   map[string]bool // reply subjects
	times  int             // how many answers are lost for each message id; 0: one
	seen   map[string]int
	total  atomic.Int32
}

func (a *acksOf) judge(m lossy.Message) lossy.Action {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m.ToServer && strings.HasPrefix(m.Subject, a.prefix) && m.Reply != "" {
		id := m.Subject
		if a.seen[id]++; a.seen[id] <= max(a.times, 1) {
			a.lost[m.Reply] = true
		}
		return lossy.Action{}
	}
	if !m.ToServer && a.lost[m.Subject] && bytes.Contains(m.Data, []byte(`"stream"`)) {
		delete(a.lost, m.Subject)
		a.total.Add(1)
		return lossy.Action{Lose: true}
	}
	return lossy.Action{}
}

func lostAcks(prefix string, times int) *acksOf {
	return &acksOf{prefix: prefix, times: times, lost: map[string]bool{}, seen: map[string]int{}}
}

// The acknowledgement of the store that accepts a call is lost, again and again: one key is one charge, and nobody is
// told that the call was not accepted.
func TestALostAcknowledgementOfTheAcceptanceChargesOnce(t *testing.T) {
	t.Parallel()
	for name, times := range map[string]int{"once": 1, "until nobody waits any more": 100} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := lostAcks("shallot.v1.call.entry.", times)
			s, _ := newLossy(t, Config{}, a.judge)
			c := &charges{done: map[string]int{}}
			owners := []*ownerProcess{s.process(true, c.run), s.process(true, c.run)}
			const n = 200
			var all sync.WaitGroup
			for i := range n {
				all.Go(func() {
					body := fmt.Sprintf(`{"n":%d}`, i)
					for try := 0; ; try++ { // as a client does: the same key, anywhere
						p, err := owners[(i+try)%2].durables.accept(t.Context(), s.call(fmt.Sprint("k", i), body), pipeline.Request{})
						if err != nil {
							f := messages.AsFault(err, "")
							if f.Code != messages.StoreUnavailable || !strings.Contains(f.Message, "same idempotency key") || try > 40 {
								t.Errorf("try %d: %v", try, err)
								return
							}
							continue
						}
						if got := string(s.wait(p).Reply()); got != `{"echo":`+body+`}` {
							t.Errorf("call %d ended with %s", i, got)
						}
						return
					}
				})
			}
			all.Wait()
			require.GreaterOrEqual(t, a.total.Load(), int32(n), "the acknowledgements were lost")
			require.Len(t, c.done, n)
			for body, times := range c.done {
				require.Equal(t, 1, times, "%s (EN-1)", body)
			}
			s.settled()
		})
	}
}

// Without a key nobody can come back: who waits for the acceptance is told the end, not a refusal.
func TestALostAcknowledgementWithoutAKey(t *testing.T) {
	t.Parallel()
	a := lostAcks("shallot.v1.call.entry.", 1)
	s, _ := newLossy(t, Config{}, a.judge)
	c := &charges{done: map[string]int{}}
	p := s.process(true, c.run)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			w, err := p.durables.accept(t.Context(), s.call("", fmt.Sprint(i)), pipeline.Request{})
			if assertNoError(t, err) {
				s.wait(w)
			}
		})
	}
	all.Wait()
	require.Len(t, c.done, 50)
	for _, times := range c.done {
		require.Equal(t, 1, times)
	}
	require.EqualValues(t, 50, a.total.Load())
}

// The answers to result records, to acknowledgements of deliveries and to marks are lost. Each call has one end.
func TestLostAnswersOfOtherStores(t *testing.T) {
	t.Parallel()
	for name, prefix := range map[string]string{"results": "$KV.shallot_results.", "acknowledgements": "$JS.ACK.",
		"keys": "$KV.shallot_idempotency."} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lost sync.Map
			var n atomic.Int32
			s, _ := newLossy(t, Config{}, func(m lossy.Message) lossy.Action {
				if m.ToServer && strings.HasPrefix(m.Subject, prefix) && m.Reply != "" {
					if _, again := lost.LoadOrStore(m.Subject, true); !again {
						lost.Store(m.Reply, true)
					}
				} else if _, is := lost.LoadAndDelete(m.Subject); is && !m.ToServer {
					n.Add(1)
					return lossy.Action{Lose: true}
				}
				return lossy.Action{}
			})
			c := &charges{done: map[string]int{}}
			p := s.process(true, c.run)
			var all sync.WaitGroup
			for i := range 20 {
				all.Go(func() {
					w, err := p.durables.accept(t.Context(), s.call(fmt.Sprint("k", i), fmt.Sprint(i)), pipeline.Request{})
					if assertNoError(t, err) && string(s.wait(w).Reply()) != fmt.Sprintf(`{"echo":%d}`, i) {
						t.Errorf("call %d has another end", i)
					}
				})
			}
			all.Wait()
			require.Eventually(t, func() bool { return n.Load() >= 20 }, 30*time.Second, 10*time.Millisecond)
			for body, times := range c.done {
				require.Equal(t, 1, times, body)
			}
			s.settled()
		})
	}
}
