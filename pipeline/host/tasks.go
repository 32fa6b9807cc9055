package host

import (
	"context"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// Peek looks at a call without waiting for its end; see [bus.Node.Peek].
func (h *Host) Peek(ctx context.Context, tenant, call string) (*messages.Call, time.Time, error) {
	return h.Node.Peek(ctx, tenant, call)
}

// CancelCall cancels a call wherever it runs. It may have ended.
func (h *Host) CancelCall(call string) { h.Node.Cancel(call) }

// TaskStore keeps records as long as ends of calls are kept, which TaskTTL says.
func (h *Host) TaskStore() pipeline.Store { return h.Node.Results() }

// TaskTTL is how long a record in TaskStore lasts after it was last written.
func (h *Host) TaskTTL() time.Duration { return h.Node.ResultTTL() }
