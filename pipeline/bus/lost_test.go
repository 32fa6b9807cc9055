package bus

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/systemtest/lossy"
)

// loss loses so many messages, and says so.
type loss struct {
	is   func(m lossy.Message) bool
	mu   sync.Mutex
	left int
	lost chan struct{}
}

func (l *loss) judge(m lossy.Message) (a lossy.Action) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left > 0 && l.is(m) {
		if a.Lose, l.left = true, l.left-1; l.left == 0 {
			close(l.lost)
		}
	}
	return a
}

func sends(prefix, body string) func(m lossy.Message) bool {
	return func(m lossy.Message) bool {
		return m.ToServer && strings.HasPrefix(m.Subject, prefix) && strings.Contains(string(m.Data), body)
	}
}

func hears(part string) func(m lossy.Message) bool {
	return func(m lossy.Message) bool { return !m.ToServer && strings.Contains(m.Subject, part) }
}

// tellsEnd is what an owner sends to where a call was accepted.
func tellsEnd(m lossy.Message) bool { return m.ToServer && strings.Contains(m.Subject, ".stored.c.") }

// One message of a stored call is lost on its way, whichever. What it was for is asked again or comes another way: the
// call ends once, whoever waits hears it, and the queue is empty.
func TestEachLostMessageOfAStoredCallIsReplaced(t *testing.T) {
	t.Parallel()
	for name, is := range map[string]func(m lossy.Message) bool{
		"claim of the key":      sends("$KV.shallot_idempotency.", ""),
		"acceptance":            sends("shallot.v1.call.entry.", ""),
		"pull":                  sends("$JS.API.CONSUMER.MSG.NEXT.SHALLOT_CALLS.model-default", ""),
		"delivery":              hears(".call.entry."),
		"mark":                  sends("$JS.ACK.SHALLOT_CALLS.", "+WPI"),
		"acknowledgement":       sends("$JS.ACK.SHALLOT_CALLS.", "+ACK"),
		"result":                sends("$KV.shallot_results.", ""),
		"end":                   tellsEnd,
		"end, to whoever waits": hears(".stored.c."),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &loss{is: is, left: 1, lost: make(chan struct{})}
			if name == "pull" {
				l.left = 2 // a process pulls when it starts and when it is connected
			}
			s, _ := newLossy(t, Config{}, l.judge)
			c := &charges{done: map[string]int{}}
			run := func(p *ownerProcess, o *owned, told func(*messages.Call)) outcome {
				if name == "mark" {
					<-l.lost
				}
				return c.run(p, o, told)
			}
			door := s.process(false, nil)
			s.process(true, run)
			p, err := door.durables.accept(t.Context(), s.call("k", `1`), pipeline.Request{})
			require.NoError(t, err)
			require.Equal(t, `{"echo":1}`, string(s.wait(p).Reply()))
			select {
			case <-l.lost:
			case <-time.After(time.Minute):
				t.Fatal("nothing was lost")
			}
			s.settled()
			require.Equal(t, 1, c.done[`1`])
		})
	}
}

// Whoever waits for a call that is parked hears it, although the message that says so is lost.
func TestWhoWaitsHearsThatACallIsParked(t *testing.T) {
	t.Parallel()
	l := &loss{left: 1, lost: make(chan struct{}), is: tellsEnd}
	s, _ := newLossy(t, Config{}, l.judge)
	door := s.process(false, nil)
	s.process(true, func(p *ownerProcess, o *owned, _ func(*messages.Call)) outcome {
		next := pipeline.Next{Where: pipeline.ToHold, Question: []byte(`"may it?"`), Expires: time.Minute}
		out, err := p.durables.hold(o, next)
		if err != nil {
			t.Error(err)
		}
		return out
	})
	p, err := door.durables.accept(t.Context(), s.call("", `1`), pipeline.Request{})
	require.NoError(t, err)
	_, err = p.Wait(t.Context(), nil)
	require.ErrorIs(t, err, pipeline.ErrHeld)
	<-l.lost
	s.settled()
}
