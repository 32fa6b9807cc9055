package stages_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/approval"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/stages"
)

// asked is the tool chain with an approval and somebody who decides.
type asked struct {
	*toolChain
	desk      *stages.ApprovalDesk
	questions []approval.Question
	expires   []time.Duration
	records   []stages.ApprovalRecord
	saw       []string // arguments that the tool got
	fail      int      // so many runs fail
}

const payPolicies = `policies: [{name: big, tool: "pay*", when: args.amount > 100, expires: 1h}]`

func newAsked(t *testing.T, policies string, defs ...tool.Definition) *asked {
	t.Helper()
	a := &asked{}
	d := harnessDeps()
	d.Publish = func(_ context.Context, what string, record any) error {
		if r, ok := record.(stages.ApprovalRecord); ok && what == "approval" {
			a.records = append(a.records, r)
		}
		return nil
	}
	var tools []chainTool
	for _, def := range defs {
		tools = append(tools, chainTool{def, func(_ context.Context, _ int, args json.RawMessage) (toolbox.Result, error) {
			a.saw = append(a.saw, string(args))
			if a.fail--; a.fail >= 0 {
				return toolbox.Result{}, messages.NewFault(messages.ToolNetwork, "reset")
			}
			return toolbox.Result{Content: []byte(`{"paid":true}`)}, nil
		}})
	}
	a.toolChain = newToolChain(t, d, map[string]string{"approval": policies}, tools...)
	cfg := stages.ApprovalConfig{}
	s, err := stageNamed(t, "approval", stages.Deps{Tools: a.toolSet},
		func(config any) { cfg = *config.(*stages.ApprovalConfig) })
	require.NoError(t, err)
	require.True(t, s.OnDemand)
	for i := range a.Stages {
		if a.Stages[i].Name == "approval" && policies != "" {
			require.Equal(t, pipeline.RoleApprove, a.Stages[i].Role)
		}
	}
	cfg.Policies = policiesOf(t, policies)
	a.desk, err = stages.NewApprovalDesk(&cfg, stages.Deps{Tools: a.toolSet, Parser: &args.Parser{}})
	require.NoError(t, err)
	a.Target.Approvals = a.desk.Policies
	return a
}

func policiesOf(t *testing.T, text string) []approval.Policy {
	t.Helper()
	for _, spec := range stages.All() {
		if spec.Name == "approval" {
			cfg, ok := spec.Config().(*stages.ApprovalConfig)
			require.True(t, ok)
			if text != "" {
				harnessYAML(t, text, cfg)
			}
			return cfg.Policies
		}
	}
	return nil
}

// run sends a call through, and answers its question.
func (a *asked) run(t *testing.T, c *messages.Call, decision string) *messages.Call {
	t.Helper()
	a.Held = func(raw json.RawMessage, expires time.Duration) json.RawMessage {
		var q approval.Question
		require.NoError(t, json.Unmarshal(raw, &q))
		a.questions, a.expires = append(a.questions, q), append(a.expires, expires)
		out, err := a.desk.Decide(t.Context(), raw, json.RawMessage(decision), "ann")
		require.NoError(t, err)
		require.NotEmpty(t, out)
		return out
	}
	return a.Call(t, t.Context(), c)
}

func TestApproval(t *testing.T) {
	t.Parallel()
	schema := tool.JSON(`{"type":"object","properties":{"amount":{"type":"integer"},"to":{"type":"string"}},` +
		`"required":["amount"]}`)
	pay := tool.Definition{Name: "pay", InputSchema: schema,
		Policy: tool.Policy{Effect: tool.EffectRead, Cache: &tool.Cache{}}}
	t.Run("nobody is asked where no policy holds (HI-1 HI-11)", func(t *testing.T) {
		a := newAsked(t, payPolicies, pay, reading("free"))
		for _, tool := range []string{"pay", "free"} {
			out := a.run(t, toolCall(tool, `{"amount":"100"}`), "")
			require.Nil(t, out.Fault, "nobody is asked where the predicate is false, or no policy is about the tool")
		}
		require.Empty(t, a.questions)
	})
	t.Run("approved, it runs as it was shown (HI-2)", func(t *testing.T) {
		a := newAsked(t, payPolicies, pay)
		out := a.run(t, toolCall("pay", `{"to":"bob","amount":"9007199254740993","x":1}`), `"approve"`)
		require.Nil(t, out.Fault)
		require.Equal(t, []string{`{"amount":9007199254740993,"to":"bob"}`}, a.saw,
			"once, with the arguments that were shown")
		require.JSONEq(t, a.saw[0], string(a.questions[0].Arguments), "coerced ones")
		require.Equal(t, []string{"big", "pay"}, []string{a.questions[0].Policy, a.questions[0].Tool})
		require.Equal(t, time.Hour, a.expires[0])
		require.Len(t, a.questions, 1)
		require.Equal(t, "ann", a.records[len(a.records)-1].By)
		require.Equal(t, "ann", note[approval.Decision](out, messages.NoteDecision).By)
	})
	t.Run("edited, it runs with the other arguments (HI-3)", func(t *testing.T) {
		a := newAsked(t, payPolicies, pay)
		out := a.run(t, toolCall("pay", `{"amount":500}`), `{"decision":"edit","arguments":{"amount":"7","to":"eve"}}`)
		require.Nil(t, out.Fault)
		require.Equal(t, []string{`{"amount":7,"to":"eve"}`}, a.saw)
		require.Equal(t, a.saw[0], string(out.Request()), "everything later sees the edited ones")
		changes := note[[]args.Change](out, messages.NoteArgumentChanges)
		require.Equal(t, stages.RuleEdited, changes[0].Rule)
		a.run(t, toolCall("pay", `{"amount":7,"to":"eve"}`), "")
		require.Len(t, a.saw, 1, "the cache has it under the edited arguments")
		a.run(t, toolCall("pay", `{"amount":500}`), `"approve"`)
		require.Len(t, a.saw, 2, "and not under the others")
	})
	t.Run("rejected, it is blocked, or read in a run (HI-4)", func(t *testing.T) {
		a := newAsked(t, payPolicies, pay)
		out := a.run(t, toolCall("pay", `{"amount":500}`), `{"decision":"reject","reason":"too much"}`)
		require.Equal(t, messages.Blocked, out.Fault.Code)
		require.Contains(t, out.Fault.Message, "ann")
		require.Contains(t, out.Fault.Message, "too much")
		require.Equal(t, "approval", out.Fault.Origin)
		in := toolCall("pay", `{"amount":500}`)
		in.Run = "r1"
		out = a.run(t, in, `{"decision":"reject","reason":"too much"}`)
		require.Nil(t, out.Fault, "in a run the model reads it")
		require.Contains(t, string(out.Reply()), "too much")
		require.True(t, out.Flag(messages.NoteIsError))
		require.Empty(t, a.saw)
	})
	t.Run("respond", func(t *testing.T) {
		a := newAsked(t, payPolicies, pay)
		out := a.run(t, toolCall("pay", `{"amount":500}`), `{"decision":"respond","content":{"id":9007199254740993}}`)
		require.Nil(t, out.Fault)
		require.Equal(t, `{"id":9007199254740993}`, string(out.Reply()))
		require.Equal(t, "respond", gjson.GetBytes(out.Notes[messages.NoteMetadata], "approval.decision").Str)
		out = a.run(t, toolCall("pay", `{"amount":500}`), `"approve"`)
		require.Equal(t, `{"paid":true}`, string(out.Reply()), "what a person said is not cached for the tool")
		require.Len(t, a.saw, 1)
		require.Len(t, a.questions, 2)
	})
	t.Run("a cached result stands in for no decision", func(t *testing.T) {
		a := newAsked(t, payPolicies, pay)
		a.run(t, toolCall("pay", `{"amount":500}`), `"approve"`)
		out := a.run(t, toolCall("pay", `{"amount":500}`), `"reject"`)
		require.Equal(t, messages.Blocked, out.Fault.Code)
		require.Len(t, a.questions, 2)
	})
	t.Run("a held call is not retried (RT-10)", func(t *testing.T) {
		a := newAsked(t, payPolicies, pay)
		out := a.run(t, toolCall("pay", `{"amount":500}`), `"reject"`)
		require.Equal(t, messages.Blocked, out.Fault.Code)
		require.Zero(t, out.Slip.Tries)
		require.Empty(t, a.Delays, "held, not retried, and neither is a no")
		require.NotContains(t, out.Notes, messages.NoteDegraded)
		a.fail = 2
		out = a.run(t, toolCall("pay", `{"amount":500}`), `"approve"`)
		require.Nil(t, out.Fault)
		require.Len(t, a.saw, 3)
		require.Len(t, a.questions, 2, "one yes is good for all attempts of the call")
	})
	t.Run("the tool changed meanwhile", func(t *testing.T) {
		a := newAsked(t, payPolicies, pay)
		decided := false
		a.Held = func(raw json.RawMessage, _ time.Duration) json.RawMessage {
			out, err := a.desk.Decide(t.Context(), raw, json.RawMessage(`"approve"`), "ann")
			require.NoError(t, err)
			decided = true
			d := *a.defs["pay"]
			d.Description = "now it pays somebody else"
			a.defs["pay"] = &d
			return out
		}
		out := a.Call(t, t.Context(), toolCall("pay", `{"amount":500}`))
		require.True(t, decided)
		require.Equal(t, messages.Blocked, out.Fault.Code)
		require.Empty(t, a.saw)
	})
}

// The tool's own approval, and a tool that asks although no policy is about it.
func TestApprovalOfTool(t *testing.T) {
	t.Parallel()
	own := func(name, approval string) tool.Definition {
		return tool.Definition{Name: name, Policy: tool.Policy{Effect: tool.EffectRead, Approval: approval}}
	}
	a := newAsked(t, `policies: [{name: two, decisions: [approve, reject]}, {tool: "x*"}]`, own("a", "always"),
		own("b", "two"), own("xc", "none"), own("d", ""))
	for tool, asks := range map[string]bool{"a": true, "b": true, "xc": false, "d": false} {
		n := len(a.questions)
		out := a.run(t, toolCall(tool, `{}`), `"approve"`)
		require.Nil(t, out.Fault)
		require.Equal(t, asks, len(a.questions) > n, tool)
	}
	require.Len(t, a.saw, 4)
}

// The target runs no call without the grant of exactly its arguments: not with the stage away, not past it, and not
// after a stage further in has changed them.
func TestTargetAsksForTheGrant(t *testing.T) {
	t.Parallel()
	pay := tool.Definition{Name: "pay", Policy: tool.Policy{Effect: tool.EffectRead}}
	t.Run("stage away", func(t *testing.T) {
		a := newAsked(t, payPolicies, pay)
		kept := a.harness.Stages[:0:0]
		for _, s := range a.harness.Stages {
			if s.Name != "approval" {
				kept = append(kept, s)
			}
		}
		a.harness.Stages = kept
		out := a.run(t, toolCall("pay", `{"amount":1}`), "")
		require.Equal(t, messages.Blocked, out.Fault.Code)
		require.Contains(t, out.Fault.Message, "switch it on")
		require.Empty(t, a.saw)
	})
	t.Run("arguments changed after it", func(t *testing.T) {
		a := newAsked(t, payPolicies, pay)
		more := pipeline.Stage{Name: "more", Reads: []string{"request"}, Kind: messages.Tool, Order: 55,
			Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
				c.SetRequest([]byte(strings.Replace(string(c.Request()), "1", "1000", 1)))
				return pipeline.Continue(), nil
			}}
		a.harness.Stages = append(a.harness.Stages, more)
		out := a.run(t, toolCall("pay", `{"amount":1}`), "")
		require.Equal(t, messages.Blocked, out.Fault.Code)
		require.Contains(t, out.Fault.Message, "may have changed them")
		require.Empty(t, a.saw)
	})
	t.Run("skipped", func(t *testing.T) {
		a := newAsked(t, payPolicies, pay)
		for i := range a.harness.Stages {
			if a.harness.Stages[i].Name == "approval" {
				a.harness.Stages[i].Before = func(context.Context, *messages.Call) (pipeline.Verdict, error) {
					return pipeline.Continue(), nil
				}
			}
		}
		out := a.run(t, toolCall("pay", `{"amount":1}`), "")
		require.Equal(t, messages.Blocked, out.Fault.Code)
	})
	t.Run("the registry is away", func(t *testing.T) {
		d := harnessDeps()
		d.Tools = oddTools{err: messages.NewFault(messages.StoreUnavailable, "away")}
		s := toolStage(t, "approval", d)
		_, err := s.Before(t.Context(), toolCall("pay", `{}`))
		require.Error(t, err, "it fails closed")
		require.True(t, s.FailClosed)
	})
}

func TestApprovalConfiguration(t *testing.T) {
	t.Parallel()
	d := harnessDeps()
	d.Tools = &toolSet{}
	_, _, err := harnessMake(messages.Tool, "approval", `policies: [{tool: pay, when: "args.amount >"}]`, d)
	require.ErrorContains(t, err, "agent.interceptor.approval: policies[0] (pay): when: ")
	_, _, err = harnessMake(messages.Tool, "approval", `policies: [{tool: pay, if: "true"}]`, d)
	require.Error(t, err)
	_, _, err = harnessMake(messages.Tool, "approval", `on-absent: skip`, d)
	require.ErrorContains(t, err, "fixed stages wait")
}

// A question that nobody's screen holds shows the beginning of the arguments, and their size.
func TestApprovalOfLargeArguments(t *testing.T) {
	t.Parallel()
	pay := tool.Definition{Name: "pay", Policy: tool.Policy{Effect: tool.EffectRead, Approval: "always"}}
	a := newAsked(t, "", pay)
	args := `{"text":"` + strings.Repeat("onion ", 100_000) + `"}`
	out := a.run(t, toolCall("pay", args), `"approve"`)
	require.Nil(t, out.Fault)
	require.Equal(t, []string{args}, a.saw)
	q := a.questions[0]
	require.Empty(t, q.Arguments)
	require.Equal(t, len(args), q.Bytes)
	require.True(t, strings.HasPrefix(args, q.Preview) && len(q.Preview) > 1000)
}
