package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// approvalSurface serves the calls that wait for a person.
type approvalSurface struct {
	*common
	approvals api.ApprovalService // nil: nobody decides
}

// add mounts the approvals. They are a control surface: the main port has them only while it is loopback.
func (s *approvalSurface) add(t *router, addr string, main bool) {
	if s.approvals == nil {
		return
	}
	guarded := func(next endpoint) http.HandlerFunc {
		if main && !IsLoopback(addr) {
			return s.caller(func(w http.ResponseWriter, r *http.Request, _ api.Identity) {
				writeFault(w, api.Forbidden("approvals are on the admin listener (http.admin) only, "+
					"because this port is reachable from other machines"))
			})
		}
		return s.operator(addr, next)
	}
	t.add("/v1/approvals", methods{http.MethodGet: guarded(s.listApprovals)})
	t.add("/v1/approvals/{call}", methods{http.MethodGet: guarded(s.getApproval), http.MethodPost: guarded(s.decide)})
}

// waitingRow is a call that waits for an answer, as the API shows it.
type waitingRow struct {
	Object string `json:"object"` // shallot.approval
	api.Approval
}

func waiting(a api.Approval) waitingRow { return waitingRow{"shallot.approval", a} }

// asOperator is the tenant that an operator asks about: all tenants, unless they name one.
func asOperator(r *http.Request) (string, *messages.Fault) {
	return api.OneValue(r.Header.Values, "Shallot-Tenant")
}

// mayDecide reports whether an operator's key may decide about the call: some keys are limited to some tools.
func mayDecide(id api.Identity, a api.Approval) bool {
	if a.Kind != messages.Agent || len(id.Tools) == 0 {
		return a.Kind != messages.Tool || id.MayTool(a.Tool)
	}
	calls, _ := rawjson.Field(a.Question, "calls") // of a run: a batch of tool calls
	for _, c := range rawjson.Elements(calls) {
		if name, _ := rawjson.FieldString(c, "tool"); !id.MayTool(name) {
			return false
		}
	}
	return true
}

// approval is a waiting call that the operator may decide about; any other is not found.
func (s *approvalSurface) approval(ctx context.Context, tenant, call string, id api.Identity) (api.Approval, error) {
	a, err := s.approvals.Approval(ctx, tenant, call)
	if err == nil && !mayDecide(id, a) {
		return a, api.Refused(messages.NotFound, "no held call %s", call)
	}
	return a, err
}

// listApprovals is GET /v1/approvals: the calls that wait, the oldest first.
func (s *approvalSurface) listApprovals(w http.ResponseWriter, r *http.Request, id api.Identity) {
	tenant, fault := asOperator(r)
	if fault != nil {
		writeFault(w, fault)
		return
	}
	list, err := s.approvals.Approvals(r.Context(), tenant)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	rows := []waitingRow{}
	for _, a := range list {
		if !mayDecide(id, a) {
			continue
		}
		rows = append(rows, waiting(a))
	}
	writeValue(w, http.StatusOK, struct {
		Object string       `json:"object"`
		Data   []waitingRow `json:"data"`
	}{"list", rows})
}

// getApproval is GET /v1/approvals/{call}.
func (s *approvalSurface) getApproval(w http.ResponseWriter, r *http.Request, id api.Identity) {
	tenant, fault := asOperator(r)
	if fault != nil {
		writeFault(w, fault)
		return
	}
	a, err := s.approval(r.Context(), tenant, r.PathValue("call"), id)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	writeValue(w, http.StatusOK, waiting(a))
}

// decide is POST /v1/approvals/{call} with {"decision": "approve|edit|reject|respond", "arguments", "content",
// "reason"}: 200 once it is decided, 202 if the decision is null. After a refused decision the call keeps waiting.
func (s *approvalSurface) decide(w http.ResponseWriter, r *http.Request, id api.Identity) {
	tenant, fault := asOperator(r)
	var body []byte
	if fault == nil {
		body, fault = s.controlBody(w, r)
	}
	var by string
	if fault == nil {
		by, fault = decider(r, id)
	}
	if fault != nil {
		writeFault(w, fault)
		return
	}
	call := r.PathValue("call")
	var err error
	if len(id.Tools) > 0 { // the key is limited to some tools
		_, err = s.approval(r.Context(), tenant, call, id)
	}
	if err == nil {
		err = s.approvals.Decide(r.Context(), tenant, call, body, by)
	}
	switch {
	case errors.Is(err, pipeline.ErrHeld):
		stillWaits(w, call, err)
	case err != nil:
		s.failed(w, r, err)
	default:
		word := rawjson.Text(body, "decision")
		s.log.Info("call decided", "call", call, "tenant", tenant, "decision", word, "by", by)
		w.Header().Set("Location", api.ResultPath(call))
		writeValue(w, http.StatusOK, struct {
			Call     string `json:"call"`
			Object   string `json:"object"`
			Status   string `json:"status"`
			Decision string `json:"decision"`
			By       string `json:"by"`
			Location string `json:"location"`
		}{call, "shallot.approval", "decided", word, by, api.ResultPath(call)})
	}
}

// decider is who decides: the key, and the person that its holder names.
func decider(r *http.Request, id api.Identity) (string, *messages.Fault) {
	user, fault := api.OneValue(r.Header.Values, "Shallot-User")
	if id.User != "" {
		user = id.User
	}
	if user != "" {
		return id.Who() + "/" + user, fault
	}
	return id.Who(), fault
}

// stillWaits answers a decision that did not end the wait. err says what is still open, if it is a batch.
func stillWaits(w http.ResponseWriter, call string, err error) {
	if err == pipeline.ErrHeld {
		accepted(w, call, "approval_pending")
		return
	}
	w.Header().Set("Location", api.ResultPath(call))
	writeValue(w, http.StatusAccepted, struct {
		Call     string `json:"call"`
		Object   string `json:"object"`
		Status   string `json:"status"`
		Location string `json:"location"`
		Message  string `json:"message"`
	}{call, "shallot.call", "approval_pending", api.ResultPath(call),
		strings.TrimSuffix(err.Error(), ": "+pipeline.ErrHeld.Error())})
}
