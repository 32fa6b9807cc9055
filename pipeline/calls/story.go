// Package calls tells the stories of calls, so that one can be looked up: which stages ran and how long, who answered,
// what was waited for, tried, changed and refused. A recorder in each process that owns calls knows those that run, and
// tells what happens as events. Package natscalls keeps them and finds them again.
//
// A story holds no body and no key. What stages changed is told by its place and size, and by its text only where that
// is configured or an operator asked for it.
package calls

import (
	"encoding/json"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
)

// The states of a story.
const (
	Running = "running"
	Queued  = "queued" // stored, and run by nobody yet
	Held    = "held"   // waits for an answer
	Moved   = "moved"  // another process went on with it
	Ended   = "ended"
)

// OK is the outcome of a call that has a reply; any other is the code of its fault.
const OK = "ok"

// Story is what happened to a call while one process ran it, to its end if that came there. Times of steps count from
// Began, in microseconds.
type Story struct {
	Call    string        `json:"call"`
	State   string        `json:"state"`
	Kind    messages.Kind `json:"kind"`
	Tenant  string        `json:"tenant"`
	Request string        `json:"requestId,omitempty"`
	Session string        `json:"session,omitempty"`
	Run     string        `json:"run,omitempty"`
	Agent   string        `json:"agent,omitempty"`
	Parent  string        `json:"parent,omitempty"`
	Trace   string        `json:"trace,omitempty"` // the id of the trace
	Model   string        `json:"model,omitempty"` // that was asked for
	Tool    string        `json:"tool,omitempty"`
	Stream  bool          `json:"stream,omitempty"`
	Durable bool          `json:"durable,omitempty"`
	// Again says that the call was run before: its earlier parts are stories of their own.
	Again bool   `json:"again,omitempty"`
	Owner string `json:"owner,omitempty"` // the process

	Accepted time.Time `json:"accepted"`
	Began    time.Time `json:"began,omitzero"`
	Ended    time.Time `json:"ended,omitzero"`
	// Micros is the time from the acceptance to the end.
	Micros int64 `json:"us,omitempty"`
	// At is where a running call is.
	At string `json:"at,omitempty"`

	Outcome string `json:"outcome,omitempty"`
	Origin  string `json:"origin,omitempty"` // of the fault: target, entry, a stage
	// Message is the fault as its caller saw it, Reason as operators may: with the provider's own words, secrets masked.
	Message   string `json:"message,omitempty"`
	Reason    string `json:"reason,omitempty"`
	StoppedBy string `json:"stoppedBy,omitempty"`
	Degraded  string `json:"degraded,omitempty"`
	Cache     string `json:"cache,omitempty"`
	Attempts  int    `json:"attempts,omitempty"` // runs of the target

	// By is who answered: the last run of the target that did.
	By    *Answerer   `json:"answeredBy,omitempty"`
	Usage *chat.Usage `json:"usage,omitempty"`
	Steps []Step      `json:"steps,omitempty"`
	// Left counts the steps that are not told: there were too many.
	Left int `json:"stepsLeftOut,omitempty"`
}

// Answerer is who answered a call.
type Answerer struct {
	Provider string `json:"provider,omitempty"`
	Model    string `json:"model,omitempty"`
	Member   string `json:"member,omitempty"`
}

// Step is one phase of a stage, or one run of the target.
type Step struct {
	At int64 `json:"at"`
	// Stage and Phase name a phase; Class the work of a target.
	Stage string         `json:"stage,omitempty"`
	Phase messages.Phase `json:"phase,omitempty"`
	Class string         `json:"class,omitempty"`
	// Attempt counts the attempts of the stage, or the runs of the target.
	Attempt int    `json:"attempt,omitempty"`
	Member  string `json:"member,omitempty"` // the process that ran it, if that is not the owner
	Verdict string `json:"verdict,omitempty"`
	// Micros is how long it ran, Waited how long the call waited for it beside that: the way there and back, a place in
	// line. Delay is what an Again waits before the next attempt.
	Micros int64 `json:"us"`
	Waited int64 `json:"waitedUs,omitempty"`
	Delay  int64 `json:"delayUs,omitempty"`
	// Of a target: who was asked, when the first token came from the provider and the first piece to the owner, and what
	// came of it.
	Provider string      `json:"provider,omitempty"`
	Model    string      `json:"model,omitempty"`
	First    int64       `json:"firstTokenUs,omitempty"`
	Shown    int64       `json:"firstShownUs,omitempty"`
	Usage    *chat.Usage `json:"usage,omitempty"`
	Outcome  string      `json:"outcome,omitempty"`
	// Error is why it failed, as operators may know it.
	Error   string   `json:"error,omitempty"`
	Changes []Change `json:"changes,omitempty"`
}

// Change is what a step changed of a body: where, and from how many bytes to how many. The value is there only where
// texts are kept.
type Change struct {
	Body  string          `json:"body"` // request, reply
	Op    string          `json:"op"`   // set, add, remove
	At    string          `json:"at,omitempty"`
	Was   int             `json:"wasBytes"`
	Now   int             `json:"bytes"`
	Value json.RawMessage `json:"value,omitempty"`
}

// Bounds of a story, so that its message stays small.
const (
	mostSteps  = 200
	longestWhy = 1024     // bytes of one error
	mostValues = 48 << 10 // bytes of texts in one story
	mostDiff   = 256 << 10
)

// cut shortens a text that people read.
func cut(s string) string {
	if len(s) <= longestWhy {
		return s
	}
	return string([]rune(s[:longestWhy])) + "..."
}

// Row is the story as a list shows it.
func (s Story) Row() Story {
	s.Steps, s.Left = nil, 0
	return s
}

// Told is a call with all parts of its story: the last part, which says how it stands, and those before it.
type Told struct {
	Object string `json:"object"` // shallot.call
	Story
	Before []Story `json:"before,omitempty"`
}

// Whole puts the parts of a story together. There is at least one.
func Whole(parts []Story) Told {
	n := len(parts) - 1
	return Told{Object: "shallot.call", Story: parts[n], Before: parts[:n]}
}
