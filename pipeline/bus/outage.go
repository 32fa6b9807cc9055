package bus

import (
	"sync"
	"time"
)

// outage remembers when this process last could not hear, because its connection was away or it was stopped itself.
// Stored calls come on another subscription than the probes that tell how far the process has heard: shortly after an
// outage a delivery that looks like the first may be old.
type outage struct {
	mu     sync.Mutex
	last   time.Time // the end of the last outage
	up     bool
	ticked time.Time
}

const (
	// stoppedAfter is the gap between two ticks, one second apart, after which the process assumes that it was stopped.
	stoppedAfter = 2 * time.Second
	// outageLasts is how long deliveries may be old after an outage.
	outageLasts = 3 * time.Second
)

// note says that the connection is there, for the first time or again.
func (o *outage) note(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.up {
		o.last = now
	}
	o.up = true
}

func (o *outage) tick(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ticked.IsZero() && now.Sub(o.ticked) > stoppedAfter {
		o.last = now
	}
	o.ticked = now
}

// recent reports whether a delivery may be old.
func (o *outage) recent(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.last.IsZero() && now.Sub(o.last) < outageLasts ||
		!o.ticked.IsZero() && now.Sub(o.ticked) > stoppedAfter
}
