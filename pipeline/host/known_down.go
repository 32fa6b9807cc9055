package host

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// entry is where calls enter. While the connection to NATS is known to be down a call is refused at once: nobody is
// made to wait for what cannot come.
type entry struct {
	pipeline.Entry
	conn *nats.Conn
}

// Accept implements pipeline.Entry.
func (e entry) Accept(ctx context.Context, r pipeline.Request) (pipeline.Pending, error) {
	if f := e.unreachable(); f != nil {
		return nil, f
	}
	return e.Entry.Accept(ctx, r)
}

// Result implements pipeline.Entry.
func (e entry) Result(ctx context.Context, tenant, id string) (*messages.Call, error) {
	if f := e.unreachable(); f != nil {
		return nil, f
	}
	return e.Entry.Result(ctx, tenant, id)
}

// unreachable is the fault of a call while there is no connection; nil while there is one.
func (e entry) unreachable() error {
	if e.conn.IsConnected() {
		return nil
	}
	f := messages.NewFault(messages.StoreUnavailable,
		"the gateway has no connection to NATS and tries to get it back; the call was not accepted")
	f.Unsent, f.RetryAfter = true, time.Second
	return f.From("entry")
}
