package pipelinetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// OverWire returns the call after a trip over the wire form, as the next process would read it.
func OverWire(c *messages.Call) (*messages.Call, error) {
	wire, err := c.Marshal()
	if err != nil {
		return nil, err
	}
	return messages.Unmarshal(wire)
}

// CallOverWire runs a call like pipeline.Local with a trip over the wire form before each step, and each step asked
// over the wire. It is the reference for what a transport may do to a call. Delays and the deadline are kept; nothing
// is stored, so a held call is an error.
func CallOverWire(ctx context.Context, stages []pipeline.Stage, target pipeline.Target,
	c *messages.Call) (*messages.Call, error) {
	ctx, cancel := context.WithDeadline(ctx, c.Deadline)
	defer cancel()
	if c.Slip.Stops == nil {
		for _, s := range stages {
			c.Slip.Stops = append(c.Slip.Stops, s.Stop())
		}
	}
	next := pipeline.Start(c)
	for {
		d, err := OverWire(c)
		if err != nil {
			return c, fmt.Errorf("over the wire at %s: %w", c.Slip.Where(), err)
		}
		c = d
		if next.Delay > 0 {
			select {
			case <-ctx.Done():
				c.Fail(messages.NewFault(messages.DeadlineExceeded, "the call's time was over at %s",
					c.Slip.Where()).From("deadline"))
				return c, nil
			case <-time.After(next.Delay):
			}
		}
		switch next.Where {
		case pipeline.ToReply:
			return c, nil
		case pipeline.ToHold:
			return c, pipeline.ErrHeld
		case pipeline.ToTarget:
			next = pipeline.RunTarget(ctx, target, c, func([]byte) error { return nil })
		case pipeline.ToStage:
			if next, _, err = StepOverWire(ctx, stageOf(stages, c), c); err != nil {
				return c, err
			}
		}
	}
}

func stageOf(stages []pipeline.Stage, c *messages.Call) pipeline.Stage {
	name, _ := c.Slip.Stage()
	for _, s := range stages {
		if s.Name == name {
			return s
		}
	}
	return pipeline.Stage{Name: name}
}

// Stage is the suite of one stage with one target. It runs the call over the wire form, and each phase twice on clones
// of the same call, as a redelivery after a crash would: once in process, and once asked over the wire, where an
// undeclared body is absent. Both runs must agree on where the call goes next; stages whose replies differ by intent
// (times, ids) are compared by verdict only. It returns the finished call.
func Stage(t *testing.T, s pipeline.Stage, target pipeline.Target, c *messages.Call) *messages.Call {
	t.Helper()
	if c.Slip.Stops == nil {
		c.Slip.Stops = []messages.Stop{s.Stop()}
	}
	next := pipeline.Start(c)
	for range pipeline.MaxHops {
		d, err := OverWire(c)
		require.NoError(t, err, "over the wire at %s", c.Slip.Where())
		c = d
		switch next.Where {
		case pipeline.ToReply, pipeline.ToHold:
			return c
		case pipeline.ToTarget:
			next = pipeline.RunTarget(t.Context(), target, c, func([]byte) error { return nil })
		case pipeline.ToStage:
			lost := c.Clone()
			firstNext, first := pipeline.Step(t.Context(), s, lost)
			var second pipeline.Report
			next, second, err = StepOverWire(t.Context(), s, c)
			require.NoError(t, err)
			require.Equal(t, first.Verdict.String(), second.Verdict.String(), "%s of %s, run twice", first.Phase,
				s.Name)
			require.Equal(t, firstNext.Where, next.Where, "%s of %s, run twice", first.Phase, s.Name)
			require.Empty(t, second.Stack, "%s of %s panicked", first.Phase, s.Name)
		}
	}
	t.Fatalf("stage %s: the call does not end", s.Name)
	return nil
}
