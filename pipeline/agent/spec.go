// Package agent runs agents: a model is asked, the tools that it asks for are called, and their results go back to it,
// until it answers. What is to be done next is decided by [State], which is pure; [Loop] carries it out as the target
// of calls of kind agent.
//
// A run is a list of records, one for each finished step. Each is stored before the next step begins, and the first
// record of a step counts. So a run has no process: whoever owns its call reads the records, finds what is next, and
// attaches to the calls that are under way for it.
package agent

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// Spec is an agent: what its runs are made of.
type Spec struct {
	Name         string `json:"name"`
	Description  string `json:"description,omitempty"` // what other agents read before they delegate to it
	Instructions string `json:"instructions,omitempty"`
	Model        string `json:"model,omitempty"`
	// Tools are patterns of the tools that the agent may call; agent/<name> stands for another agent.
	Tools []string `json:"-"`
	// Stages are the optional stages of its model calls; nil: those of all model calls.
	Stages       []string        `json:"stages,omitempty"`
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	Limits       Limits          `json:"limits"`
	// Rules say how updates of the run's state by stages are merged, by key; a key without one is replaced.
	Rules map[string]Rule `json:"rules,omitempty"`
}

// Tool is a tool as a run offers it to its model.
type Tool struct {
	Name string `json:"name"`
	// As is the name by which the model knows it, where that is another one.
	As string `json:"as,omitempty"`
	// Agent is the agent that the tool stands for; empty for a plain tool.
	Agent      string          `json:"agent,omitempty"`
	Definition json.RawMessage `json:"definition"` // as the request to the model has it
}

// The behaviours of a limit that is reached.
const (
	ExitEnd      = "end"      // the run ends with a message that says so
	ExitError    = "error"    // the run fails
	ExitContinue = "continue" // of tools: the model reads an error as the result
)

// Defaults of an agent that has no limits of its own.
const (
	DefaultModelCalls = 50
	DefaultToolCalls  = 200
	// MaxDepth is how deep agents may delegate to each other.
	MaxDepth = 5
)

// Limits bound one run, the runs of its sub-agents included.
type Limits struct {
	ModelCalls int    `json:"model_calls"` // 0: none at all
	Exit       string `json:"exit,omitempty"`
	// Tokens and Micros, which is money in millionths of a US dollar, bound what model calls use. A run that has used so
	// much asks no model any more; nil is no limit.
	Tokens *int64 `json:"tokens,omitempty"`
	Micros *int64 `json:"micro_usd,omitempty"`
	// Tools bound the tool calls; their Exit may be continue.
	Tools ToolLimits `json:"tools"`
}

// Limit is a bound on a run and on a thread (a session). Nil is no limit; 0 allows nothing.
type Limit struct {
	Run    *int `json:"run,omitempty"`
	Thread *int `json:"thread,omitempty"`
}

// ToolLimits are the limits of all tool calls together, and of single tools.
type ToolLimits struct {
	Limit
	Exit   string           `json:"exit,omitempty"`
	ByTool map[string]Limit `json:"by_tool,omitempty"`
}

// Threads reports whether some limit counts over a whole session.
func (l ToolLimits) Threads() bool {
	for _, t := range l.ByTool {
		if t.Thread != nil {
			return true
		}
	}
	return l.Thread != nil
}

// Validate refuses an agent that could not run.
func (s *Spec) Validate() error {
	switch {
	case s.Name == "":
		return fmt.Errorf("an agent needs a name")
	case s.Limits.ModelCalls < 0:
		return fmt.Errorf("agent %s: limits.model-calls is below 0", s.Name)
	case s.Limits.Tokens != nil && *s.Limits.Tokens < 0, s.Limits.Micros != nil && *s.Limits.Micros < 0:
		return fmt.Errorf("agent %s: a limit of tokens or money is below 0", s.Name)
	case s.Limits.Exit != "" && s.Limits.Exit != ExitEnd && s.Limits.Exit != ExitError:
		return fmt.Errorf("agent %s: at its limit of model calls a run can %s or %s, not %q", s.Name, ExitEnd, ExitError,
			s.Limits.Exit)
	}
	switch s.Limits.Tools.Exit {
	case "", ExitEnd, ExitError, ExitContinue:
	default:
		return fmt.Errorf("agent %s: at its limit of tool calls a run can %s, %s or %s, not %q", s.Name, ExitContinue,
			ExitEnd, ExitError, s.Limits.Tools.Exit)
	}
	for name, l := range s.Limits.Tools.ByTool {
		if l.Run == nil && l.Thread == nil {
			return fmt.Errorf("agent %s: the limit of tool %s has neither a run limit nor a thread limit", s.Name, name)
		}
	}
	for key, r := range s.Rules {
		if r != Append && r != Replace {
			return fmt.Errorf("agent %s: state key %s: rule %q; known: %s, %s", s.Name, key, r, Append, Replace)
		}
	}
	return nil
}

// agentTool stands before an agent's name where a tool is meant: in the patterns of tools, and in the name by which a
// model calls it, where no slash may stand.
const (
	agentTool     = "agent/"
	agentToolName = "agent_"
)

// NewTool returns a tool as a run offers it. The name agent/<name> stands for an agent, which gets its task as text;
// parameters are a JSON Schema, empty: any.
func NewTool(name, description string, parameters json.RawMessage) Tool {
	t := Tool{Name: name}
	if sub, ok := strings.CutPrefix(name, agentTool); ok {
		t.Agent, t.Name = sub, agentToolName+sub
		parameters = json.RawMessage(`{"type":"object","properties":{"task":{"type":"string","description":` +
			`"What the agent is to do, with all that it needs to know."}},"required":["task"],"additionalProperties":false}`)
	}
	t.As = tool.ModelName(t.Name)
	if len(parameters) == 0 {
		parameters = json.RawMessage(`{"type":"object"}`)
	}
	function := struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters"`
	}{t.As, description, parameters}
	t.Definition = rawjson.Encode(map[string]any{"type": "function", "function": function})
	if t.As == t.Name {
		t.As = ""
	}
	return t
}
