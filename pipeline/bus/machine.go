package bus

import (
	"sync"
	"time"

	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// clock reads the time as the protocol counts it: since the Unix epoch, by the wall clock at the start of the process
// plus monotonic time since, so that it never goes back. When somebody sets the machine's clock, the two are apart by
// as much until the process ends: times of the one become times of the other by how far from now they are.
type clock struct {
	start time.Time
	base  time.Duration
}

func newClock() clock {
	now := time.Now()
	return clock{start: now, base: time.Duration(now.UnixNano())}
}

func (c clock) now() time.Duration { return c.base + time.Since(c.start) }

// at converts a time of this machine's wall clock. The zero time is 0.
func (c clock) at(t time.Time) time.Duration { return from(c.now(), t) }

// from is at where the protocol's time is known.
func from(now time.Duration, t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return now + min(time.Until(t), century)
}

// century is further away than any time that a call has; twice as far is beyond what a time.Duration holds.
const century = 100 * 365 * 24 * time.Hour

// wall converts back; 0 is the zero time.
func (c clock) wall(d time.Duration) time.Time {
	if d == 0 {
		return time.Time{}
	}
	return time.Now().Add(d - c.now()).UTC()
}

// stamp is how a time of the protocol travels in a question; stamped reads it.
func stamp(d time.Duration) time.Time {
	if d == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(d)).UTC()
}

func stamped(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return time.Duration(t.UnixNano())
}

// event tells one of the protocol's aggregates that something happened, and appends what it decides.
type event func(now time.Duration, out []protocol.Effect) []protocol.Effect

// machine guards one of the protocol's aggregates by a mutex and has carried out what it decides.
type machine struct {
	sync.Mutex
	clock clock
	beat  event
	// carry carries out one effect. It runs without the lock, must not wait, and must not keep e.
	carry func(e *protocol.Effect)
}

// do is how every event but those of the fast path reaches the aggregate. Effects of one event are carried out in
// their order; those of two events may overtake each other, as messages do.
func (m *machine) do(f event) {
	buf, _ := effects.Get().(*[]protocol.Effect)
	m.Lock()
	now := m.clock.now()
	out := f(now, m.beat(now, (*buf)[:0]))
	m.Unlock()
	for i := range out {
		m.carry(&out[i])
	}
	clear(out)
	*buf = out
	effects.Put(buf)
}

var effects = sync.Pool{New: func() any { return new([]protocol.Effect) }}
