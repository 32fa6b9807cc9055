package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/agent"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

func TestARunAsksItsModelUntilItAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.specs["helper"].Instructions = "Be brief."
	w.specs["helper"].Tools = []string{"add", "sub"}
	w.tool = echoTool
	w.model = script([]wanted{{"a", "add", `{"x":1}`}, {"b", "sub", `{"y":2}`}}, "three")
	c := w.run(w.call(`{"model":"agent/helper","temperature":0.5,"messages":[{"role":"user","content":"hello"}]}`))
	require.Equal(t, "three", said(t, c))
	require.JSONEq(t, `{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}`, string(field(c.Reply(), "usage")))
	require.Equal(t, []string{`a=add:{"x":1}`, `b=sub:{"y":2}`}, results(w.seen[1]))
	first, second := string(w.seen[0]), string(w.seen[1])
	require.Contains(t, first, `"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"hello"}]`)
	require.Contains(t, first, `"temperature":0.5`)
	require.Contains(t, first, `"name":"add"`)
	prefix := first[:strings.Index(first, `"}],"tools"`)]
	require.True(t, strings.HasPrefix(second, prefix),
		"the beginning of a prompt does not change, for the provider's cache")
}

func field(raw []byte, key string) []byte {
	var all map[string]json.RawMessage
	_ = json.Unmarshal(raw, &all)
	return all[key]
}

// A process that dies anywhere loses nothing: the next one goes on, makes no finished call again, and ends the same.
func TestARunGoesOnAfterEachPointAtWhichItsProcessCanDie(t *testing.T) {
	t.Parallel()
	for point := 1; ; point++ {
		w := newWorld(t)
		w.specs["helper"].Tools = []string{"add", "agent/sub"}
		w.specs["sub"] = &agent.Spec{Name: "sub", Model: "m2", Limits: agent.Limits{ModelCalls: 5}}
		w.tool = echoTool
		w.model = func(n int, request []byte) any {
			switch tools := len(results(request)); {
			case strings.Contains(string(request), `"m2"`):
				return "sub says"
			case tools == 0:
				return []wanted{{"a", "add", `{"x":1}`}, {"b", "agent_sub", `{"task":"do"}`}}
			case tools == 2:
				return []wanted{{"a", "add", `{"x":2}`}}
			}
			return "done"
		}
		at, died := 0, false
		w.crash = func(string) error {
			w.showing.Lock()
			defer w.showing.Unlock()
			if at++; at >= point {
				died = true
				return messages.NewFault(messages.Internal, "%v", errCrash)
			}
			return nil
		}
		c := w.call(hello)
		c.Session = "s"
		end, err := w.through(c.Clone())
		if !died {
			require.Greater(t, point, 8, "there were points to die at")
			return
		}
		require.True(t, err != nil || end.Fault != nil)
		w.crash = nil
		end = w.run(c)
		require.Equal(t, "done", said(t, end), "died at point %d", point)
		require.Equal(t, 4, w.models, "each model call was made once, died at point %d", point)
		require.Len(t, w.ran, 2)
		history, runs, err := agent.Log{Store: &w.store}.History(t.Context(), "default", "s", "helper", -1)
		require.NoError(t, err)
		require.Equal(t, 1, runs)
		require.Len(t, history, 7)
	}
}

func TestAFaultOfTheModelEndsTheRunAndOneOfAToolIsRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.specs["helper"].Tools = []string{"add"}
	w.tool = func(string, string) (string, error) {
		return "", messages.NewFault(messages.Stopped, "stage gate stopped the call").From("gate")
	}
	w.model = script([]wanted{{"a", "add", `{}`}}, errors.New("boom"))
	c := w.run(w.call(hello))
	require.Equal(t, messages.Internal, c.Fault.Code)
	require.Contains(t, results(w.seen[1])[0], `"stage":"gate"`)

	w = newWorld(t)
	w.register(pipeline.Stage{Name: "gate", Kind: messages.Model, Order: 20,
		Before: func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Stop(), nil }})
	require.Equal(t, messages.Stopped, w.run(w.call(hello)).Fault.Code, "a stopped model call ends the run as stopped")
}

func TestAnAnswerThatDoesNotFitIsAskedForAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.specs["helper"].OutputSchema = json.RawMessage(`{"type":"object"}`)
	w.fits = func(_ json.RawMessage, text string) string {
		if json.Valid([]byte(text)) {
			return ""
		}
		return "it is not JSON"
	}
	w.model = script("no", `{"a":1}`)
	require.Equal(t, `{"a":1}`, said(t, w.run(w.call(hello))))
	require.Contains(t, string(w.seen[1]), "it is not JSON")
	require.Contains(t, string(w.seen[0]), `"response_format"`)
	w.model, w.models = func(int, []byte) any { return "no" }, 0
	c := w.run(w.call(hello))
	require.Equal(t, messages.ProviderBadReply, c.Fault.Code)
	require.Equal(t, 3, w.models)
}

func TestAModelMayCallOnlyWhatItWasOffered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.specs["helper"].Tools = []string{"files.read"}
	w.tool = echoTool
	w.register(pipeline.Stage{Name: "giver", Kind: messages.Model, Order: 20,
		Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			c.Note(messages.NoteStageTools, map[string]string{"given": "giver"})
			return pipeline.Continue(), nil
		}})
	as := tool.ModelName("files.read")
	w.model = script([]wanted{{"a", as, `1`}, {"b", "given", `2`}, {"c", "drop", `3`}, {"d", "files.read", `4`}}, "ok")
	w.run(w.call(hello))
	require.Contains(t, string(w.seen[0]), as)
	require.ElementsMatch(t, []string{"files.read1", "given2"}, w.ran)
	require.Equal(t, "c=There is no tool 'drop' here; call one of those that you were offered.", results(w.seen[1])[2])
}

func TestToolCallsWithoutIdsOrWithTheSameOneEachGetAResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.specs["helper"].Tools = []string{"add"}
	w.tool = echoTool
	w.model = script([]wanted{{"a", "add", `1`}, {"a", "add", `2`}, {"", "add", `3`}}, "ok")
	w.run(w.call(hello))
	require.Equal(t, []string{"a=add:1", "call_2_1=add:2", "call_2_2=add:3"}, results(w.seen[1]))
}
