//go:build long

package spine

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/systemtest/lossy"
)

// Everything is lost, late, doubled and cut at random, in both directions. Each key is one call with one end, and the
// queue is empty in the end.
func TestLongBadNetworkEndsEveryCallOnce(t *testing.T) {
	t.Parallel()
	var calm atomic.Bool
	calm.Store(true)
	s, proxy := newLossy(t, Config{AckWait: 3 * time.Second}, func(m lossy.Message) lossy.Action {
		if calm.Load() {
			return lossy.Action{}
		}
		switch x := rand.IntN(1000); {
		case x < 30:
			return lossy.Action{Lose: true}
		case x < 60:
			return lossy.Action{Delay: time.Duration(rand.IntN(300)) * time.Millisecond}
		case x < 90:
			return lossy.Action{Repeat: 1}
		case x < 92:
			return lossy.Action{Cut: true}
		}
		return lossy.Action{}
	})
	run := func(p *ownerProcess, o *owned, told func(*messages.Call)) outcome {
		o.call.SetReply([]byte(`"` + p.name + `"`)) // who ran it last counts, and there is one who does
		return ended
	}
	owners := []*ownerProcess{s.process(true, run), s.process(true, run), s.process(true, run)}
	calm.Store(false)
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			var ends []string
			for try := 0; try < 8 && len(ends) < 2; try++ {
				p, err := owners[(i+try)%3].durables.accept(t.Context(), s.call(fmt.Sprint("k", i), fmt.Sprint(i)), pipeline.Request{})
				if err != nil {
					if f := messages.AsFault(err, ""); f.Code != messages.StoreUnavailable {
						t.Errorf("call %d: %v", i, err)
					}
					continue
				}
				c := s.wait(p)
				if c.Fault != nil && c.Fault.Code != messages.OutcomeUnknown {
					t.Errorf("call %d: %v", i, c.Fault)
				}
				ends = append(ends, string(c.Reply()))
			}
			if len(ends) == 2 && ends[0] != ends[1] {
				t.Errorf("call %d has two ends: %s", i, ends)
			}
			if len(ends) == 0 {
				t.Errorf("call %d has no end", i)
			}
		})
	}
	all.Wait()
	calm.Store(true)
	proxy.Cut()
	require.Eventually(t, func() bool {
		st, err := s.js.Stream(t.Context(), "SHALLOT_CALLS")
		return err == nil && st.CachedInfo().State.Msgs == 0
	}, 40*time.Second, 50*time.Millisecond, "everything is acknowledged")
	for _, p := range owners {
		require.Eventually(t, func() bool { return p.idle() }, 20*time.Second, 50*time.Millisecond, "nothing stays behind")
	}
}

// idle reports whether nothing of any call is left in a process.
func (p *ownerProcess) idle() bool {
	p.Lock()
	defer p.Unlock()
	return p.durables.stored.count() == 0 && p.durables.queue.count() == 0 &&
		p.own.Next(p.clock.now())-p.clock.now() > 0 && !p.own.Deliveries.Owns("") && len(p.durables.ends.ending) == 0
}
