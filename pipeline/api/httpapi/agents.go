package httpapi

import (
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// agentFace serves agents and their runs.
type agentFace struct {
	*callRunner
	agents api.AgentService // nil: there are none
}

// add mounts the agents and their runs.
func (s *agentFace) add(t *router) {
	if s.agents == nil {
		return
	}
	const runs = "/v1/agents/{agent}/runs"
	t.add("/v1/agents", methods{http.MethodGet: s.caller(s.listAgents)})
	t.add(runs, methods{http.MethodPost: s.caller(s.startRun)})
	t.add(runs+"/{run}", methods{http.MethodGet: s.caller(s.getRun)})
	t.add(runs+"/{run}/messages", methods{http.MethodGet: s.caller(s.runMessages)})
	t.add(runs+"/{run}/events", methods{http.MethodGet: s.caller(s.runEvents)})
	t.add(runs+"/{run}/cancel", methods{http.MethodPost: s.caller(s.cancelRun)})
}

// listAgents is GET /v1/agents: those that the key may use.
func (s *agentFace) listAgents(w http.ResponseWriter, _ *http.Request, id api.Identity) {
	rows := []api.Agent{}
	for _, a := range s.agents.Agents() {
		if id.MayAgent(a.Name) {
			rows = append(rows, a)
		}
	}
	writeValue(w, http.StatusOK, struct {
		Object string      `json:"object"`
		Data   []api.Agent `json:"data"`
	}{"list", rows})
}

// runRow is a run as the API shows it.
type runRow struct {
	Object string `json:"object"` // shallot.run
	api.Run
	Location string `json:"location"`
}

func runPath(agent, run string) string { return "/v1/agents/" + agent + "/runs/" + run }

func (s *agentFace) writeRun(w http.ResponseWriter, status int, r api.Run) {
	path := runPath(r.Agent, r.ID)
	if status == http.StatusAccepted {
		w.Header().Set("Location", path)
		w.Header().Set("Retry-After", "1")
	}
	r.Messages = nil
	writeValue(w, status, runRow{"shallot.run", r, path})
}

// startRun is POST /v1/agents/{agent}/runs. It answers with the run when it has ended or waits for a person, at once
// with "background": true, and with its events with "stream": true. A run goes on without the connection, but one that
// is waited for ends when its caller leaves.
func (s *agentFace) startRun(w http.ResponseWriter, r *http.Request, id api.Identity) {
	agent := r.PathValue("agent")
	body, fault := s.bodies.Read(w, r)
	var run api.RunRequest
	if fault == nil {
		run, fault = api.ParseRun(agent, body)
	}
	var req pipeline.Request
	if fault == nil {
		req, fault = api.Metadata(r.Header.Values, id, run.Chat, time.Now())
	}
	switch {
	case fault != nil:
	case !id.MayAgent(agent):
		fault = api.Forbidden("the key may not use agent %q", agent).At("agent")
	case !s.knowsAgent(agent):
		fault = messages.NewFault(messages.NotFound,
			"no agent %q; GET /v1/agents lists all agents", agent).At("agent").From("entry")
	}
	if fault != nil {
		writeFault(w, fault)
		return
	}
	req.Kind, req.Agent, req.Body, req.Keep = messages.Agent, agent, run.Body, true
	req.Submit = run.Background || run.Chat.Stream // whoever follows it reads its records
	pending, err := s.entry.Accept(r.Context(), req)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	setHeader(w.Header(), "Shallot-Call", pending.ID())
	setHeader(w.Header(), "Shallot-Run", pending.ID())
	switch {
	case run.Chat.Stream:
		s.follow(w, r, req.Tenant, agent, pending.ID(), "")
	case run.Background:
		s.writeRun(w, http.StatusAccepted, api.Run{ID: pending.ID(), Agent: agent, Status: api.RunRunning,
			Created: time.Now().UTC(), Updated: time.Now().UTC()})
	default:
		s.awaitRun(w, r, req.Tenant, agent, pending)
	}
}

func (s *agentFace) knowsAgent(name string) bool {
	for _, a := range s.agents.Agents() {
		if a.Name == name {
			return true
		}
	}
	return false
}

// awaitRun answers with the run when it has ended or waits for a person.
func (s *agentFace) awaitRun(w http.ResponseWriter, r *http.Request, tenant, agent string, pending pipeline.Pending) {
	c, err := s.await(r, pending)
	switch {
	case err != nil && !errors.Is(err, pipeline.ErrHeld):
		s.notEnded(w, r, pending, err)
	case err == nil && c.Fault != nil:
		s.finish(w, r, c)
	default:
		s.showRun(w, r, tenant, agent, pending.ID(), c)
	}
}

// showRun answers with a run as its records tell it, ended by the call c if that is not nil.
func (s *agentFace) showRun(w http.ResponseWriter, r *http.Request, tenant, agent, run string, c *messages.Call) {
	got, err := s.agents.Run(r.Context(), tenant, run)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	status := http.StatusOK
	if c == nil && got.Status != api.RunCompleted && got.Status != api.RunFailed {
		status = http.StatusAccepted
	}
	if c != nil {
		ended(w, c)
		facts(w.Header(), c, started(r))
		got.Status = api.RunCompleted // what stages made of it counts
		if got.Output = ""; c.HasReply() {
			for _, choice := range chat.Choices(c.Reply()) {
				got.Output = choice.Message().Text()
				break
			}
		}
	}
	if got.Agent == "" {
		got.Agent = agent
	}
	s.writeRun(w, status, got)
}

// findRun finds the run that a path names, if it is one of the agent and the key may use that.
func (s *agentFace) findRun(w http.ResponseWriter, r *http.Request, id api.Identity) (
	got api.Run, tenant string, ok bool) {
	agent, run := r.PathValue("agent"), r.PathValue("run")
	none := messages.NewFault(messages.NotFound, "no run %s of agent %s", run, agent).From("entry")
	tenant, fault := api.OneValue(r.Header.Values, "Shallot-Tenant")
	switch {
	case fault != nil:
	case tenant == "" || id.Role != api.RoleOperator:
		tenant = id.Tenant
	}
	if fault == nil && (uuid.Validate(run) != nil || len(run) != 36 || !id.MayAgent(agent)) {
		fault = none
	}
	if fault != nil {
		writeFault(w, fault)
		return got, "", false
	}
	got, err := s.agents.Run(r.Context(), tenant, run)
	switch {
	case err != nil:
	case got.Agent == "":
		got.Agent = agent // it has not begun
	case got.Agent != agent:
		err = none
	}
	if err != nil {
		s.failed(w, r, err)
		return got, "", false
	}
	return got, tenant, true
}

// getRun is GET /v1/agents/{agent}/runs/{run}: the run as it is now.
func (s *agentFace) getRun(w http.ResponseWriter, r *http.Request, id api.Identity) {
	if got, _, ok := s.findRun(w, r, id); ok {
		s.writeRun(w, http.StatusOK, got)
	}
}

// runMessages is GET /v1/agents/{agent}/runs/{run}/messages: what was said in the run so far.
func (s *agentFace) runMessages(w http.ResponseWriter, r *http.Request, id api.Identity) {
	if got, _, ok := s.findRun(w, r, id); ok {
		writeValue(w, http.StatusOK, struct {
			Object string `json:"object"`
			Data   any    `json:"data"`
		}{"list", got.Messages})
	}
}

// cancelRun is POST /v1/agents/{agent}/runs/{run}/cancel.
func (s *agentFace) cancelRun(w http.ResponseWriter, r *http.Request, id api.Identity) {
	got, tenant, ok := s.findRun(w, r, id)
	if !ok {
		return
	}
	if got.Status == api.RunRunning || got.Status == api.RunWaiting {
		if err := s.agents.Cancel(r.Context(), tenant, got.ID); err != nil {
			s.failed(w, r, err)
			return
		}
	}
	s.writeRun(w, http.StatusAccepted, got)
}
