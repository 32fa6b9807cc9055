package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
)

// Any stages with any script: the trace, the end and the counters are those of the onion worked out by recursion, in
// process and with the wire form between every two steps.
func TestAnyScriptObeysTheLawOfTheOnion(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"alpha", "beta", "gamma", "delta", "epsilon", "zeta"}
		shapes := make([]pipelinetest.Shape, rapid.IntRange(0, len(names)).Draw(t, "stages"))
		for i := range shapes {
			bits := rapid.IntRange(0, 15).Draw(t, "shape")
			shapes[i] = pipelinetest.Shape{Name: names[i], Order: 10 * (i + 1),
				Before: bits&1 != 0, After: bits&2 != 0, Keep: bits&4 != 0, FailClosed: bits&8 != 0}
		}
		script := pipelinetest.RandomScript(shapes, rapid.Uint64().Draw(t, "script"))
		want := pipelinetest.Expect(shapes, script)
		stages := pipelinetest.Stages(messages.Model, shapes...)
		call := pipelinetest.NewCall(messages.Model, rawjson.SetField([]byte(`{"model":"m1"}`), "script",
			rawjson.Encode(script)))

		wired, err := pipelinetest.CallOverWire(context.Background(), stages, pipelinetest.ScriptedTarget(),
			call.Clone())
		require.NoError(t, err)
		pipelinetest.RequireWant(t, want, wired)

		steps := 0
		local := pipeline.Local{Stages: stages, Target: pipelinetest.ScriptedTarget(), Observe: func(c *messages.Call,
			r pipeline.Report) {
			steps++
			name, _ := c.Slip.Stage()
			require.True(t, r.Stage != "" && (name != "" || c.Slip.AtTarget() || c.Slip.Done()))
		}}
		got, err := local.Call(context.Background(), call)
		require.NoError(t, err)
		pipelinetest.RequireWant(t, want, got)
		require.Equal(t, len(want.Trace)-want.Tries, steps, "Observe sees every step")
		require.Equal(t, wired.Slip.Path, got.Slip.Path)
		for name := range got.Sizes() {
			require.Contains(t, []string{messages.RequestBody, messages.ReplyBody}, name, "nothing is kept at the end")
		}
	})
}

func TestStepReports(t *testing.T) {
	t.Parallel()
	run := func(kind messages.Kind, f pipeline.Func, jumps ...string) (*messages.Call, pipeline.Next, pipeline.Report) {
		s := pipeline.Stage{Name: "s", Kind: kind, Order: 10, Before: f, Jumps: jumps}
		c := pipelinetest.NewCall(kind, []byte(`{}`))
		c.Slip.Stops = []messages.Stop{s.Stop()}
		pipeline.Start(c)
		next, r := pipeline.Step(t.Context(), s, c)
		return c, next, r
	}
	t.Run("a panic is in the report with its stack", func(t *testing.T) {
		t.Parallel()
		c, _, r := run(messages.Model, func(context.Context, *messages.Call) (pipeline.Verdict,
			error) {
			panic("boom")
		})
		require.Contains(t, r.Stack, "property_test.go")
		require.Equal(t, messages.StageError, c.Fault.Code)
		require.Equal(t, "stage s: panic: boom", c.Fault.Message)
		require.NotContains(t, c.Fault.Message, "goroutine", "the stack is not for the caller")
	})
	t.Run("hold", func(t *testing.T) {
		t.Parallel()
		c, next, r := run(messages.Model, func(context.Context, *messages.Call) (pipeline.Verdict, error) {
			return pipeline.Hold([]byte(`{"q":1}`)), nil
		})
		require.Equal(t, pipeline.ToHold, next.Where)
		require.JSONEq(t, `{"q":1}`, string(r.Question))
		require.Nil(t, c.Fault, "a hold is not a fault")
		name, phase := c.Slip.Stage()
		require.Equal(t, "s before", fmt.Sprint(name, " ", phase), "it resumes where it was held")
	})
	t.Run("a held call goes on where it was held, over the wire form", func(t *testing.T) {
		t.Parallel()
		phase := func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			var held bool
			if _, err := c.State(&held); err != nil || held {
				return pipeline.Continue(), err
			}
			return pipeline.Hold(nil), c.SetState(true)
		}
		reset := func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
			v, err := phase(ctx, c)
			if v.String() == "Continue" {
				err = errors.Join(err, c.SetState(false))
			}
			return v, err
		}
		s := pipeline.Stage{Name: "s", Kind: messages.Model, Order: 10, Before: reset, After: phase}
		c := pipelinetest.NewCall(messages.Model, []byte(`{}`))
		c.Slip.Stops = []messages.Stop{s.Stop()}
		next, holds := pipeline.Start(c), 0
		for next.Where != pipeline.ToReply {
			var err error
			c, err = pipelinetest.OverWire(c)
			require.NoError(t, err)
			if c.Slip.AtTarget() {
				next = pipeline.RunTarget(t.Context(), &pipelinetest.Target{}, c, func([]byte) error { return nil })
				continue
			}
			if next, _ = pipeline.Step(t.Context(), s, c); next.Where == pipeline.ToHold {
				holds++
			}
		}
		require.Equal(t, 2, holds)
		require.EqualValues(t, 1, c.Slip.Stops[0].Tally.Count, "one invocation, however often it was parked (ST-5)")
	})
	t.Run("jump to model needs the agent loop", func(t *testing.T) {
		t.Parallel()
		jump := func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Jump("model"), nil }
		c, _, _ := run(messages.Model, jump, "model")
		require.Equal(t, messages.StageError, c.Fault.Code)
		require.Contains(t, c.Fault.Message, "agent loop")
		c, _, r := run(messages.Agent, jump, "model")
		require.Nil(t, c.Fault)
		require.Equal(t, "Continue", r.Verdict.String(), "a run begins at its model anyway")
		require.JSONEq(t, `"model"`, string(c.Notes[messages.NoteJumpTo]))
	})
	t.Run("jump to end with a reply is an answer", func(t *testing.T) {
		t.Parallel()
		c, _, r := run(messages.Tool, func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			c.SetReply([]byte(`"r"`))
			return pipeline.Jump("end"), nil
		}, "end")
		require.Equal(t, "Answer", r.Verdict.String())
		require.Equal(t, `"r"`, string(c.Reply()))
	})
	t.Run("the fault of a stage's own call is not a failure of the target", func(t *testing.T) {
		t.Parallel()
		c, _, _ := run(messages.Model, func(context.Context, *messages.Call) (pipeline.Verdict, error) {
			inner := messages.NewFault(messages.ProviderError, "summary failed").From(messages.TargetOrigin)
			return pipeline.Verdict{}, fmt.Errorf("summary: %w", inner)
		})
		require.Equal(t, messages.ProviderError, c.Fault.Code)
		require.False(t, c.Fault.OfTarget())
		require.Equal(t, "s", c.Fault.Origin)
	})
	t.Run("an error that names its stage already is not prefixed again", func(t *testing.T) {
		t.Parallel()
		for _, text := range []string{"broke", "s: broke", "stage s: broke"} {
			c, _, _ := run(messages.Model, func(context.Context, *messages.Call) (pipeline.Verdict, error) {
				return pipeline.Verdict{}, errors.New(text)
			})
			require.Equal(t, "stage s: broke", c.Fault.Message)
		}
	})
	t.Run("Local takes stages of the call's kind only, and not those to skip (CH-20)", func(t *testing.T) {
		t.Parallel()
		stages := append(pipelinetest.Stages(messages.Tool, pipelinetest.Shape{Name: "alpha", Order: 10, Before: true}),
			pipelinetest.Stages(messages.Model, pipelinetest.Shape{Name: "alpha", Order: 10, After: true},
				pipelinetest.Shape{Name: "beta", Order: 20, Before: true})...)
		c := pipelinetest.NewCall(messages.Model, []byte(`{}`))
		c.Skip = []string{"beta"}
		c, err := pipeline.Chain(stages, pipelinetest.ScriptedTarget()).Call(t.Context(), c)
		require.NoError(t, err)
		require.Equal(t, []string{"T", "A.a"}, pipelinetest.Trace(c))
	})
	t.Run("cancelled by the caller", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(t.Context())
		target := pipeline.TargetFunc(func(ctx context.Context, _ *messages.Call, _ pipeline.Emit) error {
			cancel(pipeline.ErrCancelled)
			return ctx.Err()
		})
		c, err := pipeline.Chain(nil, target).Call(ctx, pipelinetest.NewCall(messages.Model, nil))
		require.NoError(t, err)
		require.Equal(t, messages.Cancelled, c.Fault.Code)
		require.Equal(t, "caller", c.Fault.Origin)
	})
}
