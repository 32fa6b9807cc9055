package host

import (
	"context"
	"encoding/json"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// Approvals lists the calls of a tenant that wait for a person, the oldest first; of all tenants if it is empty.
func (h *Host) Approvals(ctx context.Context, tenant string) ([]api.Approval, error) {
	list, err := h.Node.HeldCalls(ctx, tenant)
	out := make([]api.Approval, 0, len(list))
	for _, p := range list {
		out = append(out, approvalOf(p))
	}
	return out, err
}

// Approval returns one call that waits; of any tenant if that is empty. An unknown one is the fault not_found.
func (h *Host) Approval(ctx context.Context, tenant, call string) (api.Approval, error) {
	p, err := h.Node.HeldCall(ctx, tenant, call)
	return approvalOf(p), err
}

// Decide carries a decision to a call that waits; see [bus.Node.Decide]. by says whose it is.
func (h *Host) Decide(ctx context.Context, tenant, call string, decision json.RawMessage, by string) error {
	_, err := h.Node.Decide(ctx, tenant, call, decision, by)
	word, _ := rawjson.FieldString(decision, "decision")
	h.recordDecision(ctx, tenant, call, word, by, err)
	return err
}

func approvalOf(p bus.Parked) api.Approval {
	return api.Approval{Call: p.Call, Tenant: p.Tenant, Kind: p.Kind, Tool: p.Tool, Stage: p.Stage, Since: p.Since,
		Expires: p.Expires, Question: p.Question}
}

// checkAnswer holds an answer to what was asked. Questions of other stages than the approval take any answer.
func (h *Host) checkAnswer(ctx context.Context, p bus.Parked, answer json.RawMessage, by string) (
	json.RawMessage, error) {
	if p.Kind == messages.Agent && p.Stage == string(messages.Agent) {
		return h.takeDecisions(ctx, p, answer, by)
	}
	if _, ours := rawjson.Field(p.Question, "hash"); p.Kind != messages.Tool || p.Stage != tool.ApprovalStage || !ours {
		return answer, nil
	}
	return h.tools.desk.Decide(ctx, p.Question, answer, by)
}

// StateKey is the key with which every gateway of the installation signs what MCP clients carry between two requests.
func (h *Host) StateKey(ctx context.Context) ([]byte, error) {
	return jet.Secret(ctx, h.control, "mcp-request-state")
}
