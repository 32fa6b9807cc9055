package api

import (
	"context"
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
	// Question is what the person is asked, as the stage wrote it: tool, arguments, policy, decisions and so on.
	Question json.RawMessage `json:"question,omitempty"`
}

// ApprovalService is what the APIs ask about calls that wait for a person; host.Approvals is it. Its errors are
// faults, or pipeline.ErrHeld if nothing was decided.
type ApprovalService interface {
	Approvals(ctx context.Context, tenant string) ([]Approval, error)
	Approval(ctx context.Context, tenant, call string) (Approval, error)
	Decide(ctx context.Context, tenant, call string, decision json.RawMessage, by string) error
}
