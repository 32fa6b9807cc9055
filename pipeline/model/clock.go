package model

import (
	"context"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// clock ends a context with a fault when nothing has happened for a while. It is safe for concurrent use.
type clock struct {
	mu     sync.Mutex
	timer  *time.Timer
	due    time.Time
	rings  time.Time              // when the timer fires; zero: it does not
	why    func() *messages.Fault // nil while the clock is stopped
	cancel context.CancelCauseFunc
}

func newClock(ctx context.Context) (context.Context, *clock) {
	ctx, cancel := context.WithCancelCause(ctx)
	k := &clock{cancel: cancel}
	return ctx, k
}

// set lets the context live for d from now on; why makes the cause if it ends. It is called for every line of a
// stream, so a timer that fires earlier is left alone: it finds out then that it is not time yet.
func (k *clock) set(d time.Duration, why func() *messages.Fault) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.why, k.due = why, time.Now().Add(d)
	if k.rings.IsZero() || k.due.Before(k.rings) {
		k.ring(d)
	}
}

// ring has the timer fire at due, which is in d. The lock is held.
func (k *clock) ring(d time.Duration) {
	k.rings = k.due
	if k.timer == nil {
		k.timer = time.AfterFunc(d, k.fire)
		return
	}
	k.timer.Reset(d)
}

// fire ends the context, unless the clock was set again or stopped since the timer was set.
func (k *clock) fire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rings = time.Time{}
	if k.why == nil {
		return
	}
	if left := time.Until(k.due); left > 0 {
		k.ring(left)
		return
	}
	k.cancel(k.why())
}

// halt stops the clock; the context lives on.
func (k *clock) halt() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.why = nil
	if k.timer != nil && k.timer.Stop() {
		k.rings = time.Time{}
	}
}

// end stops the clock and ends the context.
func (k *clock) end() {
	k.halt()
	k.cancel(context.Canceled)
}
