package pipelinetest

import (
	"context"
	"fmt"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// StepOverWire is pipeline.Step as an owner and a member in two processes do it: the question and the answer go over
// their wire forms. A stage sees only the bodies that it declares to read; it is an error if it looks at another one.
func StepOverWire(ctx context.Context, s pipeline.Stage, c *messages.Call) (pipeline.Next, pipeline.Report, error) {
	question, err := pipeline.Ask(s, c, time.Time{})
	if err != nil {
		return pipeline.Next{}, pipeline.Report{}, fmt.Errorf("question at %s: %w", c.Slip.Where(), err)
	}
	q, err := messages.ReadQuestion(question)
	if err != nil {
		return pipeline.Next{}, pipeline.Report{}, fmt.Errorf("question at %s: %w", c.Slip.Where(), err)
	}
	answer, err := pipeline.Run(ctx, s, q, "member").Marshal()
	if missed := q.Missed(); len(missed) > 0 {
		return pipeline.Next{}, pipeline.Report{},
			fmt.Errorf("stage %s looks at %v in %s and does not declare it in Reads", s.Name, missed, c.Slip.Where())
	}
	if err != nil {
		return pipeline.Next{}, pipeline.Report{}, fmt.Errorf("answer at %s: %w", c.Slip.Where(), err)
	}
	a, err := messages.ReadAnswer(answer)
	if err != nil {
		return pipeline.Next{}, pipeline.Report{}, fmt.Errorf("answer at %s: %w", c.Slip.Where(), err)
	}
	next, r := pipeline.Apply(s, c, a)
	return next, r, nil
}
