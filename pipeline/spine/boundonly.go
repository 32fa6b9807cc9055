package spine

import (
	"context"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// newDurable makes the half of a node that stores calls.
func newDurable(context.Context, *Node) (durable, error) { return boundOnly{}, nil }

// boundOnly stores no calls: what somebody may come back for is refused.
type boundOnly struct{}

func (boundOnly) start(context.Context) error { return nil }
func (boundOnly) stop(context.Context)        {}
func (boundOnly) carry(protocol.Effect)       {}
func (boundOnly) cancel(string)               {}

func (boundOnly) accept(context.Context, *messages.Call, pipeline.Request) (pipeline.Pending, error) {
	return nil, messages.NewFault(messages.Misconfigured, "this process stores no calls").From("entry")
}

func (boundOnly) hold(*owned, pipeline.Next) (outcome, error) {
	return 0, messages.NewFault(messages.Misconfigured, "this process stores no calls, so none can be held").From("bus")
}

func (boundOnly) result(context.Context, string, string) (*messages.Call, error) {
	return nil, messages.NewFault(messages.NotFound, "this process stores no calls").From("entry")
}

func (b boundOnly) peek(ctx context.Context, tenant, id string) (*messages.Call, time.Time, error) {
	c, err := b.result(ctx, tenant, id)
	return c, time.Time{}, err
}
