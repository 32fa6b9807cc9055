package agents

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

// onceModel is the way of hooks round one model call, wholeRun that of a run with one round of tools.
const (
	onceModel = "h1.beforeModel h2.beforeModel h2.afterModel h1.afterModel"
	wholeRun  = "h1.before h2.before " + onceModel + " tool " + onceModel + " h2.after h1.after"
)

// runRow is a run and what comes of it. Its first words tell the hooks and the model what to do.
type runRow struct {
	agent, says string
	brings      string // messages that the caller sends behind
	text, fault string // the end of the answer, or what is in the fault
	trace       string // of hooks and tools; empty: not looked at
	models      int
	tools       int
}

const asks = `,{"role":"assistant","content":null,"tool_calls":[{"id":"z","type":"function","function":` +
	`{"name":"look","arguments":"{}"}}]}`

var runRows = map[string]runRow{
	"hooks run in order and back in reverse (HK-1, HK-2)": {says: "go", text: "done", models: 2, tools: 1,
		trace: wholeRun},
	"a jump to the end before the model (HK-6)": {says: "h2.beforeModel jump end",
		trace: "h1.before h2.before h1.beforeModel h2.beforeModel h1.afterModel h2.after h1.after"},
	"a jump to the model with open tool calls (HK-7)": {says: "h2.afterModel jump model", text: "done", models: 2,
		trace: "h1.before h2.before " + onceModel + " " + onceModel + " h2.after h1.after"},
	"a jump to the tools before the model (HK-8)": {says: "h2.beforeModel jump tool", brings: asks, text: "done",
		models: 1, tools: 1},
	"a jump that is not declared (HK-9)": {says: "h1.beforeModel jump model", fault: "[end]"},
	"a jump to nowhere (HK-11)":          {says: "h1.beforeModel jump foo", fault: `"foo"`},
	"each key by its rule (HK-12)": {says: "set", text: "done", models: 2, tools: 1, trace: strings.Replace(wholeRun,
		"tool h1.beforeModel h2.beforeModel", `tool h1.beforeModel {"last":"h1","log":["h2","h1"]} h2.beforeModel `+
			`{"last":"h1","log":["h2","h1"]}`, 1)},
	"a hook before the run that fails (HK-15)": {says: "h2.before fail", fault: "as it was told",
		trace: "h1.before h2.before h1.after"},
	"a limit of two model calls (LM-1)": {agent: "two", says: "always",
		text: "Model call limits exceeded: run limit (2/2)", models: 2, tools: 2},
	"the same as an error (LM-2)": {agent: "two-or-fail", says: "always", fault: "run limit (2/2)", models: 2, tools: 2},
	"a limit of none (LM-5)":      {agent: "none", says: "always", text: "run limit (0/0)"},
	"three tools at once with two allowed, which continues (LM-7)": {agent: "two-tools", says: "three",
		text: "results: a b Tool call limits exceeded", models: 2, tools: 2},
	"the same with an end (LM-8)": {agent: "two-tools-or-end", says: "three", fault: "are pending", models: 1},
}

// rowModel answers by the first words of a run.
func rowModel(turn int, request []byte) ([]map[string]any, string) {
	look := func(n int) map[string]any {
		return call(string(rune('a'+n)), "look", fmt.Sprintf(`{"n":%d%d}`, turn, n))
	}
	switch say := words(request)[0]; {
	case say == "always", turn == 0 && say != "three":
		return []map[string]any{look(0)}, ""
	case turn == 0:
		return []map[string]any{look(0), look(1), look(2)}, ""
	case say == "three":
		return nil, "results: a b " + last(request).Text()
	}
	return nil, "done"
}

// onEachCarrier tries rows where one process has everything, and where each part is a process of its own.
func onEachCarrier(t *testing.T, stages string, model answersTo, try func(s *system, n *bus.Node, t *testing.T)) {
	for name, start := range map[string]func(s *system) *bus.Node{
		"one process": func(s *system) *bus.Node { return s.node(true, true) },
		"a process for each part": func(s *system) *bus.Node {
			s.hosts = "none"
			door, worker, own := s.part("door", true, false), s.part("worker", false, true), s.part("stages", false, false)
			own.Hosts = "only"
			for _, p := range []partSpec{door, worker, own} {
				launch(s.t, p)
			}
			return s.node(false, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.stages, s.model = stages, model
			try(s, start(s), t)
		})
	}
}

// answersTo is what a model says to its turn of a run.
type answersTo func(turn int, request []byte) ([]map[string]any, string)

func TestHooksAndLimitsOfRunsOnEachCarrier(t *testing.T) {
	t.Parallel()
	onEachCarrier(t, "hooks", rowModel, func(s *system, n *bus.Node, t *testing.T) {
		for name, row := range runRows {
			t.Run(name, func(t *testing.T) { s.tryRow(t, n, row) })
		}
	})
}

// begin submits a run of an agent whose user says something, with nothing left of the runs before.
func (s *system) begin(t *testing.T, n *bus.Node, agent, says, brings string) string {
	t.Helper()
	s.mu.Lock()
	clear(s.tools)
	clear(s.turns)
	s.trace = nil
	s.mu.Unlock()
	r := request()
	r.Body = []byte(`{"model":"m","messages":[{"role":"user","content":` + string(rawjson.Encode(says)) + `}` +
		brings + `]}`)
	r.Submit, r.Agent = true, cmp.Or(agent, r.Agent)
	p, err := n.Accept(t.Context(), r)
	require.NoError(t, err)
	return p.ID()
}

func (s *system) tryRow(t *testing.T, n *bus.Node, row runRow) {
	c, err := n.Result(t.Context(), "acme", s.begin(t, n, row.agent, row.says, row.brings))
	require.NoError(t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if row.fault != "" {
		require.NotNil(t, c.Fault)
		require.Contains(t, []messages.Code{messages.StageError, messages.LimitExceeded}, c.Fault.Code)
		require.Contains(t, c.Fault.Message, row.fault)
	} else {
		require.Contains(t, text(t, c), row.text)
	}
	models := 0
	for _, answers := range s.turns {
		models += len(answers)
	}
	require.Equal(t, row.models, models)
	require.Len(t, s.tools, row.tools)
	if row.trace != "" {
		require.Equal(t, row.trace, strings.Join(s.trace, " "))
	}
}
