package stages

import (
	"context"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// TimeoutConfig has no keys of its own: `tool.timeout` holds the defaults, each tool its own.
type TimeoutConfig struct {
	Common `yaml:",inline"`
}

// newTimeout makes the stage that sets the time limit of one attempt: the tool's own, else that of the longest prefix
// of its name, else the default, and never more than is left of the call. The target enforces it and really cancels the
// work. The stage stands inner to retry, so that each attempt has a limit of its own and no attempt uses up another's.
func newTimeout(_ *TimeoutConfig, d Deps) (pipeline.Stage, error) {
	tools, err := newToolPolicies(d)
	if err != nil {
		return pipeline.Stage{}, err
	}
	before := func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
		_, e, err := tools.of(ctx, c)
		if err != nil {
			return pipeline.Verdict{}, err
		}
		limit := e.Timeout
		if !c.Deadline.IsZero() {
			limit = min(limit, time.Until(c.Deadline))
		}
		c.Note(messages.NoteToolTimeout, max(1, limit.Milliseconds()))
		return pipeline.Continue(), nil
	}
	after := func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
		c.Unnote(messages.NoteToolTimeout)
		return pipeline.Continue(), nil
	}
	return pipeline.Stage{
		Before: before, After: after, Blind: true, Reads: []string{"tool", "deadline"}, Writes: []string{"timeout"},
	}, nil
}
