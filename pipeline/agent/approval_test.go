package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/agent"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/approval"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
	"github.com/shallot-nats/shallot/stages"
)

// registry has the tools of these tests.
type registry map[string]*tool.Definition

func (r registry) Get(_ context.Context, name string) (*tool.Definition, error) {
	name, _, _ = strings.Cut(name, "@")
	if d := r[name]; d != nil {
		return d, nil
	}
	return nil, messages.NewFault(messages.ToolNotFound, "no tool %s", name)
}

func definition(name string) *tool.Definition {
	return &tool.Definition{Name: name, Version: "1", Source: tool.Operator,
		Executor:    tool.Executor{Kind: tool.ExecGo, Name: name},
		InputSchema: tool.JSON(`{"type":"object","properties":{"amount":{"type":"integer"}},"required":["amount"]}`)}
}

// asking is a world in which payments above 10 need a yes, and those above 1000 another one.
type asking struct {
	*world
	desk *stages.ApprovalDesk
	c    *messages.Call
}

func newAsking(t *testing.T, decisions ...string) *asking {
	w := newWorld(t)
	w.tool = echoTool
	w.specs["helper"].Tools = []string{"pay", "look"}
	desk, err := stages.NewApprovalDesk(&stages.ApprovalConfig{Policies: []approval.Policy{
		{Name: "big", Tool: "pay", When: "args.amount > 1000"},
		{Name: "some", Tool: "pay", When: "args.amount > 10", Decisions: decisions},
	}}, stages.Deps{Tools: registry{"pay": definition("pay"), "look": definition("look")}, Parser: &args.Parser{}})
	require.NoError(t, err)
	w.judge = desk
	return &asking{world: w, desk: desk, c: w.call(hello)}
}

// step runs the target once, as the bus does, in a process that knows nothing of the run. It returns the question if
// the run waits.
func (a *asking) step(notes messages.Notes) (*agent.Question, *messages.Call) {
	a.t.Helper()
	c := a.c.Clone()
	c.Notes = notes
	pipeline.Start(c)
	next := pipeline.RunTarget(a.t.Context(), a.loop(), c, func([]byte) error { return nil })
	if next.Where != pipeline.ToHold {
		return nil, c
	}
	var q agent.Question
	require.NoError(a.t, json.Unmarshal(next.Question, &q))
	return &q, c
}

// answer takes an answer to a question, as the process does that somebody sends it to.
func (a *asking) answer(q *agent.Question, answer string) (ruling json.RawMessage, open, warn []string, err error) {
	ruling, partly, open, warn, err := agent.TakeAnswer(a.t.Context(), rawjson.Encode(q), json.RawMessage(answer), "ann",
		a.desk.Decide)
	if partly != nil {
		q.Decided = nil
		require.NoError(a.t, json.Unmarshal(partly, q))
	}
	return ruling, open, warn, err
}

// decide answers all that is asked, and lets the run go on.
func (a *asking) decide(q *agent.Question, answer string) (*agent.Question, *messages.Call) {
	a.t.Helper()
	ruling, open, _, err := a.answer(q, answer)
	require.NoError(a.t, err)
	require.Empty(a.t, open)
	return a.step(messages.Notes{messages.NoteAnswer: ruling})
}

func pay(id string, amount int) wanted {
	return wanted{id, "pay", fmt.Sprintf(`{"amount":%d}`, amount)}
}

func TestABatchWaitsForAPerson(t *testing.T) {
	t.Parallel()
	look := wanted{"l", "look", `{"amount":"7"}`}

	t.Run("nothing of it runs before, and what needs no yes is shown as such (HI-1, HI-11)", func(t *testing.T) {
		t.Parallel()
		a := newAsking(t)
		a.model = script([]wanted{pay("p", 50), look, pay("q", 5)}, "done")
		q, _ := a.step(nil)
		require.Empty(t, a.ran)
		require.Len(t, q.Calls, 3)
		require.False(t, q.Calls[0].Auto)
		require.Equal(t, "some", q.Calls[0].Question.Policy)
		require.True(t, q.Calls[1].Auto)
		require.Equal(t, `{"amount":7}`, string(q.Calls[1].Arguments), "the arguments as the tool gets them")
		require.True(t, q.Calls[2].Auto)
		again, _ := a.step(nil)
		require.Equal(t, q, again, "a process that takes the run up again asks the same")
		require.Equal(t, 1, a.models)
	})
	t.Run("approved, it runs once with the arguments that were shown (HI-2)", func(t *testing.T) {
		t.Parallel()
		a := newAsking(t)
		a.model = script([]wanted{pay("p", 50), look}, "done")
		q, _ := a.step(nil)
		_, c := a.decide(q, `{"decision":"approve"}`)
		require.Equal(t, "done", said(t, c))
		require.ElementsMatch(t, []string{`pay{"amount":50}`, `look{"amount":7}`}, a.ran)
		require.Equal(t, []string{`p=pay:{"amount":50}`, `l=look:{"amount":7}`}, results(a.seen[1]))
	})
	t.Run("edited, it runs once with the new arguments, which stand everywhere (HI-3)", func(t *testing.T) {
		t.Parallel()
		a := newAsking(t)
		a.model = script([]wanted{pay("p", 50)}, "done")
		q, _ := a.step(nil)
		_, _, _, err := a.answer(q, `{"decision":"edit","arguments":{"amount":"many"}}`)
		require.Equal(t, messages.InvalidArguments, messages.AsFault(err, "").Code, "they are validated again")
		_, c := a.decide(q, `{"decision":"edit","arguments":{"amount":20}}`)
		require.Equal(t, "done", said(t, c))
		require.Equal(t, []string{`pay{"amount":20}`}, a.ran)
		calls := chat.Messages(a.seen[1])[1].ToolCalls()
		require.Equal(t, "p", calls[0].ID())
		require.Equal(t, `{"amount":20}`, calls[0].Arguments())
	})
	t.Run("edited into something that another policy is about, it is asked again (SE-4)", func(t *testing.T) {
		t.Parallel()
		a := newAsking(t)
		a.model = script([]wanted{pay("p", 50)}, "done")
		q, _ := a.step(nil)
		q, _ = a.decide(q, `{"decision":"edit","arguments":{"amount":5000}}`)
		require.NotNil(t, q)
		require.Equal(t, "big", q.Calls[0].Question.Policy)
		require.Empty(t, a.ran)
		_, c := a.decide(q, `{"decision":"approve"}`)
		require.Equal(t, "done", said(t, c))
		require.Equal(t, []string{`pay{"amount":5000}`}, a.ran)
	})
	t.Run("rejected, it does not run, and the model reads why (HI-4)", func(t *testing.T) {
		t.Parallel()
		a := newAsking(t)
		a.model = script([]wanted{pay("p", 50)}, "I see")
		q, _ := a.step(nil)
		_, c := a.decide(q, `{"decision":"reject","reason":"too much"}`)
		require.Equal(t, "I see", said(t, c))
		require.Empty(t, a.ran)
		require.Equal(t, []string{"p=The call of 'pay' was rejected by ann and was not run. Reason: too much"},
			results(a.seen[1]))
	})
	t.Run("answered by a person, it does not run either", func(t *testing.T) {
		t.Parallel()
		a := newAsking(t)
		a.model = script([]wanted{pay("p", 50)}, "I see")
		q, _ := a.step(nil)
		a.decide(q, `{"decision":"respond","content":"paid by hand"}`)
		require.Empty(t, a.ran)
		require.Equal(t, []string{"p=paid by hand"}, results(a.seen[1]))
	})
	t.Run("two approved and one rejected, each has one result, in the order of the calls (HI-5)", func(t *testing.T) {
		t.Parallel()
		a := newAsking(t)
		a.model = script([]wanted{pay("p", 50), pay("q", 60), pay("r", 70)}, "done")
		q, _ := a.step(nil)
		a.decide(q, `{"decisions":{"r":{"decision":"approve"},"p":{"decision":"approve"},"q":{"decision":"reject"}}}`)
		require.ElementsMatch(t, []string{`pay{"amount":50}`, `pay{"amount":70}`}, a.ran)
		require.Equal(t, []string{`p=pay:{"amount":50}`, "q=The call of 'pay' was rejected by ann and was not run.",
			`r=pay:{"amount":70}`},
			results(a.seen[1]))
	})
}

func TestDecisionsThatDoNotEndTheWait(t *testing.T) {
	t.Parallel()
	a := newAsking(t, approval.Approve, approval.Edit)
	a.model = script([]wanted{pay("p", 50), pay("q", 50)}, "done")
	q, _ := a.step(nil)
	_, _, _, err := a.answer(q, `{"decision":"approve"}`)
	require.ErrorContains(t, err, "p, q", "which of the two is meant must be said")
	ruling, open, _, err := a.answer(q, `{"id":"p","decision":"approve"}`)
	require.NoError(t, err)
	require.Nil(t, ruling)
	require.Equal(t, []string{"q"}, open, "it waits on and says which id is open (HI-6)")
	_, _, _, err = a.answer(q, `{"id":"p","decision":"approve"}`)
	require.Equal(t, messages.Conflict, messages.AsFault(err, "").Code)
	require.ErrorContains(t, err, "ann")
	_, open, warn, err := a.answer(q, `{"id":"zz","decision":"approve"}`)
	require.NoError(t, err)
	require.Equal(t, []string{"zz"}, warn, "an unknown id is ignored with a warning (HI-7)")
	require.Equal(t, []string{"q"}, open)
	_, _, _, err = a.answer(q, `{"decision":"reject"}`)
	require.ErrorContains(t, err, "allowed: approve, edit", "HI-8")
	for _, nothing := range []string{`null`, `{"decision":null}`} {
		ruling, open, _, err = a.answer(q, nothing)
		require.NoError(t, err)
		require.Nil(t, ruling)
		require.Equal(t, []string{"q"}, open, "null decides nothing (HI-10)")
	}
	_, c := a.decide(q, `{"decision":"approve"}`)
	require.Equal(t, "done", said(t, c))
	require.Len(t, a.ran, 2)
}

func TestARunGoesOnWhereItWaitedAfterARestart(t *testing.T) {
	t.Parallel()
	a := newAsking(t)
	before := 0
	a.register(agent.Hook{Name: "h", Order: 10, BeforeModel: func(context.Context, *messages.Call) (agent.Change, error) {
		before++
		return agent.Change{}, nil
	}}.Stages()...)
	a.model = script([]wanted{pay("p", 50)}, "done")
	q, _ := a.step(nil)
	ruling, _, _, err := a.answer(q, `{"decision":"approve"}`)
	require.NoError(t, err)
	for range 3 { // the answer may come to several processes, one after the other
		_, c := a.step(messages.Notes{messages.NoteAnswer: ruling})
		require.Equal(t, "done", said(t, c))
	}
	require.Equal(t, 2, before, "HI-12: what was done before is not done again")
	require.Len(t, a.ran, 1)
}

func TestWhatNobodyDecidesInTimeCountsAsRejected(t *testing.T) {
	t.Parallel()
	a := newAsking(t)
	a.model = script([]wanted{pay("p", 50)}, []wanted{pay("q", 60)}, "done")
	q, _ := a.step(nil)
	late := rawjson.Encode(pipeline.Unanswered{Question: rawjson.Encode(q),
		Fault: messages.NewFault(messages.Blocked, "over")})
	notes := messages.Notes{messages.NoteUnanswered: late}
	q, _ = a.step(notes)
	require.NotNil(t, q, "it is about the first question alone")
	require.Equal(t, "q", q.Calls[0].ID)
	require.Contains(t, results(a.seen[1])[0], "nobody decided in time")
	again, _ := a.step(notes)
	require.Equal(t, q, again)
}

func TestASubAgentsQuestionIsItsRunsQuestion(t *testing.T) {
	t.Parallel()
	a := newAsking(t)
	a.specs["helper"].Tools = []string{"agent/payer", "look"}
	a.specs["payer"] = &agent.Spec{Name: "payer", Model: "m2", Tools: []string{"pay"}, Limits: agent.Limits{ModelCalls: 5}}
	a.model = func(_ int, request []byte) any {
		n := len(results(request))
		switch sub := chat.ModelName(request) == "m2"; {
		case sub && n == 0:
			return []wanted{pay("p", 50)}
		case sub:
			return "paid"
		case n == 0:
			return []wanted{{"x", "agent_payer", `{"task":"pay"}`}, {"y", "agent_payer", `{"task":"pay"}`},
				{"l", "look", `{"amount":1}`}}
		}
		return "done"
	}
	asked := 0
	q, c := a.step(nil)
	for ; q != nil; q, c = a.decide(q, `{"decision":"approve"}`) {
		asked++
		require.Equal(t, "payer", q.Agent)
	}
	require.Equal(t, 2, asked)
	require.Equal(t, "done", said(t, c))
	require.Equal(t, []string{"x=paid", "y=paid", `l=look:{"amount":1}`}, results(a.seen[len(a.seen)-1]))
	require.Len(t, a.ran, 3)
	require.Equal(t, 6, a.models)

	records, err := agent.Log{Store: &a.store}.Read(t.Context(), "default", c.ID, 0)
	require.NoError(t, err)
	f := agent.NewFollower(c.ID, agent.Mark{Step: -1})
	told := 0
	for _, r := range records {
		for _, e := range f.Record(r) {
			if e.Type == agent.AskedFor {
				told++
				require.Contains(t, string(e.Data), `"run":"`+c.ID+`","agent":"payer"`)
			}
		}
	}
	require.Equal(t, 2, told, "who follows the run is told each question once")
}
