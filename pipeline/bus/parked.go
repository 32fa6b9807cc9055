package bus

import (
	"encoding/json"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// Parked is a call that waits for somebody's answer, or for a time: line 1 of its record; the call itself follows.
type Parked struct {
	Call     string          `json:"call"`
	Tenant   string          `json:"tenant"`
	Kind     messages.Kind   `json:"kind"`
	Tool     string          `json:"tool,omitempty"`
	Stage    string          `json:"stage"`
	Phase    messages.Phase  `json:"phase"`
	Question json.RawMessage `json:"question,omitempty"`
	Since    time.Time       `json:"since"`
	// Expires is when the question ends undecided. Left is the time that the call itself has then: its clock stands
	// still while it waits.
	Expires    time.Time     `json:"expires"`
	Left       time.Duration `json:"left"`
	Generation uint64        `json:"generation"`
	// Delayed says that it waits for Expires alone, to be tried again then. Nobody is asked, and its clock runs on.
	Delayed bool `json:"delayed,omitempty"`
	// Awaits is the call whose end is the answer; empty: somebody must give one.
	Awaits string `json:"awaits,omitempty"`
	// Ran says that the call had been at its target before it was held.
	Ran     bool     `json:"ran,omitempty"`
	Decided *Decided `json:"decided,omitempty"`
	// Resumed says that the decided call was put into the queue again.
	Resumed bool `json:"resumed,omitempty"`
}

// Partly is the error of an [Options.Decide] that has decided a part of what was asked: the question becomes this one,
// and the call waits on.
type Partly struct {
	Question json.RawMessage
	Open     string // what is still open, in words
}

// Error says what is still open.
func (p *Partly) Error() string { return p.Open }

// Decided says what became of a question: an answer, or a fault where nobody gave one.
type Decided struct {
	By     string          `json:"by"`
	At     time.Time       `json:"at"`
	Answer json.RawMessage `json:"answer,omitempty"`
	Fault  *messages.Fault `json:"fault,omitempty"`
}
