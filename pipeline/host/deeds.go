package host

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/bus"
)

// deed is the audit record of a control action: who did what, to what, from where, and what came of it. It does not
// depend on the stage audit, which may be what is switched.
type deed struct {
	Event string    `json:"event"` // control
	Time  time.Time `json:"time"`
	// Action is switch-on, switch-off, decide, tool-registered, tool-removed, tool-approved, agent-put, agent-removed,
	// redrive, delete-dead
	Action  string `json:"action"`
	What    string `json:"what"` // the stage, the call, the tool
	By      string `json:"by"`
	From    string `json:"from,omitempty"` // http <address>, nats <subject>, mcp
	Tenant  string `json:"tenant,omitempty"`
	Detail  string `json:"detail,omitempty"` // the decision; the hash of a definition
	Outcome string `json:"outcome"`          // done | the code of the fault that refused it
}

// recordDeed writes the record. err is what came of the action.
func (h *Host) recordDeed(ctx context.Context, d deed, err error) {
	d.Event, d.Time, d.From, d.Outcome = "control", time.Now().UTC(), api.OriginOf(ctx), "done"
	if err != nil {
		d.Outcome = string(messages.Internal)
		if f, ok := errors.AsType[*messages.Fault](err); ok {
			d.Outcome = string(f.Code)
		}
	}
	h.log.InfoContext(ctx, "control", "action", d.Action, "what", d.What, "by", d.By, "from", d.From, "outcome", d.Outcome)
	h.trail.Publish(h.auditSubject("control"), "", rawjson.Encode(d))
}

// recorded is the node as the faces see it: whatever changes how it works leaves a record.
type recorded struct {
	*bus.Node
	h *Host
}

// Switch implements pipeline.Control.
func (r recorded) Switch(ctx context.Context, name string, on bool, confirm, by string) (pipeline.Switched, error) {
	out, err := r.Node.Switch(ctx, name, on, confirm, by)
	action := "switch-off"
	if on {
		action = "switch-on"
	}
	r.h.recordDeed(ctx, deed{Action: action, What: name, By: by}, err)
	return out, err
}

// DecideInOneWord is the decision of a caller over NATS.
func (r recorded) DecideInOneWord(
	ctx context.Context, tenant, call string, answer json.RawMessage, by string,
) (string, error) {
	word, err := r.Node.DecideInOneWord(ctx, tenant, call, answer, by)
	r.h.recordDecision(ctx, tenant, call, word, by, err)
	return word, err
}

// recordDecision records a decision about a call that waits. An answer that decides nothing is not recorded.
func (h *Host) recordDecision(ctx context.Context, tenant, call, word, by string, err error) {
	if !errors.Is(err, pipeline.ErrHeld) {
		h.recordDeed(ctx, deed{Action: "decide", What: call, Tenant: tenant, Detail: word, By: by}, err)
	}
}
