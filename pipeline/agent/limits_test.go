package agent_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/agent"
)

func num(n int) *int { return &n }

func micro(n int64) *int64 { return &n }

func TestLimitsOfARun(t *testing.T) {
	t.Parallel()
	ask := func(names ...string) []wanted {
		var out []wanted
		for i, name := range names {
			out = append(out, wanted{fmt.Sprint(name, i), name, "{}"})
		}
		return out
	}
	tools := func(exit string, run int) agent.ToolLimits {
		return agent.ToolLimits{Limit: agent.Limit{Run: num(run)}, Exit: exit}
	}
	for name, r := range map[string]struct {
		limits  agent.Limits
		answers []any
		models  int
		tools   int
		text    string
		fault   string
		results []string // that the model reads last
	}{
		"two model calls of three, with an end (LM-1)": {agent.Limits{ModelCalls: 2},
			[]any{ask("a"), ask("a"), "never"}, 2, 2,
			"Model call limits exceeded: run limit (2/2)", "", nil},
		"the same with an error (LM-2)": {agent.Limits{ModelCalls: 2, Exit: agent.ExitError},
			[]any{ask("a"), ask("a"), "never"}, 2, 2,
			"", "Model call limits exceeded: run limit (2/2)", nil},
		"a limit of tokens, after which no model is asked": {agent.Limits{ModelCalls: 9, Tokens: micro(7)},
			[]any{ask("a"), ask("a"), ask("a"), "never"}, 3, 3, "Token limits exceeded: run limit (9/7)", "", nil},
		"an answer that reaches it is an answer": {agent.Limits{ModelCalls: 9, Tokens: micro(6)},
			[]any{ask("a"), "done"}, 2, 1, "done", "", nil},
		"a limit of money": {agent.Limits{ModelCalls: 9, Micros: micro(1000), Exit: agent.ExitError},
			[]any{ask("a"), ask("a"), "never"}, 2, 2, "", "Money limits exceeded: run limit (0.0014/0.001 USD)", nil},
		"a limit of 0 (LM-5)": {agent.Limits{}, nil, 0, 0, "Model call limits exceeded: run limit (0/0)", "", nil},
		"a batch of three with two left, which continues (LM-7)": {agent.Limits{ModelCalls: 9, Tools: tools("", 2)},
			[]any{ask("a", "b", "c"), "done"}, 2, 2, "done", "",
			[]string{"a0=a:{}", "b1=b:{}",
				"c2=Tool call limits exceeded: run limit (2/2). The call was not run; do not make it again."}},
		"an end with another tool pending (LM-8)": {agent.Limits{ModelCalls: 9, Tools: tools(agent.ExitEnd, 1)},
			[]any{ask("a", "b")}, 1, 0, "", "other tool calls of the same answer are pending", nil},
		"an end with nothing pending": {agent.Limits{ModelCalls: 9, Tools: tools(agent.ExitEnd, 1)},
			[]any{ask("a"), ask("b")}, 2, 1, "Tool call limits exceeded: run limit (1/1)", "", nil},
		"an error of tools": {agent.Limits{ModelCalls: 9, Tools: tools(agent.ExitError, 1)},
			[]any{ask("a", "b")}, 1, 0, "", "Tool call limits exceeded: run limit (1/1)", nil},
		"a limit of one tool": {agent.Limits{ModelCalls: 9,
			Tools: agent.ToolLimits{ByTool: map[string]agent.Limit{"a": {Run: num(1)}}}},
			[]any{ask("a", "b", "a"), "done"}, 2, 2, "done", "",
			[]string{"a0=a:{}", "b1=b:{}",
				"a2=Tool call limits exceeded: a: run limit (1/1). The call was not run; do not make it again."}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.specs["helper"].Limits = r.limits
			w.tool, w.model = echoTool, script(r.answers...)
			c := w.run(w.call(hello))
			require.Equal(t, r.models, w.models)
			require.Len(t, w.ran, r.tools)
			if r.fault != "" {
				require.Equal(t, messages.LimitExceeded, c.Fault.Code)
				require.Contains(t, c.Fault.Message, r.fault)
				return
			}
			require.Equal(t, r.text, said(t, c))
			if r.results != nil {
				require.Equal(t, r.results, results(w.seen[len(w.seen)-1]))
			}
		})
	}
}

func TestALimitOfAThreadCountsOverTheRunsOfASession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.specs["helper"].Limits.Tools = agent.ToolLimits{Limit: agent.Limit{Run: num(2), Thread: num(3)}}
	w.tool = echoTool
	w.model = func(_ int, request []byte) any {
		if msgs := chat.Messages(request); msgs[len(msgs)-1].Role() != "user" {
			return "done"
		}
		return []wanted{{"a", "x", "1"}, {"b", "x", "2"}}
	}
	for range 2 {
		c := w.call(hello)
		c.Session = "s"
		require.Equal(t, "done", said(t, w.run(c)))
	}
	require.Len(t, w.ran, 3)
	require.Contains(t, results(w.seen[len(w.seen)-1])[3], "thread limit (3/3)", "LM-3 for tools")
	both := agent.ToolLimits{Limit: agent.Limit{Run: num(1), Thread: num(1)}}
	require.Equal(t, []string{"Tool call limits exceeded: thread limit (1/1), run limit (1/1)"},
		both.Admit([]string{"x"}, agent.Counts{"y": 1}, agent.Counts{"z": 1}), "LM-3")
}

// Many runs of one session at once take no more than the session has.
func TestRunsOfOneSessionTakeTheirCallsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := agent.Log{Store: &w.store}
	limits := agent.ToolLimits{Limit: agent.Limit{Thread: num(10)}}
	var all sync.WaitGroup
	var mu sync.Mutex
	admitted := 0
	for i := range 20 {
		all.Go(func() {
			for range 2 { // a process that went on for another asks again
				before, err := log.Reserve(t.Context(), "t", "s", fmt.Sprint("run", i), 1, []string{"x"}, limits, nil)
				if err != nil {
					t.Error(err)
				}
				if limits.Admit([]string{"x"}, nil, before)[0] == "" {
					mu.Lock()
					admitted++
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, 20, admitted, "ten runs, each asked twice")
}

func TestALimitWithoutANumberIsRefused(t *testing.T) {
	t.Parallel()
	for want, l := range map[string]agent.Limits{
		"neither a run limit nor a thread limit": {Tools: agent.ToolLimits{ByTool: map[string]agent.Limit{"a": {}}}},
		`not "later"`:                            {Exit: "later"},
		`not "continue"`:                         {Exit: "continue"},
		"below 0":                                {ModelCalls: -1},
	} {
		require.ErrorContains(t, (&agent.Spec{Name: "a", Limits: l}).Validate(), want, "LM-9")
	}
}

func TestSubAgentsInheritWhatTheRunHasLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.specs["helper"].Tools = []string{"agent/helper"}
	w.specs["helper"].Limits = agent.Limits{ModelCalls: 9, Tools: agent.ToolLimits{Limit: agent.Limit{Run: num(100)}}}
	w.model = func(int, []byte) any {
		return []wanted{{"a", "agent_helper", `{"task":"again"}`}, {"b", "agent_helper", `{"task":"again"}`}}
	}
	c := w.run(w.call(hello))
	require.Contains(t, said(t, c), "Model call limits exceeded")
	require.LessOrEqual(t, w.models, 9, "whatever the agents say")
	require.Greater(t, w.models, 3)
}

func TestAgentsDelegateOnlySoDeep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.specs["helper"].Tools = []string{"agent/helper"}
	w.specs["helper"].Limits = agent.Limits{ModelCalls: 1000}
	w.model = func(_ int, request []byte) any {
		if r := results(request); len(r) > 0 {
			return r[0]
		}
		return []wanted{{"a", "agent_helper", `{"task":"deeper"}`}}
	}
	require.Contains(t, said(t, w.run(w.call(hello))), "delegate to each other 5 deep")
	require.Equal(t, 2*agent.MaxDepth, w.models)
}

// Sub-agents that begin at once share what the run has left, of tokens and of money too.
func TestWhatIsLeftOfTokensAndMoneyIsShared(t *testing.T) {
	t.Parallel()
	limits := agent.Limits{ModelCalls: 9, Tokens: micro(100), Micros: micro(50)}
	s := agent.State{Start: agent.Start{Spec: agent.Spec{Limits: limits}}}
	s.Spent.Usage = agent.Usage{Total: 40, Micros: 60}
	left := s.Left(agent.Limits{ModelCalls: 2, Tokens: micro(20)}, 2)
	require.EqualValues(t, 20, *left.Tokens, "its own is less")
	require.EqualValues(t, 0, *left.Micros, "nothing is left")
	require.EqualValues(t, 30, *s.Left(agent.Limits{ModelCalls: 2}, 2).Tokens)
	free := agent.State{Start: agent.Start{Spec: agent.Spec{Limits: agent.Limits{ModelCalls: 9}}}}
	require.Nil(t, free.Left(agent.Limits{ModelCalls: 2}, 1).Tokens)
}

// buyer is a stage that has a model asked before each call of its kind.
func buyer(kind messages.Kind) pipeline.Stage {
	target := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		c.SetReply(wants(c.ID, nil))
		return nil
	})
	return pipeline.Stage{Name: "buyer", Kind: kind, Order: 20,
		Before: func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
			var all sync.WaitGroup
			for range 2 {
				child := messages.NewCall(messages.Model, c.Tenant, []byte(`{"model":"cheap","messages":[]}`))
				all.Go(func() { _, _ = pipeline.Chain(nil, target).Call(ctx, child) })
			}
			all.Wait()
			return pipeline.Continue(), nil
		}}
}

// What stages buy for a run counts for its limits, whichever of its calls they buy it for.
func TestWhatStagesBuyCountsForTheRun(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]struct {
		kind   messages.Kind
		limits agent.Limits
		models int // of the run itself
		text   string
	}{
		"for a model call":    {messages.Model, agent.Limits{ModelCalls: 6}, 2, "run limit (6/6)"},
		"for a tool call":     {messages.Tool, agent.Limits{ModelCalls: 6}, 2, "run limit (6/6)"},
		"for the run":         {messages.Agent, agent.Limits{ModelCalls: 5}, 3, "run limit (5/5)"},
		"with its tokens":     {messages.Model, agent.Limits{ModelCalls: 99, Tokens: micro(18)}, 2, "run limit (18/18)"},
		"with what it cost":   {messages.Model, agent.Limits{ModelCalls: 99, Micros: micro(4200)}, 2, "(0.0042/0.0042 USD)"},
		"and no other limits": {messages.Model, agent.Limits{ModelCalls: 99}, 4, "done"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.register(buyer(r.kind))
			w.specs["helper"].Limits = r.limits
			w.tool = echoTool
			w.model = script([]wanted{{"a", "a", "1"}}, []wanted{{"b", "a", "2"}}, []wanted{{"c", "a", "3"}}, "done")
			c := w.call(hello)
			c.Run = c.ID
			require.Contains(t, said(t, w.run(c)), r.text)
			require.Equal(t, r.models, w.models)
		})
	}
}

// A provider that does not say what a call has used is not free, and one that gives no sum has one.
func TestTokensAreCountedWhateverAProviderSays(t *testing.T) {
	t.Parallel()
	for reply, total := range map[string]int64{
		`{"usage":{"prompt_tokens":2,"completion_tokens":3}}`: 5,
		`{"usage":{"total_tokens":9}}`:                        9,
		`{"choices":[{"index":0}],"usage":{}}`:                int64(len(hello)/4 + 9),
	} {
		c := messages.NewCall(messages.Model, "t", []byte(hello))
		c.SetReply([]byte(reply))
		c.Note(messages.NoteExecutorReached, true)
		got := pipeline.BoughtBy(c)
		require.Equal(t, total, got.Total, reply)
		require.Equal(t, strings.Contains(reply, "{}"), got.Estimated, reply)
	}
}
