package bus

import (
	"sync"
	"time"

	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// clock reads the time as the protocol counts it: since the Unix epoch, by the wall clock at the start of the process
// plus monotonic time since, so that it never goes back.
type clock struct {
	start time.Time
	base  time.Duration
}

func newClock() clock {
	now := time.Now()
	return clock{start: now, base: time.Duration(now.UnixNano())}
}

func (c clock) now() time.Duration { return c.base + time.Since(c.start) }

// at converts a time of this process's wall clock. The zero time is 0.
func at(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return time.Duration(t.UnixNano())
}

// wall converts back; 0 is the zero time.
func wall(d time.Duration) time.Time {
	if d == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(d)).UTC()
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
