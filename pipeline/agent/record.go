package agent

import (
	"encoding/json"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/tool/approval"
)

// Record is one finished step of a run as it is stored. Exactly one of the pointers is set.
type Record struct {
	At      time.Time `json:"at"`
	Start   *Start    `json:"start,omitempty"`
	Answer  *Answer   `json:"answer,omitempty"`
	Results []Result  `json:"results,omitempty"`
	Asked   *Asked    `json:"asked,omitempty"`
	Decided *Decided  `json:"decided,omitempty"`
	// Below is what a sub-agent's run asks: this run waits for it.
	Below *Question `json:"below,omitempty"`
	// Updates are what stages changed of the run's state in this step.
	Updates []Update `json:"updates,omitempty"`
	// Bought is what model calls have used that stages made in this step.
	Bought *Spent `json:"bought,omitempty"`
}

// Start is the first record of a run: all that later steps depend on, so that a new configuration does not tear it.
type Start struct {
	Spec     Spec              `json:"spec"`
	Tools    []Tool            `json:"tools,omitempty"`
	Messages []json.RawMessage `json:"messages"` // what the caller said
	// Params are fields of the caller's request that each model call gets, such as the temperature.
	Params json.RawMessage `json:"params,omitempty"`
	// Before is how many earlier runs of the session stand before the messages, Session how many it had by then.
	Before  int `json:"before,omitempty"`
	Session int `json:"session,omitempty"`
	// Todo is the todo list that the run works on; empty: none.
	Todo string `json:"todo,omitempty"`
	// Parent is the run whose sub-agent this is.
	Parent string `json:"parent,omitempty"`
	Depth  int    `json:"depth,omitempty"`
	// Jump is where a stage before the run had it begin: tool, or empty.
	Jump string `json:"jump,omitempty"`
}

// Answer is what came of a model call: a message or a fault, and where a stage jumped to.
type Answer struct {
	Call    string          `json:"call,omitempty"` // id of the model call
	Message json.RawMessage `json:"message,omitempty"`
	Fault   *messages.Fault `json:"fault,omitempty"`
	Jump    string          `json:"jump,omitempty"`
	// Reached says that a model was asked, or a cache in its place: the call counts.
	Reached bool  `json:"reached,omitempty"`
	Usage   Usage `json:"usage,omitzero"`
	// Misfit says why the final answer does not fit the output schema; empty if it does.
	Misfit string `json:"misfit,omitempty"`
	// Added are the tools that stages added to the model call: they may be called beside those of the run.
	Added []string `json:"added,omitempty"`
	// Thread counts the tool calls of the session before this answer, by tool, if a limit asks for them.
	Thread Counts `json:"thread,omitempty"`
}

// Usage adds up tokens.
type Usage struct {
	Prompt     int64 `json:"prompt_tokens,omitempty"`
	Completion int64 `json:"completion_tokens,omitempty"`
	Total      int64 `json:"total_tokens,omitempty"`
	// Estimated are tokens of replies that do not say how many they used. Limits count them, callers are not told them as
	// used.
	Estimated int64 `json:"estimated_tokens,omitempty"`
	// Micros is money, in millionths of a US dollar.
	Micros int64 `json:"micro_usd,omitempty"`
}

func (u Usage) plus(v Usage) Usage {
	return Usage{u.Prompt + v.Prompt, u.Completion + v.Completion, u.Total + v.Total, u.Estimated + v.Estimated,
		u.Micros + v.Micros}
}

// tokens are those that limits count.
func (u Usage) tokens() int64 { return u.Total + u.Estimated }

// Counts are numbers of calls by tool.
type Counts map[string]int

func (c Counts) total() (n int) {
	for _, k := range c {
		n += k
	}
	return n
}

// Result is what came of a tool call.
type Result struct {
	ID      string `json:"id"`             // the model's own of the tool call
	Call    string `json:"call,omitempty"` // the call that carried it out
	Content string `json:"content"`
	IsError bool   `json:"is_error,omitempty"`
	Spent   *Spent `json:"spent,omitempty"` // by a sub-agent
}

// Asked is a batch of tool calls of which some wait for a person. None of them runs before all are decided.
type Asked struct {
	Calls   []AskedCall   `json:"calls"`
	Expires time.Duration `json:"expires,omitempty"`
	// Waits is set where the run waits for another call instead, which a stage of its own holds.
	Waits string `json:"waits,omitempty"`
}

// AskedCall is one of them.
type AskedCall struct {
	ID        string          `json:"id"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	// Question is what is asked; nil: the call runs without anybody's yes, once the others are decided.
	Question *approval.Question `json:"question,omitempty"`
	Auto     bool               `json:"auto_approved,omitempty"`
}

// Decided is what became of a batch.
type Decided struct {
	Decisions map[string]approval.Decision `json:"decisions,omitempty"` // by id of the tool call
	// Fault says that nobody decided in time; what is undecided counts as rejected.
	Fault *messages.Fault `json:"fault,omitempty"`
}

// Spent is what a run has used, its sub-agents and what stages bought for it included.
type Spent struct {
	Models int    `json:"models,omitempty"`
	Tools  Counts `json:"tools,omitempty"`
	Usage  Usage  `json:"usage,omitzero"`
}

func (s *Spent) add(o Spent) {
	s.Models += o.Models
	s.Usage = s.Usage.plus(o.Usage)
	for name, n := range o.Tools {
		s.count(name, n)
	}
}

func (s *Spent) count(tool string, n int) {
	if s.Tools == nil {
		s.Tools = Counts{}
	}
	s.Tools[tool] += n
}
