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

// answers loses one answer to what is sent on a subject, and says so.
type answers struct {
	prefix string
	skip   int // answers before it that are not lost
	mu     sync.Mutex
	reply  string
	lost   chan struct{}
}

func loseAnswer(prefix string) *answers { return &answers{prefix: prefix, lost: make(chan struct{})} }

func (a *answers) judge(m lossy.Message) lossy.Action {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case m.ToServer && a.reply == "" && strings.HasPrefix(m.Subject, a.prefix) && m.Reply != "":
		if a.skip--; a.skip < 0 {
			a.reply = m.Reply
		}
	case !m.ToServer && a.reply != "" && m.Subject == a.reply:
		a.reply = "lost"
		close(a.lost)
		return lossy.Action{Lose: true}
	}
	return lossy.Action{}
}

func (a *answers) wait(t *testing.T) {
	t.Helper()
	select {
	case <-a.lost:
	case <-time.After(time.Minute):
		t.Fatalf("no answer to %s was lost", a.prefix)
	}
}

// Somebody reads the end of a call while its owner, in the same process, does not know yet that it is stored. The owner
// finds out all the same, and acknowledges the call.
func TestAnEndThatIsReadBeforeItsOwnerKnowsItIsAcknowledged(t *testing.T) {
	t.Parallel()
	a := loseAnswer("$KV.shallot_results.")
	s, _ := newLossy(t, Config{}, a.judge)
	p := s.process(true, echo)
	first, err := p.durables.accept(t.Context(), s.call("k", `1`), pipeline.Request{})
	require.NoError(t, err)
	a.wait(t)
	second, err := p.durables.accept(t.Context(), s.call("k", `1`), pipeline.Request{})
	require.NoError(t, err)
	require.Equal(t, `{"echo":1}`, string(s.wait(second).Reply()))
	require.Equal(t, `{"echo":1}`, string(s.wait(first).Reply()))
	s.settled()
}

// A failure that may be tried again frees its key, whichever answer of the server is lost on the way.
func TestAKeyIsFreedAlthoughAnAnswerIsLost(t *testing.T) {
	t.Parallel()
	for name, prefix := range map[string]string{"of the result": "$KV.shallot_results.",
		"of the reading": "$JS.API.STREAM.MSG.GET.KV_shallot_idempotency", "of the removal": "$KV.shallot_idempotency."} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := loseAnswer(prefix)
			if name == "of the removal" {
				a.skip = 1 // the creation
			}
			s, _ := newLossy(t, Config{}, a.judge)
			p := s.process(true, func(_ *ownerProcess, o *owned, _ func(*messages.Call)) outcome {
				o.call.Fail(messages.NewFault(messages.Overloaded, "no"))
				return ended
			})
			once := func() string {
				w, err := p.durables.accept(t.Context(), s.call("k", `1`), pipeline.Request{})
				require.NoError(t, err)
				s.wait(w)
				return w.ID()
			}
			first := once()
			a.wait(t)
			require.Eventually(t, func() bool { return once() != first }, 30*time.Second, 50*time.Millisecond)
			s.settled()
		})
	}
}
