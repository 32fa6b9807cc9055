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
	why    func() *messages.Fault // nil while the clock is stopped
	cancel context.CancelCauseFunc
}

func newClock(ctx context.Context) (context.Context, *clock) {
	ctx, cancel := context.WithCancelCause(ctx)
	k := &clock{cancel: cancel}
	return ctx, k
}

// set lets the context live for d from now on; why makes the cause if it ends.
func (k *clock) set(d time.Duration, why func() *messages.Fault) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.why, k.due = why, time.Now().Add(d)
	if k.timer == nil {
		k.timer = time.AfterFunc(d, k.fire)
		return
	}
	k.timer.Reset(d)
}

// fire ends the context, unless the clock was set again or stopped while fire waited for the lock.
func (k *clock) fire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.why != nil && !time.Now().Before(k.due) {
		k.cancel(k.why())
	}
}

// halt stops the clock; the context lives on.
func (k *clock) halt() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.why = nil
	if k.timer != nil {
		k.timer.Stop()
	}
}

// end stops the clock and ends the context.
func (k *clock) end() {
	k.halt()
	k.cancel(context.Canceled)
}
