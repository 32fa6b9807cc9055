package httpapi

import (
	"net/http"

	"github.com/shallot-nats/shallot/pipeline/api"
)

// addAdmin mounts single agents. Putting and removing them is a control surface, as it is for tools.
func (s *agentFace) addAdmin(t *router, addr string, main bool) {
	if s.agents == nil {
		return
	}
	one := methods{http.MethodPut: s.registers("agents", addr, main, s.putAgent),
		http.MethodDelete: s.registers("agents", addr, main, s.deleteAgent)}
	if main {
		one[http.MethodGet] = s.caller(s.getAgent)
	} else {
		one[http.MethodGet] = s.operator(addr, s.getAgent)
	}
	t.add("/v1/agents/{agent}", one)
}

// getAgent is GET /v1/agents/{agent}. Operators see its definition, if it was put over the API.
func (s *agentFace) getAgent(w http.ResponseWriter, r *http.Request, id api.Identity) {
	name := r.PathValue("agent")
	if !id.MayAgent(name) {
		writeFault(w, api.Forbidden("the key may not use agent %q", name).At("agent"))
		return
	}
	info, err := s.agents.AgentInfo(r.Context(), name)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	if !id.Operator() {
		info.Definition = nil
	}
	writeValue(w, http.StatusOK, info)
}

// putAgent is PUT /v1/agents/{agent}. The body is an agent as agent.agents of the configuration has it.
func (s *agentFace) putAgent(w http.ResponseWriter, r *http.Request, id api.Identity) {
	body, fault := s.controlBody(w, r)
	if fault != nil {
		writeFault(w, fault)
		return
	}
	info, created, err := s.agents.PutAgent(r.Context(), r.PathValue("agent"), body, id.Who())
	switch {
	case err != nil:
		s.failed(w, r, err)
	case created:
		writeValue(w, http.StatusCreated, info)
	default:
		writeValue(w, http.StatusOK, info)
	}
}

// deleteAgent is DELETE /v1/agents/{agent}.
func (s *agentFace) deleteAgent(w http.ResponseWriter, r *http.Request, id api.Identity) {
	if err := s.agents.DeleteAgent(r.Context(), r.PathValue("agent"), id.Who()); err != nil {
		s.failed(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
