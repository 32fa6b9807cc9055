package toolbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// A fault that invites to another try is not true of a call whose tool may have run (contracts 10).
func TestDoubt(t *testing.T) {
	t.Parallel()
	no := false
	pay, look := goTool("pay", tool.Policy{Idempotent: &no, Check: "get_payment"}), goTool("look", tool.Policy{Effect: tool.EffectRead})
	outcomes := map[string]func() (toolbox.Result, error){
		`"ok"`:    func() (toolbox.Result, error) { return toolbox.Result{Content: []byte(`1`)}, nil },
		`"fails"`: func() (toolbox.Result, error) { return toolbox.Result{}, errors.New("no") },
		`"breaks"`: func() (toolbox.Result, error) {
			return toolbox.Result{}, messages.NewFault(messages.ToolNetwork, "the connection broke")
		},
		`"unsent"`: func() (toolbox.Result, error) {
			return toolbox.Result{}, messages.NewFault(messages.TargetAbsent, "nobody serves it")
		},
	}
	target, _ := target(func(_ context.Context, inv toolbox.Invocation) (toolbox.Result, error) {
		return outcomes[string(inv.Arguments)]()
	}, pay, look)
	late := messages.NewFault(messages.DeadlineExceeded, "the call's time was over").From("deadline")
	absent := messages.NewFault(messages.StageAbsent, "no worker serves stage s").From("s")
	store := messages.NewFault(messages.StoreUnavailable, "no answer").From("s")
	blocked := messages.NewFault(messages.Blocked, "no").From("s")
	gone := messages.NewFault(messages.Cancelled, "gone").From("caller")
	for _, x := range []struct {
		tool, outcome string
		f             *messages.Fault
		want          messages.Code
	}{
		{"pay", "", late, messages.DeadlineExceeded}, {"pay", "", absent, messages.StageAbsent},
		{"pay", `"ok"`, late, messages.OutcomeUnknown}, {"pay", `"ok"`, absent, messages.OutcomeUnknown},
		{"pay", `"ok"`, store, messages.OutcomeUnknown}, {"pay", `"ok"`, blocked, messages.Blocked}, {"pay", `"ok"`, gone, messages.Cancelled},
		{"pay", `"breaks"`, late, messages.OutcomeUnknown}, {"pay", `"fails"`, absent, messages.OutcomeUnknown},
		{"pay", `"unsent"`, late, messages.DeadlineExceeded},
		{"look", `"ok"`, late, messages.DeadlineExceeded}, {"look", `"ok"`, absent, messages.StageAbsent},
		{"none", "", late, messages.DeadlineExceeded},
	} {
		c := call(x.tool, x.outcome)
		entry := c.Clone() // what the accepting process has: it knows nothing of what became of it
		if x.outcome != "" {
			_ = target.Do(t.Context(), c, noEmit)
		}
		for where, c := range map[string]*messages.Call{"at the entry": entry, "on its way": c} {
			if c.Fault == nil {
				f := target.OutcomeOf(t.Context(), c, x.f)
				if where == "on its way" && x.outcome == `"fails"` {
					continue // it has the tool's fault itself
				}
				require.Equal(t, x.want, f.Code, "%s: %s %s %s", where, x.tool, x.outcome, x.f.Code)
				if f.Code == messages.OutcomeUnknown {
					require.Contains(t, f.Message, "Do not repeat it")
					require.Contains(t, f.Message, "'get_payment'")
					require.False(t, f.Retryable())
				}
			}
		}
	}
	c := call("pay", `"ok"`)
	require.Equal(t, gone, target.OutcomeOf(t.Context(), c.Clone(), gone), "it had not been started")
	require.NoError(t, target.Do(t.Context(), c, noEmit))
	require.Contains(t, target.OutcomeOf(t.Context(), c, gone).Message, "may have been carried out")

	target.Runs = &toolbox.RunRecords{Store: &silent{}}
	require.Equal(t, messages.OutcomeUnknown, target.OutcomeOf(t.Context(), call("pay", `{}`), late).Code, "what cannot be read is not known")
	require.Equal(t, messages.DeadlineExceeded, target.OutcomeOf(t.Context(), call("look", `{}`), late).Code)
}

// silent is a store that does not answer.
type silent struct{ pipeline.Memory }

func (*silent) Get(context.Context, string) (pipeline.StoreEntry, error) {
	return pipeline.StoreEntry{}, errors.New("no answer")
}

// unheard is a store whose first answer is lost, after or before it wrote.
type unheard struct {
	pipeline.Memory
	wrote bool
	lost  int
}

func (u *unheard) Put(ctx context.Context, key string, value []byte, ttl time.Duration, when pipeline.Condition) (uint64, error) {
	if u.lost++; u.lost > 1 {
		return u.Memory.Put(ctx, key, value, ttl, when)
	}
	if u.wrote {
		_, _ = u.Memory.Put(ctx, key, value, ttl, when)
	}
	return 0, errors.New("no answer")
}

// The answer to the intent's write is lost: if it was written, the tool runs; if not, it provably did not, and may later.
func TestIntentAnswerLost(t *testing.T) {
	t.Parallel()
	no := false
	for _, wrote := range []bool{true, false} {
		runs := 0
		target, pool := target(func(context.Context, toolbox.Invocation) (toolbox.Result, error) {
			runs++
			return toolbox.Result{Content: []byte(`1`)}, nil
		}, goTool("pay", tool.Policy{Idempotent: &no}))
		target.Runs = &toolbox.RunRecords{Store: &unheard{wrote: wrote}}
		c := call("pay", `{}`)
		err := target.Do(t.Context(), c, noEmit)
		if !wrote {
			f := faultOf(t, err)
			require.Equal(t, messages.StoreUnavailable, f.Code)
			require.True(t, f.Unsent)
			require.Zero(t, runs)
			err = target.Do(t.Context(), c, noEmit)
		}
		require.NoError(t, err)
		require.Equal(t, 1, runs)
		require.Eventually(t, func() bool { return pool.Running() == 0 }, 10*time.Second, time.Millisecond)
	}
}
