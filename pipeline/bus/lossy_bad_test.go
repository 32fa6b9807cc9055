package bus

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/systemtest/lossy"
)

func TestABadNetworkEndsEveryCallOnce(t *testing.T) {
	t.Parallel()
	badNetwork(t, rand.Uint64(), 30, 1500)
}

// weather loses, delays, repeats and cuts at random in both directions, until so many messages have passed.
type weather struct {
	mu   sync.Mutex
	rand *rand.Rand
	left int
}

func (w *weather) judge(lossy.Message) lossy.Action {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left <= 0 {
		return lossy.Action{}
	}
	w.left--
	switch x := w.rand.IntN(1000); {
	case x < 30:
		return lossy.Action{Lose: true}
	case x < 60:
		return lossy.Action{Delay: time.Duration(w.rand.IntN(300)) * time.Millisecond}
	case x < 90:
		return lossy.Action{Repeat: 1}
	case x < 92:
		return lossy.Action{Cut: true}
	}
	return lossy.Action{}
}

func (w *weather) set(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = n
}

// badNetwork hands in calls while messages fare as the seed says. Each key is one call with one end, and nothing is
// left when the network is calm.
func badNetwork(t *testing.T, seed uint64, calls, bad int) {
	t.Logf("seed %d", seed)
	w := &weather{rand: rand.New(rand.NewPCG(seed, 0))}
	s, _ := newLossy(t, Config{AckWait: 3 * time.Second, AfterOutage: 3 * time.Second}, w.judge)
	run := func(p *ownerProcess, o *owned, _ func(*messages.Call)) outcome {
		o.call.SetReply([]byte(`"` + p.name + `"`)) // who runs it last counts
		return ended
	}
	owners := []*ownerProcess{s.process(true, run), s.process(true, run), s.process(true, run)}
	w.set(bad)
	var all sync.WaitGroup
	for i := range calls {
		all.Go(func() { s.askTwice(owners, i) })
	}
	all.Wait()
	w.set(0)
	s.settled()
	for _, p := range owners {
		require.Eventually(t, p.idle, 30*time.Second, 20*time.Millisecond, "nothing stays behind in %s", p.name)
	}
}

// askTwice has a call made until two who asked for it have heard its end, as clients do that come back with their key.
func (s *stock) askTwice(owners []*ownerProcess, i int) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 50*time.Second)
	defer cancel()
	var ends []string
	for try := 0; len(ends) < 2 && ctx.Err() == nil; try++ {
		owner, c := owners[(i+try)%len(owners)], s.call(fmt.Sprint("k", i), fmt.Sprint(i))
		p, err := owner.durables.accept(ctx, c, pipeline.Request{})
		if err != nil {
			if f := messages.AsFault(err, ""); f.Code != messages.StoreUnavailable {
				s.t.Errorf("call %d: %v", i, err)
			}
			continue
		}
		c, err = p.Wait(ctx, nil)
		switch {
		case err != nil:
			s.t.Errorf("call %d has no end: %v", i, err)
			return
		case c.Fault != nil && c.Fault.Code != messages.OutcomeUnknown:
			s.t.Errorf("call %d: %v", i, c.Fault)
		}
		ends = append(ends, c.ID+" "+string(c.Reply()))
	}
	if len(ends) == 2 && ends[0] != ends[1] {
		s.t.Errorf("call %d has two ends: %s", i, ends)
	}
}

// idle reports whether nothing of any call is left in a process.
func (p *ownerProcess) idle() bool {
	p.durables.ends.mu.Lock()
	telling := len(p.durables.ends.ending) + len(p.durables.ends.read) + len(p.durables.ends.waiting)
	p.durables.ends.mu.Unlock()
	for _, l := range p.durables.pullers {
		l.mu.Lock()
		telling += l.busy
		l.mu.Unlock()
	}
	p.Lock()
	defer p.Unlock()
	return telling+p.durables.stored.count()+p.durables.queue.count()+p.calls.count() == 0 && p.own.Idle()
}
