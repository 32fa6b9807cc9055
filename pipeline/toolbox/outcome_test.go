package toolbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// A fault that invites to another try is not true of a call whose tool may have run.
func TestDoubt(t *testing.T) {
	t.Parallel()
	no := false
	pay, look := goTool("pay", tool.Policy{Idempotent: &no, Check: "get_payment"}),
		goTool("look", tool.Policy{Effect: tool.EffectRead})
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
		{"pay", `"ok"`, store, messages.OutcomeUnknown}, {"pay", `"ok"`, blocked, messages.Blocked},
		{"pay", `"ok"`, gone, messages.Cancelled},
		{"pay", `"breaks"`, late, messages.OutcomeUnknown}, {"pay", `"fails"`, absent, messages.OutcomeUnknown},
		{"pay", `"unsent"`, late, messages.DeadlineExceeded},
		{"look", `"ok"`, late, messages.DeadlineExceeded}, {"look", `"ok"`, absent, messages.StageAbsent},
		{"none", "", late, messages.DeadlineExceeded},
	} {
		c := call(x.tool, x.outcome)
		if x.outcome != "" {
			_ = target.Do(t.Context(), c, noEmit)
		}
		f := target.OutcomeOf(t.Context(), c, x.f)
		require.Equal(t, x.want, f.Code, "%s %s %s", x.tool, x.outcome, x.f.Code)
		if f.Code == messages.OutcomeUnknown {
			require.Contains(t, f.Message, "Do not repeat it")
			require.Contains(t, f.Message, "'get_payment'")
			require.False(t, f.Retryable())
		}
	}
	c := call("pay", `"ok"`)
	require.Equal(t, gone, target.OutcomeOf(t.Context(), c.Clone(), gone), "it had not been started")
	require.NoError(t, target.Do(t.Context(), c, noEmit))
	require.Contains(t, target.OutcomeOf(t.Context(), c, gone).Message, "may have been carried out")
}
