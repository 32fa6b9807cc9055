package host

import (
	"context"
	"encoding/json"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// Approvals are the calls that wait for a person, as the faces see them: every decision leaves a record.
type Approvals struct {
	node    *bus.Node
	audit   *audit
	control pipeline.Store
}

var _ api.ApprovalService = (*Approvals)(nil)

// Approvals lists the calls of a tenant that wait for a person, the oldest first; of all tenants if it is empty.
func (a *Approvals) Approvals(ctx context.Context, tenant string) ([]api.Approval, error) {
	list, err := a.node.HeldCalls(ctx, tenant)
	out := make([]api.Approval, 0, len(list))
	for _, p := range list {
		out = append(out, approvalOf(p))
	}
	return out, err
}

// Approval returns one call that waits; of any tenant if that is empty. An unknown one is the fault not_found.
func (a *Approvals) Approval(ctx context.Context, tenant, call string) (api.Approval, error) {
	p, err := a.node.HeldCall(ctx, tenant, call)
	return approvalOf(p), err
}

// Decide carries a decision to a call that waits; see [bus.Node.Decide]. by says whose it is.
func (a *Approvals) Decide(ctx context.Context, tenant, call string, decision json.RawMessage, by string) error {
	_, err := a.node.Decide(ctx, tenant, call, decision, by)
	word, _ := rawjson.FieldString(decision, "decision")
	a.audit.decision(ctx, tenant, call, word, by, err)
	return err
}

func approvalOf(p bus.Parked) api.Approval {
	return api.Approval{Call: p.Call, Tenant: p.Tenant, Kind: p.Kind, Tool: p.Tool, Stage: p.Stage, Since: p.Since,
		Expires: p.Expires, Question: p.Question}
}

// StateKey is the key with which every gateway of the installation signs what MCP clients carry between two requests.
func (a *Approvals) StateKey(ctx context.Context) ([]byte, error) {
	return jet.Secret(ctx, a.control, "mcp-request-state")
}
