package bus

import (
	"time"

	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// decide lets f speak to the process's Owner under its lock, and carries out what comes of it afterwards, before it
// returns. f must not wait.
type decide func(f func(o *protocol.Owner, now time.Duration, out []protocol.Effect) []protocol.Effect)

// stored tells the Owner what came of an effect on a store.
func (d decide) stored(e protocol.Effect, st protocol.Stored) {
	d(func(o *protocol.Owner, now time.Duration, out []protocol.Effect) []protocol.Effect {
		return o.Stored(now, e, st, out)
	})
}
