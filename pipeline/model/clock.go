package model

import (
	"context"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// clock ends a context with a fault when nothing has happened for a while.
type clock struct {
	mu     sync.Mutex
	timer  *time.Timer
	why    *messages.Fault
	cancel context.CancelCauseFunc
}

func newClock(ctx context.Context) (context.Context, *clock) {
	ctx, cancel := context.WithCancelCause(ctx)
	k := &clock{cancel: cancel}
	return ctx, k
}

// set gives the context d more to live; why is the fault of its end.
func (k *clock) set(d time.Duration, why *messages.Fault) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.why = why
	if k.timer == nil {
		k.timer = time.AfterFunc(d, k.fire)
		return
	}
	k.timer.Reset(d)
}

func (k *clock) fire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cancel(k.why)
}

// halt stops the clock; the context lives on.
func (k *clock) halt() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.timer != nil {
		k.timer.Stop()
	}
}

// end stops the clock and ends the context.
func (k *clock) end() {
	k.halt()
	k.cancel(context.Canceled)
}
