package host

import (
	"context"
	"log/slog"
	"time"

	"github.com/shallot-nats/shallot/pipeline/api/responses"
)

// tendResponses keeps the ends of responses whose gateways have died, well before the ends of their calls are gone, and
// makes room, until ctx is over.
func tendResponses(ctx context.Context, kept *responses.Kept, ttl time.Duration, log *slog.Logger) {
	every := time.NewTicker(min(time.Minute, ttl/8))
	defer every.Stop()
	said := func(n int, err error, what string) {
		if n > 0 {
			log.Info(what, "entries", n)
		}
		if err != nil && ctx.Err() == nil {
			log.Warn("the kept responses could not be looked after; that is done again soon", "err", err)
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
