package spine

import (
	"time"

	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// decide lets f speak to the process's Owner under its lock, and carries out what comes of it before the lock is given
// back: two decisions are carried out in the order in which they were made. f and what carries effects out do not wait
// for anything and do not call decide again.
type decide func(f func(o *protocol.Owner, now time.Duration, out []protocol.Effect) []protocol.Effect)

// stored tells the Owner what came of an effect on a store.
func (d decide) stored(e protocol.Effect, st protocol.Stored) {
	d(func(o *protocol.Owner, now time.Duration, out []protocol.Effect) []protocol.Effect {
		return o.Stored(now, e, st, out)
	})
}

// at is a time as the protocol counts it; the zero time is 0.
func at(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return time.Duration(t.UnixNano())
}
