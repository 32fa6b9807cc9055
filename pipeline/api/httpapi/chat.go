package httpapi

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
)

// modelFace serves model calls in all wires but that of Responses, the lists of models, and the ends of calls.
type modelFace struct {
	*callRunner
	models func(ctx context.Context) []api.ModelInfo
	kept   *responses.Kept // nil: streams are not kept
}

// add mounts the face. Its chat endpoint serves agents too.
func (s *modelFace) add(t *router) {
	chat := methods{http.MethodPost: s.caller(s.chat)}
	for _, prefix := range []string{"/v1", ""} {
		t.add(prefix+"/chat/completions", chat)
		t.add(prefix+"/models", methods{http.MethodGet: s.caller(s.listModels)})
		t.add(prefix+"/models/{id...}", methods{http.MethodGet: s.caller(s.getModel)})
	}
	t.add("/v1/agents/{agent}/chat/completions", chat)
	t.add("/v1/messages", methods{http.MethodPost: s.caller(s.messages)})
	t.add("/v1/messages/count_tokens", methods{http.MethodPost: s.caller(s.countTokens)})
	t.add("/v1/embeddings", methods{http.MethodPost: s.caller(s.embeddings)})
	t.add("/v1/results/{call}", methods{http.MethodGet: s.caller(s.result)})
}

// agentPrefix in a model's name means an agent.
const agentPrefix = "agent/"

// chat is POST /v1/chat/completions, streaming and not. The body goes in as it came, and the reply goes out as it is.
func (s *modelFace) chat(w http.ResponseWriter, r *http.Request, id api.Identity) {
	if req, ok := s.body(w, r, id, messages.ChatWire); ok {
		s.runKept(w, r, id, req)
	}
}

// runKept is run for a chat call: the stream of one that is stored is kept, so that it can be resumed.
func (s *modelFace) runKept(w http.ResponseWriter, r *http.Request, id api.Identity, req pipeline.Request) {
	if !req.Stream || req.IdempotencyKey == "" || s.kept == nil || prefers(r.Header, "respond-async") {
		s.run(w, r, req)
		return
	}
	pending, err := s.accept(w, r, req)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	kept := s.kept.KeepChat(r.Context(), responses.Owner{Tenant: req.Tenant, Key: id.KeyID}, pending.ID(), req.Body)
	if kept == nil {
		defer context.AfterFunc(r.Context(), pending.Leave)()
		s.stream(w, r, pending, req)
		return
	}
	// The call goes on if the caller leaves, and so does the log of its stream.
	s.streamTo(w, r.WithContext(context.WithoutCancel(r.Context())), pending, req, s.newFollower(req.Body), kept)
}

// run makes a call of any kind and answers with its end.
func (s *callRunner) run(w http.ResponseWriter, r *http.Request, req pipeline.Request) {
	async := prefers(r.Header, "respond-async")
	if async {
		req.Submit, req.Stream = true, false
	}
	pending, err := s.accept(w, r, req)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	if async {
		w.Header().Set("Preference-Applied", "respond-async")
		accepted(w, pending.ID(), "accepted")
		return
	}
	if req.Stream {
		defer context.AfterFunc(r.Context(), pending.Leave)()
		s.stream(w, r, pending, req)
		return
	}
	c, err := s.await(r, pending)
	if err != nil {
		s.notEnded(w, r, pending, err)
		return
	}
	if _, text := c.ReplyText(); req.Wire == messages.ResponsesWire && c.HasReply() && !text {
		c.SetReply(view.Echo(req.Body, c.Reply()))
	}
	s.finish(w, r, c)
}

// body reads the body of a call and makes the request of it for the entry. ok is false if it has answered why not.
func (s *common) body(w http.ResponseWriter, r *http.Request, id api.Identity, wire messages.Wire) (
	req pipeline.Request, ok bool) {
	body, fault := s.bodies.Read(w, r)
	if fault == nil {
		req, fault = request(r, id, wire, body)
	}
	if fault != nil {
		writeFault(w, fault)
	}
	return req, fault == nil
}

// await waits for the end of a call whose caller may leave meanwhile; that is noticed at once. It keeps nothing of the
// call, so that a caller who reads slowly holds no more than the reply.
func (s *callRunner) await(r *http.Request, pending pipeline.Pending) (*messages.Call, error) {
	defer context.AfterFunc(r.Context(), pending.Leave)()
	ctx, cancel := s.untilHalt(r.Context())
	defer cancel()
	c, err := pending.Wait(ctx, nil)
	if r.Context().Err() != nil {
		pending.Leave()
	}
	return c, err
}

// request makes a request for the entry of a model body and its headers.
func request(r *http.Request, id api.Identity, wire messages.Wire, body []byte) (pipeline.Request, *messages.Fault) {
	c, fault := api.ParseModel(wire, body)
	if fault != nil {
		return pipeline.Request{}, fault
	}
	req, fault := api.Metadata(r.Header.Values, id, c, time.Now())
	if fault != nil {
		return req, fault
	}
	req.Body = body
	if wire != messages.ChatWire {
		req.Wire = wire
	}
	name, isAgent := strings.CutPrefix(c.Model, agentPrefix)
	if inPath := r.PathValue("agent"); inPath != "" {
		name, isAgent = inPath, true
		req.Agent = inPath
	}
	if isAgent {
		req.Kind = messages.Agent
		if req.Agent == "" {
			req.Agent = name
		}
		if !api.MetaValue(req.Agent) {
			return req, api.Invalid("model", "the agent's name must be 1 to %d visible ASCII characters", api.MaxMeta)
		}
	} else if !id.MayModel(c.Model) {
		return req, api.Forbidden("the key may not use model %q", c.Model).At("model")
	}
	if req.Agent != "" && !id.MayAgent(req.Agent) {
		return req, api.Forbidden("the key may not use agent %q", req.Agent).At("model")
	}
	return req, nil
}

// notEnded answers about an accepted call for which this connection waits no more. If the gateway stops, a bound call
// ends here, with an answer.
func (s *callRunner) notEnded(w http.ResponseWriter, r *http.Request, pending pipeline.Pending, err error) {
	call := pending.ID()
	switch {
	case r.Context().Err() != nil: // the caller is gone, or has closed its sending side
		writeFault(w, gone())
	case errors.Is(err, pipeline.ErrHeld):
		accepted(w, call, "approval_pending")
	case s.halted.Err() != nil:
		if c := pending.Stop(); c != nil {
			s.finish(w, r, c)
			return
		}
		w.Header().Set("Location", api.ResultPath(call))
		writeFault(w, api.StoppingFault(messages.Stopping, call))
	default:
		s.failed(w, r, err)
	}
}

// accepted answers 202 with the path of the result.
func accepted(w http.ResponseWriter, call, status string) {
	w.Header().Set("Location", api.ResultPath(call))
	w.Header().Set("Retry-After", "1")
	writeValue(w, http.StatusAccepted, struct {
		Call     string `json:"call"`
		Object   string `json:"object"`
		Status   string `json:"status"`
		Location string `json:"location"`
	}{call, "shallot.call", status, api.ResultPath(call)})
}

// finish writes the end of a call: its fault, or its reply byte for byte.
func (s *callRunner) finish(w http.ResponseWriter, r *http.Request, c *messages.Call) {
	ended(w, c)
	facts(w.Header(), c, started(r))
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(4 * s.writeTimeout))
	switch text, isText := c.ReplyText(); {
	case c.Fault != nil:
		writeEnd(w, c)
	case isText:
		s.reply(w, "text/plain; charset=utf-8", []byte(text))
	case !c.HasReply():
		writeFault(w, api.Refused(messages.Internal, "the call %s ended without a reply", c.ID))
	default:
		s.reply(w, "application/json", c.Reply())
	}
}

// facts sets the answer headers of a finished call.
func facts(h http.Header, c *messages.Call, begin time.Time) {
	for k, v := range api.ResponseHeaders(c, time.Now()) {
		setHeader(h, k, v)
	}
	h.Set("Shallot-Duration-Ms", strconv.FormatInt(time.Since(begin).Milliseconds(), 10)) // as the caller sees it
}

// prefers reports whether a Prefer header holds the preference (RFC 7240).
func prefers(h http.Header, name string) bool {
	for _, p := range preferences(h) {
		if key, _, _ := strings.Cut(p, "="); strings.EqualFold(strings.TrimSpace(key), name) {
			return true
		}
	}
	return false
}

func preferences(h http.Header) []string {
	var out []string
	for _, v := range h.Values("Prefer") {
		for p := range strings.SplitSeq(v, ",") {
			p, _, _ = strings.Cut(p, ";")
			out = append(out, strings.TrimSpace(p))
		}
	}
	return out
}

// Bounds on how long GET /v1/results waits for an end: briefly, or as long as Prefer: wait=<seconds> asks.
const (
	shortWait = time.Second
	longWait  = time.Minute
)

// result is GET /v1/results/{call}: the end of a call of the same tenant, or 202 while it runs.
func (s *modelFace) result(w http.ResponseWriter, r *http.Request, id api.Identity) {
	call := r.PathValue("call")
	if uuid.Validate(call) != nil || len(call) != 36 {
		writeFault(w, api.Refused(messages.NotFound, "no call %q", call))
		return
	}
	tenant, fault := api.OneValue(r.Header.Values, "Shallot-Tenant")
	switch {
	case fault != nil:
		writeFault(w, fault)
		return
	case tenant == "" || id.Role != api.RoleOperator:
		tenant = id.Tenant
	}
	wait := shortWait
	for _, p := range preferences(r.Header) {
		if sec, ok := strings.CutPrefix(p, "wait="); ok {
			if n, err := strconv.Atoi(sec); err == nil && n > 0 {
				wait = min(time.Duration(min(n, 3600))*time.Second, longWait)
			}
		}
	}
	ctx, cancel := s.untilHalt(r.Context())
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, wait)
	defer stop()
	c, err := s.entry.Result(ctx, tenant, call)
	switch {
	case errors.Is(err, pipeline.ErrHeld):
		accepted(w, call, "approval_pending")
	case err != nil && ctx.Err() == nil, err != nil && !errors.Is(err, ctx.Err()):
		s.failed(w, r, err)
	case c == nil:
		accepted(w, call, "running")
	// another key's call
	case c.Kind == messages.Tool && !id.MayTool(c.Tool), c.Kind == messages.Agent && !id.MayAgent(c.Agent),
		c.Kind == messages.Model && !mayRead(id, c):
		writeFault(w, api.Refused(messages.NotFound, "no call %s", call))
	default:
		s.finish(w, r, c)
	}
}

// mayRead reports whether a key may read the end of a model's call: it must be allowed to use the model.
func mayRead(id api.Identity, c *messages.Call) bool {
	return len(id.Models) == 0 || id.MayModel(chat.ModelName(c.Request()))
}

// modelRow is a model as the OpenAI API lists it.
type modelRow struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

// visibleModels are the models that the key may use, and the agents as agent/<name>.
func (s *modelFace) visibleModels(ctx context.Context, id api.Identity) []modelRow {
	rows := []modelRow{}
	if s.models == nil {
		return rows
	}
	for _, m := range s.models(ctx) {
		may := id.MayModel(m.ID)
		if agent, ok := strings.CutPrefix(m.ID, agentPrefix); ok {
			may = id.MayAgent(agent)
		}
		if may {
			rows = append(rows, modelRow{m.ID, "model", m.Created, m.OwnedBy})
		}
	}
	return rows
}

// listModels is GET /v1/models, in the shape of the API that the caller speaks.
func (s *modelFace) listModels(w http.ResponseWriter, r *http.Request, id api.Identity) {
	if r.Header.Get(anthropicVersion) != "" {
		s.listAnthropicModels(w, r, id)
		return
	}
	writeValue(w, http.StatusOK, struct {
		Object string     `json:"object"`
		Data   []modelRow `json:"data"`
	}{"list", s.visibleModels(r.Context(), id)})
}

// getModel is GET /v1/models/{id}. An id may contain slashes.
func (s *modelFace) getModel(w http.ResponseWriter, r *http.Request, id api.Identity) {
	name := r.PathValue("id")
	rows := s.visibleModels(r.Context(), id)
	i := slices.IndexFunc(rows, func(m modelRow) bool { return m.ID == name })
	if i < 0 {
		writeFault(w, api.Refused(messages.ModelNotFound, "no model %q; GET /v1/models lists all models", name).At("model"))
		return
	}
	if r.Header.Get(anthropicVersion) != "" {
		writeValue(w, http.StatusOK, anthropicRow(rows[i]))
		return
	}
	writeValue(w, http.StatusOK, rows[i])
}
