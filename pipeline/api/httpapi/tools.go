package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/evicted"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// ToolService is what the tool endpoints ask about tools; host.Tools is it. Its errors are faults.
type ToolService interface {
	ListTools(ctx context.Context) ([]api.ToolInfo, error)
	GetTool(ctx context.Context, name string) (api.ToolInfo, error)
	RegisterTool(ctx context.Context, definition []byte, by string) (api.ToolInfo, error)
	RemoveTool(ctx context.Context, name, by string) error
	ApproveTool(ctx context.Context, name, hash, by string) (api.ToolInfo, error)
	ReadEvicted(ctx context.Context, tenant, path string, offset, limit int) (evicted.Part, error)
}

// toolFace serves tools: calls, lists and registration.
type toolFace struct {
	*callRunner
	tools ToolService // nil: there are none
}

// add mounts the face. Registration is a control surface: the main port has it only on loopback; elsewhere it says
// where it is.
func (s *toolFace) add(t *router, addr string, main bool) {
	if s.tools == nil {
		return
	}
	control := func(next endpoint) http.HandlerFunc { return s.registers("tools", addr, main, next) }
	list := methods{http.MethodPost: control(s.registerTool)}
	one := methods{http.MethodDelete: control(s.removeTool)}
	if main {
		list[http.MethodGet], one[http.MethodGet] = s.caller(s.listTools), s.caller(s.getTool)
		t.add(evictedPath+"{path...}", methods{http.MethodGet: s.caller(s.readEvicted)})
		t.add("/v1/tools/{name}/call", methods{http.MethodPost: s.caller(s.callTool)})
	} else {
		list[http.MethodGet], one[http.MethodGet] = s.operator(addr, s.listTools), s.operator(addr, s.getTool)
	}
	t.add("/v1/tools", list)
	t.add("/v1/tools/{name}", one)
	t.add("/v1/tools/{name}/approve", methods{http.MethodPost: control(s.approveTool)})
}

// callTool is POST /v1/tools/{name}/call. The body is the arguments, or empty. The answer is the tool's result, as
// server-sent events for a caller that accepts those.
func (s *toolFace) callTool(w http.ResponseWriter, r *http.Request, id api.Identity) {
	body, fault := s.bodies.Read(w, r)
	if fault == nil {
		fault = api.ReadArguments(body)
	}
	if fault != nil {
		writeFault(w, fault)
		return
	}
	req, fault := api.Metadata(r.Header.Values, id, api.Chat{}, time.Now())
	if fault != nil {
		writeFault(w, fault)
		return
	}
	req.Kind, req.Tool, req.Body = messages.Tool, s.toolName(r), api.Arguments(body)
	req.Stream, fault = wantsStream(r.Header)
	switch {
	case fault != nil:
	case !id.MayTool(req.Tool):
		fault = api.Forbidden("the key may not call tool %q", req.Tool).At("tool")
	case req.Agent != "" && !id.MayAgent(req.Agent):
		fault = api.Forbidden("the key may not use agent %q", req.Agent).At("Shallot-Agent")
	}
	if fault != nil {
		writeFault(w, fault)
		return
	}
	s.run(w, r, req)
}

// toolName is the tool that a path names, by its own name or by the name under which listTools offers it to models.
func (s *toolFace) toolName(r *http.Request) string {
	name := r.PathValue("name")
	if !tool.MayBeModelName(name) {
		return name
	}
	all, err := s.tools.ListTools(r.Context())
	if err != nil {
		return name // the next one to be asked says what is wrong
	}
	names := make([]string, len(all))
	for i, t := range all {
		names[i] = t.Function.Name
	}
	if own, ok := tool.OfModelName(name, names); ok {
		return own
	}
	return name
}

// heldTool is a quarantined tool, as an operator sees it.
type heldTool struct {
	Name   string `json:"name"`
	Hash   string `json:"hash"`
	Reason string `json:"reason"`
	api.ToolFunction
}

// listTools is GET /v1/tools. Its data can be used as tools in a chat request: a name that model APIs refuse is
// replaced there by another, under which the tool can be called here too (tool.ModelName). What else is known is in
// policies, by the tool's own name. A quarantined tool is not in the data, because nobody has approved its text.
// Operators find it under held.
func (s *toolFace) listTools(w http.ResponseWriter, r *http.Request, id api.Identity) {
	out := struct {
		Object   string                    `json:"object"`
		Data     []api.FunctionTool        `json:"data"`
		Policies map[string]api.ToolPolicy `json:"policies"`
		Held     []heldTool                `json:"held,omitempty"`
	}{"list", []api.FunctionTool{}, map[string]api.ToolPolicy{}, nil}
	all, err := s.tools.ListTools(r.Context())
	if err != nil {
		s.failed(w, r, err)
		return
	}
	for _, t := range all {
		switch name := t.Function.Name; {
		case !id.MayTool(name):
		case t.Policy.Held == "":
			offered := t.FunctionTool
			offered.Function.Name = tool.ModelName(name)
			out.Data = append(out.Data, offered)
			out.Policies[name] = t.Policy
		case id.Operator():
			out.Held = append(out.Held, heldTool{name, t.Policy.Hash, t.Policy.Held, t.Function})
		}
	}
	writeValue(w, http.StatusOK, out)
}

// getTool is GET /v1/tools/{name}. A tool that the key may not call is answered like one that does not exist.
func (s *toolFace) getTool(w http.ResponseWriter, r *http.Request, id api.Identity) {
	name := s.toolName(r)
	t, err := s.tools.GetTool(r.Context(), name)
	switch {
	case err != nil:
		s.failed(w, r, err)
		return
	case !id.MayTool(t.Function.Name), t.Policy.Held != "" && !id.Operator():
		writeFault(w, tool.NotFound(name))
		return
	case !id.Operator():
		t.Executor = ""
	}
	writeValue(w, http.StatusOK, t)
}

const evictedPath = "/v1/evicted/"

// readEvicted is GET /v1/evicted/{path...}?offset=0&limit=8000: a part of a result that was too long to be passed on,
// for keys that may call the tool that reads it.
func (s *toolFace) readEvicted(w http.ResponseWriter, r *http.Request, id api.Identity) {
	if name := evicted.Tool().Name; !id.MayTool(name) {
		writeFault(w, api.Forbidden("the key may not call tool %q", name).At("path"))
		return
	}
	var at [2]int
	for i, name := range []string{"offset", "limit"} {
		v := r.URL.Query().Get(name)
		if v == "" {
			continue
		}
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			writeFault(w, api.Invalid(name, "%s must be a whole number of characters, 0 or more", name))
			return
		}
		at[i] = n
	}
	part, err := s.tools.ReadEvicted(r.Context(), id.Tenant, r.PathValue("path"), at[0], at[1])
	if err != nil {
		s.failed(w, r, err)
		return
	}
	writeValue(w, http.StatusOK, part)
}

// registerTool is POST /v1/tools: 201 with the tool as it now stands.
func (s *toolFace) registerTool(w http.ResponseWriter, r *http.Request, id api.Identity) {
	body, fault := s.controlBody(w, r)
	if fault != nil {
		writeFault(w, fault)
		return
	}
	t, err := s.tools.RegisterTool(r.Context(), body, id.Who())
	if err != nil {
		s.failed(w, r, err)
		return
	}
	w.Header().Set("Location", "/v1/tools/"+t.Function.Name)
	writeValue(w, http.StatusCreated, t)
}

// removeTool is DELETE /v1/tools/{name}, or {name}@{version}.
func (s *toolFace) removeTool(w http.ResponseWriter, r *http.Request, id api.Identity) {
	if err := s.tools.RemoveTool(r.Context(), r.PathValue("name"), id.Who()); err != nil {
		s.failed(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// approveTool is POST /v1/tools/{name}/approve with {"hash": "..."}: the hash of the definition that the person saw.
func (s *toolFace) approveTool(w http.ResponseWriter, r *http.Request, id api.Identity) {
	body, fault := s.controlBody(w, r)
	if fault != nil {
		writeFault(w, fault)
		return
	}
	var in struct {
		Hash string `json:"hash"`
	}
	if err := json.Unmarshal(body, &in); err != nil || in.Hash == "" {
		writeFault(w, api.Invalid("hash", "hash is missing; "+
			"send the hash of the definition that you saw, as GET /v1/tools/{name} gives it"))
		return
	}
	t, err := s.tools.ApproveTool(r.Context(), r.PathValue("name"), in.Hash, id.Who())
	if err != nil {
		s.failed(w, r, err)
		return
	}
	writeValue(w, http.StatusOK, t)
}
