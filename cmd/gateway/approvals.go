package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/intake"
)

// approvals is what the faces ask about calls that wait for a person; host.Host is the real one. Its errors are faults,
// or pipeline.ErrHeld where nothing was decided.
type approvals interface {
	Approvals(ctx context.Context, tenant string) ([]host.Approval, error)
	Approval(ctx context.Context, tenant, call string) (host.Approval, error)
	Decide(ctx context.Context, tenant, call string, decision json.RawMessage, by string) error
}

// addApprovals mounts the questions: a control surface, on the main port only while that is loopback (contracts 19).
func (s *server) addApprovals(t *table, addr string, main bool) {
	if s.Approvals == nil {
		return
	}
	guard := func(next endpoint) http.HandlerFunc {
		if main && !loopbackAddr(addr) {
			return s.caller(func(w http.ResponseWriter, r *http.Request, _ identity) {
				writeFault(w, forbidden("approvals are on the admin listener (http.admin) only, because this port is reachable from other machines"))
			})
		}
		return s.operator(addr, next)
	}
	t.add("/v1/approvals", methods{http.MethodGet: guard(s.listApprovals)})
	t.add("/v1/approvals/{call}", methods{http.MethodGet: guard(s.getApproval), http.MethodPost: guard(s.decide)})
}

// waitingRow is a call that waits, as the API shows it.
type waitingRow struct {
	ID     string `json:"id"`
	Object string `json:"object"` // shallot.approval
	host.Approval
}

func waiting(a host.Approval) waitingRow { return waitingRow{a.Call, "shallot.approval", a} }

// asOperator is the tenant that an operator means: all of them, unless he names one.
func asOperator(r *http.Request) (string, *messages.Fault) {
	return intake.OneValue(r.Header.Values, "Shallot-Tenant")
}

// mayDecide reports whether an operator's key, which may be for some tools only, is for this call's.
func mayDecide(id identity, a host.Approval) bool {
	return a.Kind != messages.Tool || id.MayTool(a.Tool)
}

// approval is a call that waits and that the operator may decide about; any other is one that there is not.
func (s *server) approval(ctx context.Context, tenant, call string, id identity) (host.Approval, error) {
	a, err := s.Approvals.Approval(ctx, tenant, call)
	if err == nil && !mayDecide(id, a) {
		return a, messages.NewFault(messages.NotFound, "no held call %s", call).From("entry")
	}
	return a, err
}

// listApprovals is GET /v1/approvals: what waits, the oldest first.
func (s *server) listApprovals(w http.ResponseWriter, r *http.Request, id identity) {
	tenant, fault := asOperator(r)
	if fault != nil {
		writeFault(w, fault)
		return
	}
	list, err := s.Approvals.Approvals(r.Context(), tenant)
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
func (s *server) getApproval(w http.ResponseWriter, r *http.Request, id identity) {
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
// "reason"}: 200 once it is decided, 202 if the decision is null. A decision that is refused leaves the call waiting.
func (s *server) decide(w http.ResponseWriter, r *http.Request, id identity) {
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
	if len(id.Tools) > 0 { // his key is for some tools only
		_, err = s.approval(r.Context(), tenant, call, id)
	}
	if err == nil {
		err = s.Approvals.Decide(r.Context(), tenant, call, body, by)
	}
	switch {
	case errors.Is(err, pipeline.ErrHeld):
		accepted(w, call, "approval_pending")
	case err != nil:
		s.failed(w, r, err)
	default:
		word, _ := rawjson.FieldString(body, "decision")
		s.Log.Info("call decided", "call", call, "tenant", tenant, "decision", word, "by", by)
		w.Header().Set("Location", resultPath(call))
		writeValue(w, http.StatusOK, struct {
			ID       string `json:"id"`
			Object   string `json:"object"`
			Status   string `json:"status"`
			Decision string `json:"decision"`
			By       string `json:"by"`
			Location string `json:"location"`
		}{call, "shallot.approval", "decided", word, by, resultPath(call)})
	}
}

// decider is who decides: the key, and the person whom its holder names.
func decider(r *http.Request, id identity) (string, *messages.Fault) {
	user, fault := intake.OneValue(r.Header.Values, "Shallot-User")
	if id.User != "" {
		user = id.User
	}
	if user != "" {
		return id.Who() + "/" + user, fault
	}
	return id.Who(), fault
}

var _ approvals = (*host.Host)(nil)
