package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/agent"
)

// trace is a hook that says where it was.
func (w *world) trace(name string, order int, to *[]string) agent.Hook {
	say := func(where string) agent.HookFunc {
		return func(context.Context, *messages.Call) (agent.Change, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			*to = append(*to, name+"."+where)
			return agent.Change{}, nil
		}
	}
	return agent.Hook{Name: name, Order: order, BeforeAgent: say("before"), AfterAgent: say("after"),
		BeforeModel: say("beforeModel"), AfterModel: say("afterModel")}
}

func TestHooksRunInOrderAndBackInReverse(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]struct {
		hooks []int
		want  string
	}{
		"one hook at all positions around one round of tools (HK-1)": {[]int{10},
			"h1.before h1.beforeModel h1.afterModel tool h1.beforeModel h1.afterModel h1.after"},
		"two hooks, at both levels (HK-2, S4-HOOK-9)": {[]int{10, 11},
			"h1.before h2.before h1.beforeModel h2.beforeModel h2.afterModel h1.afterModel tool " +
				"h1.beforeModel h2.beforeModel h2.afterModel h1.afterModel h2.after h1.after"},
		"the lower order is outermost, equal ones keep their registration (HK-3)": {[]int{15, 11, 11},
			"h2.before h3.before h1.before h2.beforeModel h3.beforeModel h1.beforeModel h1.afterModel h3.afterModel " +
				"h2.afterModel " +
				"tool h2.beforeModel h3.beforeModel h1.beforeModel h1.afterModel h3.afterModel h2.afterModel " +
				"h1.after h3.after h2.after"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var got []string
			for i, order := range r.hooks {
				w.register(w.trace("h"+string(rune('1'+i)), order, &got).Stages()...)
			}
			w.tool = func(string, string) (string, error) { got = append(got, "tool"); return "", nil }
			w.model = script([]wanted{{"a", "add", `{}`}}, "done")
			require.Equal(t, "done", said(t, w.run(w.call(hello))))
			require.Equal(t, r.want, strings.Join(got, " "))
		})
	}
}

func TestHooksAreSeenUnderTheirNamesAndPositions(t *testing.T) {
	t.Parallel()
	t.Run("only the declared position is called (HK-4)", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		var got []string
		h := w.trace("h", 10, &got)
		h.AfterModel, h.BeforeAgent, h.AfterAgent = nil, nil, nil
		w.register(h.Stages()...)
		w.model = script("done")
		w.run(w.call(hello))
		require.Equal(t, []string{"h.beforeModel"}, got)
		require.Equal(t, []string{"h.beforeModel", "model", "agent"}, w.path)
	})
	t.Run("a hook is a node of each chain under its name (HK-5, S4-HOOK-6)", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		var got []string
		w.register(w.trace("h", 10, &got).Stages()...)
		w.model = script("done")
		c := w.run(w.call(hello))
		require.Equal(t, []string{"h.before", "agent", "h.after"}, c.Slip.Path)
		require.Equal(t, []string{"h.beforeModel", "model", "h.afterModel"}, w.path[:3])
	})
	t.Run("an unknown kind is refused (HK-13, S4-HOOK-7)", func(t *testing.T) {
		t.Parallel()
		err := newWorld(t).manager.Register(pipeline.Stage{Name: "odd", Kind: "graph", Order: 10,
			Before: func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }}, true)
		require.ErrorContains(t, err, `kind "graph"`)
	})
	t.Run("a hook finds the tool that it needs by name or type, or none (HK-14, S4-TOOLINJ-1)", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.specs["helper"].Tools = []string{"add", "sub"}
		w.register(agent.Hook{Name: "h", Order: 10, BeforeModel: func(_ context.Context, c *messages.Call) (agent.Change,
			error) {
			d, ok := agent.FindTool(c.Request(), "sub", "")
			require.True(t, ok)
			require.Contains(t, string(d), `"sub"`)
			d, ok = agent.FindTool(c.Request(), "", "function")
			require.True(t, ok)
			require.Contains(t, string(d), `"add"`)
			_, ok = agent.FindTool(c.Request(), "mul", "")
			require.False(t, ok)
			return agent.Change{}, nil
		}}.Stages()...)
		w.model = script("done")
		require.Equal(t, "done", said(t, w.run(w.call(hello))))
	})
	t.Run("a before that fails ends the run, and its own after does not run (HK-15)", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		var got []string
		h := w.trace("h", 10, &got)
		h.BeforeAgent = func(context.Context, *messages.Call) (agent.Change,
			error) {
			return agent.Change{}, errors.New("no")
		}
		w.register(h.Stages()...)
		c := w.run(w.call(hello))
		require.Equal(t, messages.StageError, c.Fault.Code)
		require.Contains(t, c.Fault.Message, "no")
		require.Zero(t, w.models)
		require.Empty(t, got)
	})
}

// jumps is a hook that jumps once at one of its positions.
func jumps(position, target string, declared ...string) agent.Hook {
	done := false
	f := func(context.Context, *messages.Call) (agent.Change, error) {
		if done {
			return agent.Change{}, nil
		}
		done = true
		return agent.Change{Jump: target}, nil
	}
	h := agent.Hook{Name: "jumper", Order: 20, Jumps: declared}
	switch position {
	case "beforeAgent":
		h.BeforeAgent = f
	case "beforeModel":
		h.BeforeModel = f
	case "afterModel":
		h.AfterModel = f
	case "afterAgent":
		h.AfterAgent = f
	}
	return h
}

func TestJumps(t *testing.T) {
	t.Parallel()
	pending := `{"messages":[{"role":"user","content":"hello"},{"role":"assistant","content":null,"tool_calls":[` +
		`{"id":"z","type":"function","function":{"name":"add","arguments":"{}"}}]}]}`
	asks := []wanted{{"a", "add", `{}`}}
	for name, r := range map[string]struct {
		hook   agent.Hook
		body   string
		answer []any
		models int
		tools  int
		text   string
		code   messages.Code
		says   []string
	}{
		"to the end before the model: it is not called, the hooks after the run are (HK-6)": {
			hook: jumps("beforeModel", "end", "end"), models: 0},
		"to the end after the model: its answer is the run's, its tool calls are not made": {
			hook: jumps("afterModel", "end", "end"), answer: []any{asks}, models: 1},
		"to the model after the model: its tool calls are not made, it is called again (HK-7)": {
			hook: jumps("afterModel", "model", "model"), answer: []any{asks, "second"}, models: 2, text: "second"},
		"to the tools before the model, with the last assistant message (HK-8)": {
			hook: jumps("beforeModel", "tool", "tool"), body: pending, answer: []any{"after"}, models: 1, tools: 1,
			text: "after"},
		"to the tools before the run": {
			hook: jumps("beforeAgent", "tool", "tool"), body: pending, answer: []any{"after"}, models: 1, tools: 1,
			text: "after"},
		"to the tools where there are none to call": {
			hook: jumps("beforeModel", "tool", "tool"), code: messages.StageError, says: []string{"no assistant message"}},
		"to a target that is not declared (HK-9)": {
			hook: jumps("beforeModel", "model", "end"), code: messages.StageError, says: []string{"jumper", `"model"`, "[end]"}},
		"to a target that does not exist (HK-11)": {
			hook: jumps("beforeModel", "foo", "end"), code: messages.StageError, says: []string{`"foo"`}},
		"after the run there is only its end": {
			hook: jumps("afterAgent", "model", "model"), answer: []any{"x"}, models: 1, code: messages.StageError,
			says: []string{"jumper", "ended"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			after := 0
			w.register(agent.Hook{Name: "outer", Order: 10,
				AfterAgent: func(context.Context, *messages.Call) (agent.Change,
					error) {
					after++
					return agent.Change{}, nil
				}}.Stages()...)
			w.register(r.hook.Stages()...)
			w.tool, w.model = echoTool, script(r.answer...)
			if r.body == "" {
				r.body = hello
			}
			c := w.run(w.call(r.body))
			require.Equal(t, 1, after)
			require.Equal(t, r.models, w.models)
			require.Len(t, w.ran, r.tools)
			if r.code != "" {
				require.NotNil(t, c.Fault)
				require.Equal(t, r.code, c.Fault.Code)
				for _, word := range r.says {
					require.Contains(t, c.Fault.Message, word)
				}
				return
			}
			require.Equal(t, r.text, said(t, c))
		})
	}
}

func TestAStageThatWritesAnUnknownJumpIsNotIgnored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register(pipeline.Stage{Name: "odd", Kind: messages.Model, Order: 20,
		After: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			c.Note(messages.NoteJumpTo, "foo")
			return pipeline.Continue(), nil
		}})
	w.model = script("x")
	c := w.run(w.call(hello))
	require.Equal(t, messages.StageError, c.Fault.Code, "HK-11")
	require.Contains(t, c.Fault.Message, `"foo"`)
}

func TestUpdatesOfTheStateAreMergedByTheRuleOfTheirKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.specs["helper"].Rules = map[string]agent.Rule{"log": agent.Append}
	add := func(name string, order int) {
		w.register(agent.Hook{Name: name, Order: order, AfterModel: func(_ context.Context, c *messages.Call) (agent.Change,
			error) {
			return agent.Change{Set: map[string]json.RawMessage{"log": rawjson.Encode([]string{name}),
				"last":     rawjson.Encode(name),
				"messages": rawjson.Encode([]any{map[string]string{"role": "user", "content": "from " + name}})}}, nil
		}}.Stages()...)
	}
	add("h1", 11)
	add("h2", 12)
	var seen []map[string]json.RawMessage
	w.register(agent.Hook{Name: "reader", Order: 10,
		BeforeModel: func(_ context.Context, c *messages.Call) (agent.Change, error) {
			seen = append(seen, agent.StateOf(c))
			return agent.Change{}, nil
		}}.Stages()...)
	w.tool, w.model = echoTool, script([]wanted{{"a", "add", `{}`}}, "done")
	w.run(w.call(hello))
	require.Nil(t, seen[0])
	require.JSONEq(t, `["h2","h1"]`, string(seen[1]["log"]), "both are kept (HK-12)")
	require.JSONEq(t, `"h1"`, string(seen[1]["last"]), "the newest counts (HK-12)")
	var texts []string
	for _, m := range chat.Messages(w.seen[1]) {
		texts = append(texts, m.Role()+":"+m.Text())
	}
	require.Equal(t, []string{"user:hello", "assistant:", "tool:add:{}", "user:from h2", "user:from h1"}, texts)

	seen, w.models = nil, 0
	w.model = script("other")
	c := w.call(hello)
	c.Session = "another"
	w.run(c)
	require.Nil(t, seen[0], "another run does not see it (HK-16)")
}

func TestAHookInFrontOfTheModelAddsMessagesToCallAndRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	once := false
	w.register(agent.Hook{Name: "h", Order: 10, BeforeModel: func(context.Context, *messages.Call) (agent.Change, error) {
		if once {
			return agent.Change{}, nil
		}
		once = true
		return agent.Change{Set: map[string]json.RawMessage{"messages": json.RawMessage(`{"role":"user","content":"mind ` +
			`the gap"}`)}}, nil
	}}.Stages()...)
	w.tool, w.model = echoTool, script([]wanted{{"a", "add", `{}`}}, "done")
	w.run(w.call(hello))
	require.Len(t, chat.Messages(w.seen[0]), 2)
	require.Equal(t, "mind the gap", chat.Messages(w.seen[1])[1].Text())
	require.Equal(t, "assistant", chat.Messages(w.seen[1])[2].Role())
}
