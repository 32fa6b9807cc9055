package bus

import (
	"context"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// doubtWait bounds how long the end of a call waits for what Options.Doubt has to say.
const doubtWait = 5 * time.Second

// doubt returns the fault that is true of the call: the given one, or what Options.Doubt makes of it.
func (n *Node) doubt(c *messages.Call, f *messages.Fault) *messages.Fault {
	if f == nil || n.opts.Doubt == nil {
		return f
	}
	ctx, cancel := context.WithTimeout(context.Background(), doubtWait)
	defer cancel()
	g := n.opts.Doubt(ctx, c, f)
	if g != f && g.OfTarget() {
		c.Note(messages.NoteExecutorReached, true)
	}
	return g
}
