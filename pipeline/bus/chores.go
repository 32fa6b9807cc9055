package bus

import (
	"context"
	"sync"
	"time"
)

// chores are small clean-ups for later. They are lost with the process, so what they clean must end by itself too.
type chores struct {
	mu   sync.Mutex
	list []chore // in order of time, because every wait is the same
}

type chore struct {
	at time.Time
	do func(ctx context.Context) error
}

const mostChores = 100_000

func (c *chores) add(wait time.Duration, do func(ctx context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list) < mostChores {
		c.list = append(c.list, chore{time.Now().Add(wait), do})
	}
}

func (c *chores) run(ctx context.Context) {
	for ctx.Err() == nil {
		pause(ctx, time.Second)
		for ctx.Err() == nil {
			next, ok := c.due(time.Now())
			if !ok {
				break
			}
			_ = next.do(ctx) // a clean-up that fails ends by itself
		}
	}
}

func (c *chores) due(now time.Time) (chore, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list) == 0 || now.Before(c.list[0].at) {
		return chore{}, false
	}
	next := c.list[0]
	c.list = c.list[1:]
	return next, true
}

// sweepStages runs the clean-ups of the stages that this process hosts, each in a loop of its own.
func (n *Node) sweepStages(ctx context.Context) {
	for _, s := range n.opts.Manager.Stages("") {
		if s.Sweep == nil || n.opts.Hosts != nil && !n.opts.Hosts(s.Stage) {
			continue
		}
		n.loops.Go(func() {
			for {
				if pause(ctx, s.SweepEvery); ctx.Err() != nil {
					return
				}
				if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
					n.log.WarnContext(ctx, "clean-up of a stage failed; it is tried again later", "stage", s.Name, "kind", s.Kind, "err", err)
				}
			}
		})
	}
}
