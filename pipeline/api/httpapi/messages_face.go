package httpapi

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// This file is the face of Anthropic's Messages API.

// Headers of its clients. What they mean is the provider's matter: they travel with the body as they came.
const (
	anthropicPrefix  = "Anthropic-"
	anthropicVersion = "Anthropic-Version"
	// claudeSession names a session of Claude Code. It is a label in records and not a session of ours, because stages
	// that shape sessions would change what this client does not want changed.
	claudeSession = "X-Claude-Code-Session-Id"
)

// Bounds on the headers that travel: how many there may be, and how long each.
const (
	maxWireHeaders = 16
	maxWireHeader  = 4096
)

// speaksMessages reports whether a request comes from a client of the Messages API, which reads errors in the shape of
// that API, whatever they are about: keys, paths that are not served, methods.
func speaksMessages(r *http.Request) bool {
	const path = "/v1/messages"
	return r.Header.Get(anthropicVersion) != "" || r.URL.Path == path || strings.HasPrefix(r.URL.Path, path+"/")
}

// messages is POST /v1/messages, streaming and not: the body goes in as it came, the reply goes out as it is.
func (s *modelFace) messages(w http.ResponseWriter, r *http.Request, id api.Identity) {
	req, ok := s.body(w, r, id, messages.MessagesWire)
	if !ok {
		return
	}
	if req.Notes == nil {
		req.Notes = messages.Notes{}
	}
	if h := wireHeaders(r.Header); len(h) > 0 {
		req.Notes[messages.NoteWireHeaders] = rawjson.Encode(h)
	}
	if label := r.Header.Get(claudeSession); api.MetaValue(label) {
		req.Notes[messages.NoteSessionLabel] = rawjson.Encode(label)
	}
	s.run(w, r, req)
}

// wireHeaders are the headers that belong to the body: an open list, since each feature brings one of its own.
func wireHeaders(h http.Header) map[string]string {
	out := map[string]string{}
	for name, values := range h {
		value := strings.Join(values, ",")
		if strings.HasPrefix(name, anthropicPrefix) && len(out) < maxWireHeaders && len(value) <= maxWireHeader {
			out[strings.ToLower(name)] = value
		}
	}
	return out
}

// countTokens is POST /v1/messages/count_tokens. It is an estimate: asking the provider would send the texts past the
// stages that hide what is private.
func (s *modelFace) countTokens(w http.ResponseWriter, r *http.Request, id api.Identity) {
	req, ok := s.body(w, r, id, messages.MessagesWire)
	if !ok {
		return
	}
	writeValue(w, http.StatusOK, struct {
		InputTokens int64 `json:"input_tokens"`
	}{view.Estimate(view.Of(messages.MessagesWire), req.Body)})
}

// errorTypes are the types of errors by status.
var errorTypes = map[int]string{
	http.StatusBadRequest: "invalid_request_error", http.StatusUnauthorized: "authentication_error",
	http.StatusPaymentRequired: "billing_error", http.StatusForbidden: "permission_error",
	http.StatusNotFound: "not_found_error", http.StatusRequestEntityTooLarge: "request_too_large",
	http.StatusTooManyRequests: "rate_limit_error", http.StatusServiceUnavailable: "overloaded_error",
	http.StatusGatewayTimeout: "timeout_error",
}

// anthropicError is {"type":"error","error":{"type","message"},"request_id"}.
func anthropicError(f *messages.Fault, request string) []byte {
	type inner struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	kind := errorTypes[faultStatus(f)]
	switch {
	case kind == "" && faultStatus(f) < http.StatusInternalServerError:
		kind = "invalid_request_error"
	case kind == "":
		kind = "api_error"
	}
	return rawjson.Encode(struct {
		Type    string `json:"type"`
		Error   inner  `json:"error"`
		Request string `json:"request_id"`
	}{"error", inner{kind, f.Message}, request})
}

// writeEnd answers with the fault of a call. Where the provider refused a request in the caller's own wire, it answers
// with the provider's own body: clients go by its words.
func writeEnd(w http.ResponseWriter, c *messages.Call) {
	var raw json.RawMessage
	if c.Wire.Or() == messages.ChatWire || !c.Noted(messages.NoteUpstreamError, &raw) {
		writeFault(w, c.Fault)
		return
	}
	for k, v := range api.FaultHeaders(c.Fault) {
		setHeader(w.Header(), k, v)
	}
	api.WriteJSON(w, faultStatus(c.Fault), raw)
}

// anthropicModel is a model as the Messages API lists it.
type anthropicModel struct {
	Type        string `json:"type"`
	ID          string `json:"id"`
	DisplayName string `json:"display_name"`
	CreatedAt   string `json:"created_at"`
}

func anthropicRow(m modelRow) anthropicModel {
	return anthropicModel{"model", m.ID, m.ID, time.Unix(m.Created, 0).UTC().Format(time.RFC3339)}
}

// listAnthropicModels is GET /v1/models for clients of the Messages API: pages by limit, after_id and before_id.
func (s *modelFace) listAnthropicModels(w http.ResponseWriter, r *http.Request, id api.Identity) {
	const normal, most = 20, 1000
	limit := normal
	if n, err := strconv.Atoi(r.URL.Query().Get("limit")); err == nil && n > 0 {
		limit = min(n, most)
	}
	rows := []anthropicModel{}
	for _, m := range s.visibleModels(r.Context(), id) {
		rows = append(rows, anthropicRow(m))
	}
	rows, more := modelPage(rows, r.URL.Query().Get("after_id"), r.URL.Query().Get("before_id"), limit)
	list := struct {
		Data    []anthropicModel `json:"data"`
		First   *string          `json:"first_id"`
		HasMore bool             `json:"has_more"`
		Last    *string          `json:"last_id"`
	}{Data: rows, HasMore: more}
	if len(rows) > 0 {
		list.First, list.Last = &rows[0].ID, &rows[len(rows)-1].ID
	}
	writeValue(w, http.StatusOK, list)
}

// modelPage returns the rows after one id, or before another, and whether there are more in that direction.
func modelPage(rows []anthropicModel, after, before string, limit int) ([]anthropicModel, bool) {
	for i, m := range rows {
		if m.ID == after {
			rows = rows[i+1:]
			break
		}
		if m.ID == before {
			rows = rows[:i]
			return rows[max(0, len(rows)-limit):], len(rows) > limit
		}
	}
	return rows[:min(limit, len(rows))], len(rows) > limit
}
