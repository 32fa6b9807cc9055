//go:build long

package bus_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/systemtest/lossy"
)

// soak is an installation under load, to which everything happens that may happen to one: processes are killed, or
// stopped for longer than the ack wait, acknowledgements are lost, connections flap, the server is away.
type soak struct {
	*steps
	losing   atomic.Bool // a third of what the server answers about stores does not arrive
	flapping atomic.Bool // connections end after a few messages
	chance   *rand.Rand
	mu       sync.Mutex
	faults   map[string]int
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	s := &soak{chance: rand.New(rand.NewPCG(1, 2)), faults: map[string]int{}}
	s.steps = newSteps(t, step{process: "none"}, fault{}, s.weather)
	return s
}

// weather is what becomes of a message.
func (s *soak) weather(m lossy.Message) lossy.Action {
	losing, flapping := s.losing.Load(), s.flapping.Load()
	if !losing && !flapping {
		return lossy.Action{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stored := !m.ToServer && strings.Contains(string(m.Data), `"stream":"`)
	return lossy.Action{Lose: losing && stored && s.chance.IntN(3) == 0, Cut: flapping && s.chance.IntN(200) == 0}
}

// trouble makes one fault after the other until done is closed.
func (s *soak) trouble(done <-chan struct{}) {
	names := []string{"target-a", "owner-a", "stage-a", "target-b", "owner-b", "stage-b"}
	aways := []time.Duration{3 * time.Second, 12 * time.Second, 30 * time.Second}
	during := func(on *atomic.Bool, d time.Duration) func() {
		return func() { on.Store(true); s.pause(done, d); on.Store(false) }
	}
	for i := 0; ; i++ {
		name := names[i/5%len(names)]
		kinds := []struct {
			name string
			run  func()
		}{
			{"killed", func() { s.procs[name].end(syscall.SIGKILL, 10*time.Second); s.start(name) }},
			{"stopped", func() {
				p := s.procs[name]
				p.signal(syscall.SIGSTOP)
				s.pause(done, 2*s.spec.AckWait)
				p.signal(syscall.SIGCONT)
			}},
			{"acknowledgements lost", during(&s.losing, 3*time.Second)},
			{"flapping", during(&s.flapping, 3*time.Second)},
			{"server away", func() {
				s.srv.proc.end(syscall.SIGKILL, 10*time.Second)
				s.pause(done, aways[i/5%len(aways)])
				s.srv.start()
			}},
		}
		k := kinds[i%len(kinds)]
		k.run()
		s.faults[k.name]++
		if s.pause(done, 2*time.Second) { // the calls go on for a while
			return
		}
	}
}

// pause waits, and reports whether all is over.
func (s *soak) pause(done <-chan struct{}, d time.Duration) bool {
	select {
	case <-done:
		return true
	case <-time.After(d): // simulated: how long a fault lasts, and the time between two
		return false
	}
}

func soakKind(i int) messages.Kind { return []messages.Kind{messages.Tool, messages.Model}[i%2] }

// ask makes call i until its end is known, as a client does that comes back with its key.
func (s *soak) ask(i int) (*messages.Call, error) {
	key := "k" + strconv.Itoa(i)
	body := rawjson.SetFieldString(rawjson.SetFieldString([]byte(chatBody), "key", key), "takes", "3s")
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Minute)
	defer cancel()
	for {
		p, err := s.owner.Accept(ctx, pipeline.Request{Kind: soakKind(i), Tool: "t", Body: body, IdempotencyKey: key,
			MaxTime: 4 * time.Minute, Deadline: time.Now().Add(4 * time.Minute)})
		if err == nil {
			return p.Wait(ctx, nil)
		}
		f, ok := errors.AsType[*messages.Fault](err)
		if !ok || f.Code != messages.StoreUnavailable && f.Code != messages.Overloaded {
			return nil, err
		}
		if s.pause(ctx.Done(), 100*time.Millisecond) {
			return nil, ctx.Err()
		}
	}
}

// all asks for every call, a few at once, and returns their ends.
func (s *soak) all(n int) []*messages.Call {
	ends := make([]*messages.Call, n)
	var next atomic.Int64
	var callers sync.WaitGroup
	for range 128 {
		callers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				end, err := s.ask(i)
				if err != nil {
					s.t.Errorf("call %d: %v", i, err)
				}
				ends[i] = end
			}
		})
	}
	callers.Wait()
	return ends
}

// purchases counts them by key.
func (s *soak) purchases() map[string]int {
	raw, err := os.ReadFile(s.ledger)
	require.NoError(s.t, err)
	out := map[string]int{}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "buy" {
			out[f[1]]++
		}
	}
	return out
}

// Whatever happens to the processes, the server and the network: work that must not run twice does not, whoever asks
// again gets the same end, and nothing is bought again whose end was stored.
func TestLongSoakBuysNothingTwice(t *testing.T) {
	n := 5000
	if v, err := strconv.Atoi(os.Getenv("SHALLOT_SOAK_CALLS")); err == nil {
		n = v
	}
	s := newSoak(t)
	begin, done, calm := time.Now(), make(chan struct{}), make(chan struct{})
	go func() { defer close(calm); s.trouble(done) }()
	ends := s.all(n)
	close(done)
	<-calm
	require.False(t, t.Failed())
	if n >= 5000 {
		require.Len(t, s.faults, 5, "there was time for each kind")
	}
	bought := s.purchases()
	unknown, again := 0, 0
	for i, end := range ends {
		times := bought["k"+strconv.Itoa(i)]
		switch once := soakKind(i) == messages.Tool; {
		case once && end.Fault == nil:
			require.Equal(t, 1, times, "call %d", i)
		case once && end.Fault.Code == messages.OutcomeUnknown:
			unknown++
			require.LessOrEqual(t, times, 1, "call %d", i)
		case once:
			require.Zero(t, times, "call %d: %v", i, end.Fault)
		default:
			require.Nil(t, end.Fault, "call %d", i)
			again += times - 1
		}
	}
	t.Logf("%d calls in %s, with faults %v: %d ended unknown, %d model calls were made again", n,
		time.Since(begin).Round(time.Second), s.faults, unknown, again)
	for i, end := range s.all(n) {
		require.Equal(t, ends[i].ID, end.ID, "call %d", i)
		require.Equal(t, fmt.Sprint(ends[i].Fault), fmt.Sprint(end.Fault), "call %d", i)
		require.Equal(t, string(ends[i].Reply()), string(end.Reply()), "call %d", i)
	}
	require.Equal(t, bought, s.purchases(), "what was stored is not bought again")
}
