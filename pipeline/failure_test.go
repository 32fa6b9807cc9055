package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// An error may say itself what becomes of the call, whatever the stage declares.
func TestOpenAndClosedErrors(t *testing.T) {
	t.Parallel()
	broke := errors.New("broke")
	for _, r := range []struct {
		name   string
		phase  messages.Phase
		closed bool // the stage's own FailClosed
		err    error
		fails  bool
	}{
		{"open before", messages.Before, false, pipeline.Open(broke), false},
		{"open after of a closed stage", messages.After, true, pipeline.Open(broke), false},
		{"open, wrapped", messages.Before, true, fmt.Errorf("x: %w", pipeline.Open(broke)), false},
		{"closed before", messages.Before, false, pipeline.Closed(broke), true},
		{"closed after of an open stage", messages.After, false, pipeline.Closed(broke), true},
		{"an ordinary error after", messages.After, false, broke, false},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			f := func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Verdict{}, r.err }
			s := pipeline.Stage{Name: "s", Order: 10, FailClosed: r.closed}
			if r.phase == messages.Before {
				s.Before = f
			} else {
				s.After = f
			}
			var report pipeline.Report
			l := pipeline.Chain([]pipeline.Stage{s}, pipeline.TargetFunc(func(_ context.Context, c *messages.Call,
				_ pipeline.Emit) error {
				c.SetReply([]byte(`{}`))
				return nil
			}))
			l.Observe = func(_ *messages.Call, r pipeline.Report) { report = r }
			c, err := l.Call(t.Context(), messages.NewCall(messages.Model, "t", []byte(`{}`)))
			require.NoError(t, err)
			require.ErrorIs(t, report.Err, broke)
			require.EqualValues(t, 1, c.Slip.Stops[0].Tally.Errors, "it is recorded either way")
			require.Equal(t, r.err.Error(), c.Slip.Stops[0].Tally.Err)
			if !r.fails {
				require.Nil(t, c.Fault)
				require.True(t, c.HasReply())
				return
			}
			require.Equal(t, messages.StageError, c.Fault.Code)
			require.Equal(t, "s", c.Fault.Origin)
		})
	}
	absent := &pipeline.Absent{Stage: "s", Subject: "a.b"}
	f, ok := errors.AsType[*messages.Fault](fmt.Errorf("x: %w", absent))
	require.True(t, ok)
	require.Equal(t, messages.StageAbsent, f.Code)
	require.Contains(t, absent.Error(), "a.b")
}
