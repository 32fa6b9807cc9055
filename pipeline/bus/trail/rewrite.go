package trail

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// Run finds what is not acknowledged in time and writes what is kept, until ctx ends. It may run once.
func (t *Trail) Run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for failed := false; ; {
		wake := t.wake
		if failed {
			wake = nil // not before the next tick
		}
		select {
		case <-wake:
		case <-tick.C:
			t.overdue(time.Now().Add(-ackTime))
		case <-ctx.Done():
			return
		}
		failed = t.rewrite(ctx) > 0
	}
}

// rewrite tries to write what is kept, the oldest first, and returns how much is left.
func (t *Trail) rewrite(ctx context.Context) int {
	written := 0
	for {
		t.mu.Lock()
		left := t.held.records
		if left == 0 || ctx.Err() != nil {
			t.mu.Unlock()
			if left == 0 && written > 0 {
				t.log.Info("audit records are stored again", "written", written)
			}
			return left
		}
		r := t.kept[0]
		t.mu.Unlock()
		err := t.slow.Publish(r.subject, r.message(watermill.NewUUID()))
		t.mu.Lock()
		if err != nil {
			t.state.Last = err
			t.mu.Unlock()
			return left
		}
		t.kept[0] = record{}
		t.kept = t.kept[1:]
		t.held.remove(r)
		t.mu.Unlock()
		written += r.n
	}
}

// Close waits for what is under way and tries once more to write what is kept; what is left then is lost. Run has
// returned, and nobody publishes any more. The connection stays open.
func (t *Trail) Close(ctx context.Context) {
	t.flushAll()
	t.mu.Lock()
	idle := make(chan struct{})
	if len(t.pending) == 0 {
		close(idle)
	} else {
		t.idle = idle
	}
	t.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
	t.overdue(time.Now())
	if left := t.rewrite(ctx); left > 0 {
		t.log.Error("audit records are lost: the process ends and the stream takes none", "lost", left)
	}
	_ = t.acks.Unsubscribe() // the connection may be gone
}
