package api

import (
	"context"
	"encoding/json"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Agent is an agent as callers see it.
type Agent struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Model       string `json:"model,omitempty"`
	// OutputSchema is the JSON Schema of the answer of its runs, if it has one.
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
}

// AgentInfo is an agent with where it comes from. Definition, in the words of the configuration, is there for agents
// that were put over the API.
type AgentInfo struct {
	Agent
	Source     string          `json:"source"` // configuration or api
	Definition json.RawMessage `json:"definition,omitempty"`
}

// The states of a run.
const (
	RunRunning   = "running"
	RunWaiting   = "waiting" // for a person
	RunCompleted = "completed"
	RunFailed    = "failed"
	RunCancelled = "cancelled"
)

// Run is a run as its records tell it.
type Run struct {
	ID      string    `json:"id"`
	Agent   string    `json:"agent"`
	Status  string    `json:"status"`
	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`
	Steps   int       `json:"steps"`
	// Spent is what the run has used: model calls, tool calls by tool, tokens.
	Spent json.RawMessage `json:"spent,omitempty"`
	// Waits is what a person is asked, while the run waits.
	Waits json.RawMessage `json:"waits_for,omitempty"`
	// Output is the text of the final message, Reason why the run ended.
	Output string          `json:"output,omitempty"`
	Reason string          `json:"reason,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"` // as the body of an error has it
	// Messages are those of the run so far, if they were asked for.
	Messages []json.RawMessage `json:"messages,omitempty"`
}

// RunEvent is something that happened in a run. Its id is the same from every gateway and rises with each event.
type RunEvent struct {
	ID   string
	Type string
	Data json.RawMessage
}

// RunEnded is the type of the last event of a run.
const RunEnded = "run.ended"

// AgentService is what the faces ask about agents and their runs; host.Host.Agents is it. Its errors are faults; a
// run of another tenant is not_found.
type AgentService interface {
	// Agents lists the agents that there are.
	Agents() []Agent
	// AgentInfo returns one agent; an unknown one is not_found.
	AgentInfo(ctx context.Context, name string) (AgentInfo, error)
	// PutAgent checks an agent as the file's are and stores it, in place of one that was put before; by says who. One of
	// the configuration stays: conflict. Runs that have begun go on as they began.
	PutAgent(ctx context.Context, name string, definition []byte, by string) (info AgentInfo, created bool, err error)
	// DeleteAgent takes out an agent that was put. One of the configuration, or one that others delegate to, stays:
	// conflict.
	DeleteAgent(ctx context.Context, name, by string) error
	// Run returns a run as it is now.
	Run(ctx context.Context, tenant, run string) (Run, error)
	// Follow tells the events of a run after the given id, or all if that is empty, in their order and each once, until
	// the run has ended, ctx is over, or tell returns an error, which is then its own.
	Follow(ctx context.Context, tenant, run, after string, tell func(RunEvent) error) error
	// CheckEvent says what is wrong with the id of an event; nil if nothing is.
	CheckEvent(id string) error
	// Cancel ends a run.
	Cancel(ctx context.Context, tenant, run string) error
}

// RunRequest is the body of a request for a run: a chat body without a model, with "input" in place of messages, or
// beside them, if that is a text or a list of messages; "stream"; and "background".
type RunRequest struct {
	Chat       Chat
	Body       []byte // the chat body
	Background bool
}

// ParseRun reads and checks the body of a request for a run of an agent.
func ParseRun(agent string, body []byte) (r RunRequest, f *messages.Fault) {
	if f = WellFormed(body); f != nil {
		return r, f
	}
	if raw, ok := rawjson.Field(body, "background"); ok {
		if string(raw) != "true" && string(raw) != "false" {
			return r, Invalid("background", "background is true or false")
		}
		r.Background = string(raw) == "true"
		body = rawjson.DropField(body, "background")
	}
	if raw, ok := rawjson.Field(body, "input"); ok {
		if _, both := rawjson.Field(body, "messages"); both {
			return r, Invalid("input", "give input or messages, not both")
		}
		if text, is := rawjson.IsString(raw); is {
			raw = rawjson.Encode([]map[string]string{{"role": "user", "content": text}})
		}
		body = rawjson.SetField(rawjson.DropField(body, "input"), "messages", raw)
	}
	r.Body = rawjson.SetFieldString(body, "model", "agent/"+agent)
	if r.Chat, f = ParseChat(r.Body); f != nil && f.Param == "messages" {
		f.At("input")
	}
	return r, f
}
