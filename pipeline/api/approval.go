package api

import (
	"encoding/json"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// Approval is a call that waits for a person.
type Approval struct {
	Call    string        `json:"call"`
	Tenant  string        `json:"tenant"`
	Kind    messages.Kind `json:"kind"`
	Tool    string        `json:"tool,omitempty"`
	Stage   string        `json:"stage"`
	Since   time.Time     `json:"since"`
	Expires time.Time     `json:"expires"`
	// Question is what is asked, as the stage wrote it: tool, arguments, policy, decisions and so on.
	Question json.RawMessage `json:"question,omitempty"`
}
