package host

import (
	"context"
	"time"

	"github.com/shallot-nats/shallot/pipeline/api/responses"
)

// Responses are what the Responses API keeps: for 30 days, and visible to all processes at once.
func (h *Host) Responses() *responses.Kept {
	k := responses.New(h.responses, h.Entry())
	k.Asks = h
	return k
}

// sweepResponses keeps the ends of responses whose gateways have died, well before the ends of their calls are gone,
// until ctx is over.
func (h *Host) sweepResponses(ctx context.Context) {
	kept := h.Responses()
	every := time.NewTicker(min(time.Minute, h.Config.Bus.ResultTTL/8))
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
		n, err := kept.Sweep(ctx)
		if n > 0 {
			h.log.Info("ends of responses were kept whose gateway is gone", "responses", n)
		}
		if err != nil && ctx.Err() == nil {
			h.log.Warn("open responses could not be looked at; that is done again soon", "err", err)
		}
	}
}
