package bus

import (
	"context"

	"github.com/shallot-nats/shallot/pipeline"
)

// sweepStages runs the clean-ups of the stages that this process hosts, each in a goroutine of its own until ctx ends.
// A clean-up begins when a period has passed since the last one ended, so that no two of one stage run at once here.
func (n *Node) sweepStages(ctx context.Context) {
	for _, s := range n.opts.Manager.Stages("") {
		if s.Sweep != nil && n.opts.hosts(s.Stage) {
			n.loops.Go(func() { n.sweepStage(ctx, s.Stage) })
		}
	}
}

func (n *Node) sweepStage(ctx context.Context, s pipeline.Stage) {
	for wait(ctx, s.SweepEvery) == nil {
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			n.log.WarnContext(ctx, "clean-up of a stage failed; it is tried again later",
				"stage", s.Name, "kind", s.Kind, "err", err)
		}
	}
}
