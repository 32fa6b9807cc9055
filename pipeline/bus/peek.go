package bus

import (
	"context"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// Peek is [Node.Result] without the wait: the end of a call and when it was recorded; a nil call while it is under way,
// with [pipeline.ErrHeld] while it waits for an answer.
func (n *Node) Peek(ctx context.Context, tenant, id string) (*messages.Call, time.Time, error) {
	c, at, err := n.recordedAt(ctx, tenant, id)
	if c != nil || err != nil {
		return c, at, err
	}
	parked, open := n.heldNow(ctx, tenant, id)
	switch {
	case open:
		return nil, time.Time{}, pipeline.ErrHeld
	case parked: // it goes on
		return nil, time.Time{}, nil
	}
	known, err := n.known(ctx, tenant, id)
	if err == nil && !known {
		err = messages.NewFault(messages.NotFound, "no call %s; results are kept %s after a call's end", id, n.cfg.ResultTTL).From("entry")
	}
	return nil, time.Time{}, err
}

// Results is where ends of calls are kept. What is put beside them is kept as long; see [Node.ResultTTL].
func (n *Node) Results() pipeline.Store { return n.results }

// ResultTTL is how long ends of calls are kept.
func (n *Node) ResultTTL() time.Duration { return n.cfg.ResultTTL }
