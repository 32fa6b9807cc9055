package bus

import (
	"context"
	"log/slog"
	"sync"

	"github.com/shallot-nats/shallot/pipeline"
)

// sweepStages runs the clean-ups of the stages that this process hosts, each in a goroutine of its own until ctx ends.
// A clean-up begins when a period has passed since the last one ended, so that no two of one stage run at once here.
func sweepStages(ctx context.Context, o *Options, loops *sync.WaitGroup) {
	for _, s := range o.Manager.Stages("") {
		if s.Sweep != nil && o.hosts(s.Stage) {
			loops.Go(func() { sweepStage(ctx, s.Stage, o.Log) })
		}
	}
}

func sweepStage(ctx context.Context, s pipeline.Stage, log *slog.Logger) {
	for wait(ctx, s.SweepEvery) == nil {
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "clean-up of a stage failed; it is tried again later",
				"stage", s.Name, "kind", s.Kind, "err", err)
		}
	}
}
