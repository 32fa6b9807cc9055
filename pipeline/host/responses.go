package host

import (
	"context"
	"time"

	"github.com/shallot-nats/shallot/pipeline/api/responses"
)

// Responses are what the Responses API keeps: for 30 days, and visible to all processes at once.
func (h *Host) Responses() *responses.Kept {
	h.keptOnce.Do(func() {
		h.kept = responses.New(h.responses, h.Entry())
		h.kept.Asks, h.kept.Said = h, h.Node.Said
	})
	return h.kept
}

// tendResponses keeps the ends of responses whose gateways have died, well before the ends of their calls are gone, and
// makes room, until ctx is over.
func (h *Host) tendResponses(ctx context.Context) {
	kept := h.Responses()
	every := time.NewTicker(min(time.Minute, h.Config.Bus.ResultTTL/8))
	defer every.Stop()
	said := func(n int, err error, what string) {
		if n > 0 {
			h.log.Info(what, "entries", n)
		}
		if err != nil && ctx.Err() == nil {
			h.log.Warn("the kept responses could not be looked after; that is done again soon", "err", err)
		}
	}
	for {
		select {
		case <-every.C:
			n, err := kept.Sweep(ctx)
			said(n, err, "ends of responses were kept whose gateway is gone")
		case <-kept.Filling():
		case <-ctx.Done():
			return
		}
		n, err := kept.Trim(ctx)
		said(n, err, "responses were removed to make room; the tenants that have most lose their oldest")
	}
}
