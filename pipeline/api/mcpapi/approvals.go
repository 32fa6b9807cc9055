package mcpapi

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/approval"
)

// ApprovalService is what the server needs for calls that wait for a person; host.Approvals is it.
type ApprovalService interface {
	api.ApprovalService
	StateKey(ctx context.Context) ([]byte, error)
}

const (
	// ownState begins every requestState of this server, to tell it from those of MCP servers behind it.
	ownState = "shallot-held."
	// metaState is where callers of older revisions put the state.
	metaState = "shallot/request-state"
	// questionID is the name of this server's question among the input requests.
	questionID = "shallot-approval"
	// heldWait is how long a repeated call waits for the decision before it is told again that the call waits. Clients
	// repeat at once, so it also keeps them from asking all the time.
	heldWait = 20 * time.Second
	// stateKept is how much longer than its question a state is valid, so that the result can be fetched.
	stateKept = 24 * time.Hour
)

// heldState is what a client carries from one request to the next: which call it made, with what.
type heldState struct {
	Call      string    `json:"c"`
	Tenant    string    `json:"t"`
	Tool      string    `json:"n"`
	Arguments string    `json:"a"` // their hash, so that the state cannot be used for another call
	Until     time.Time `json:"u"`
	// Quiet says that the person at the client declined to decide. They are not asked again.
	Quiet bool `json:"q,omitempty"`
}

// seal signs a state, so that a client can only bring back a state that a gateway of this installation issued.
func (s heldState) seal(key []byte) string {
	payload := base64.RawURLEncoding.EncodeToString(rawjson.Encode(s))
	return ownState + payload + "." + stateMAC(key, payload)
}

func stateMAC(key []byte, payload string) string {
	m := hmac.New(sha256.New, key)
	_, _ = m.Write([]byte(ownState + payload))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// openState reads a state that seal signed with the key.
func openState(key []byte, text string, now time.Time) (s heldState, ok bool) {
	payload, mac, found := strings.Cut(strings.TrimPrefix(text, ownState), ".")
	if !found || !hmac.Equal([]byte(mac), []byte(stateMAC(key, payload))) {
		return s, false
	}
	raw, err := base64.RawURLEncoding.DecodeString(payload)
	return s, err == nil && json.Unmarshal(raw, &s) == nil && now.Before(s.Until)
}

// hashArguments is the same for equal arguments, however they are written.
func hashArguments(raw []byte) string {
	if rawjson.IsNull(raw) {
		raw = []byte("{}")
	}
	if canonical, err := rawjson.Canonical(raw); err == nil {
		raw = canonical
	}
	sum := sha256.Sum256(raw)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// carried is the state that a request brings back, if this server issued it.
func carried(req *mcp.CallToolRequest) (string, bool) {
	if strings.HasPrefix(req.Params.RequestState, ownState) {
		return req.Params.RequestState, true
	}
	state, _ := req.Params.Meta[metaState].(string)
	return state, strings.HasPrefix(state, ownState)
}

// held answers for a call that waits for a person. Clients of 2026-07-28 get input_required with a state, and repeat
// the call with it. If the caller may decide and can be asked, the question goes with it; clients of older revisions
// are asked over their session. A caller that can neither decide nor repeat gets a text that says where the result will
// be.
//
// of says which call that is, and whether its caller declined to be asked. note is what was wrong with an answer.
func (f *Server) held(
	ctx context.Context, req *mcp.CallToolRequest, of heldState, note string,
) (*mcp.CallToolResult, error) {
	call := of.Call
	meta := map[string]any{"shallot/status": "approval_pending", "shallot/call": call}
	if f.Approvals == nil {
		return textResult("The call waits for an approval; its result will be at "+api.ResultPath(call)+".", meta), nil
	}
	a, err := f.Approvals.Approval(ctx, of.Tenant, call)
	if err != nil { // it was decided just now; the next request finds the result
		a = api.Approval{Expires: time.Now()}
	}
	key, kerr := f.Approvals.StateKey(ctx)
	if kerr != nil {
		return faultResult(messages.AsFault(kerr, "entry"), call)
	}
	of.Tool, of.Arguments, of.Until = req.Params.Name, hashArguments(req.Params.Arguments), a.Expires.Add(stateKept).UTC()
	state := of.seal(key)
	modern := sessionlessClient(req)
	id, _ := f.caller(req.Extra)
	if err == nil && id.Operator() && asksForms(req) && !of.Quiet && (modern || req.Params.InputResponses == nil) {
		if q := question(a, note); q != nil {
			asks := mcp.InputRequestMap{questionID: q}
			return &mcp.CallToolResult{Meta: meta, RequestState: state, InputRequests: asks}, nil
		}
	}
	if modern {
		return &mcp.CallToolResult{Meta: meta, RequestState: state, InputRequests: mcp.InputRequestMap{}}, nil
	}
	meta[metaState] = state
	if note != "" {
		note += " "
	}
	return textResult(fmt.Sprintf("%sThe call %s of '%s' waits for a person's approval and has not run. "+
		"Its result will be at %s; or make the same call again with %q in _meta as it stands in this result's _meta.",
		note, call, req.Params.Name, api.ResultPath(call), metaState), meta), nil
}

// sessionlessClient reports whether the caller's revision has input_required.
func sessionlessClient(req *mcp.CallToolRequest) bool {
	if req.Session == nil {
		return true
	}
	p := req.Session.InitializeParams()
	return p == nil || p.ProtocolVersion >= firstSessionless
}

// asksForms reports whether the caller can show a form to a person.
func asksForms(req *mcp.CallToolRequest) bool {
	caps := req.ClientCapabilities()
	return caps != nil && caps.Elicitation != nil && (caps.Elicitation.Form != nil || caps.Elicitation.URL == nil)
}

// question is the form with which a person at the client decides; nil if a run waits for something else.
func question(a api.Approval, note string) *mcp.ElicitParams {
	if a.Kind == messages.Agent {
		return runQuestion(a, note)
	}
	q := gjson.ParseBytes(a.Question)
	shown := q.Get("arguments").Raw
	if shown == "" {
		shown = q.Get("arguments_preview").Str + "…"
	}
	text := fmt.Sprintf("The tool '%s' wants to run with %s. It waits for a decision until %s (policy %s).",
		a.Tool, shown, a.Expires.Format(time.RFC3339), q.Get("policy").Str)
	if why := q.Get("note").Str; why != "" {
		text += " Note: " + why + "."
	}
	if note != "" {
		text = note + " " + text
	}
	var allowed []string
	for _, d := range q.Get("decisions").Array() {
		allowed = append(allowed, d.Str)
	}
	field := func(title, description string) map[string]any {
		return map[string]any{"type": "string", "title": title, "description": description}
	}
	props := map[string]any{
		"decision": map[string]any{"type": "string", "title": "Decision", "enum": allowed},
		"reason":   field("Reason", "Why; the caller reads it."),
	}
	if slices.Contains(allowed, approval.Edit) {
		props["arguments"] = field("Arguments", "For edit: the arguments to run with, as a JSON object.")
	}
	if slices.Contains(allowed, approval.Respond) {
		props["content"] = field("Content", "For respond: what the caller gets as the result.")
	}
	form := map[string]any{"type": "object", "properties": props, "required": []string{"decision"}}
	return &mcp.ElicitParams{Mode: "form", Message: text, RequestedSchema: form}
}

// attach serves a call that is repeated with a state of this server: it takes the decision that comes with it and waits
// a while for the end.
func (f *Server) attach(
	ctx context.Context, d *tool.Definition, req *mcp.CallToolRequest, text string,
) (*mcp.CallToolResult, error) {
	refuse := func(why string) (*mcp.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "requestState: " + why}
	}
	if f.Approvals == nil {
		return refuse("this gateway keeps none")
	}
	key, err := f.Approvals.StateKey(ctx)
	if err != nil {
		return faultResult(messages.AsFault(err, "entry"), "")
	}
	id, _ := f.caller(req.Extra)
	s, ok := openState(key, text, time.Now())
	switch {
	case !ok:
		return refuse("this installation did not issue it, or it is too old; make the call again without it")
	case s.Tenant != id.Tenant && !id.Operator(), s.Tool != req.Params.Name,
		s.Arguments != hashArguments(req.Params.Arguments):
		return refuse("it belongs to another call; send it with the same tool and arguments")
	}
	answer, asked := req.Params.InputResponses[questionID]
	if asked {
		note, err := f.decided(ctx, req, &s, answer)
		if err != nil {
			return nil, err
		}
		if note != "" || s.Quiet {
			return f.held(ctx, req, s, note)
		}
	}
	limit, cancel := context.WithTimeout(ctx, heldWait)
	defer cancel()
	for {
		c, err := f.Entry.Result(limit, s.Tenant, s.Call)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case c != nil:
			return f.result(d, c, standsAlone(req.Params))
		case limit.Err() != nil, asked && errors.Is(err, pipeline.ErrHeld) && f.asksAgain(ctx, d, s):
			return f.held(ctx, req, s, "")
		case err != nil && !errors.Is(err, pipeline.ErrHeld):
			return faultResult(messages.AsFault(err, "entry"), s.Call)
		}
		select {
		case <-limit.Done():
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// decided passes the person's answer to the call. note says what was wrong with the answer; then the call keeps
// waiting.
func (f *Server) decided(
	ctx context.Context, req *mcp.CallToolRequest, s *heldState, answer mcp.InputResponse,
) (note string, err error) {
	id, _ := f.caller(req.Extra)
	form, ok := answer.(*mcp.ElicitResult)
	switch {
	case !id.Operator():
		return "", invalidParams("inputResponses: you may not decide about this call; an operator does")
	case !ok:
		return "", invalidParams("inputResponses: the answer to %s is not an elicitation result", questionID)
	}
	d, note := decisionOf(form)
	if d == nil {
		s.Quiet = note == ""
		return note, nil
	}
	if form.Action == "decline" {
		d = f.declined(ctx, s, d)
	}
	err = f.Approvals.Decide(api.WithOrigin(ctx, "mcp"), s.Tenant, s.Call, d, id.Who()+"/mcp")
	if errors.Is(err, pipeline.ErrHeld) && form.Content[callField] != nil {
		return "That is decided; the run waits for more.", nil
	}
	if err == nil || errors.Is(err, pipeline.ErrHeld) {
		return "", nil
	}
	fault := messages.AsFault(err, "entry")
	if fault.Code == messages.Conflict && fault.Param == "" || fault.Code == messages.NotFound {
		return "", nil // it was decided or expired before: the result says what became of it
	}
	return fault.Message + ".", nil
}

// decisionOf reads a filled-in form. Neither a decision nor a note means that the person declined to decide.
func decisionOf(form *mcp.ElicitResult) (decision json.RawMessage, note string) {
	text := func(key string) string { s, _ := form.Content[key].(string); return s }
	switch form.Action {
	case "accept":
	case "decline":
		return rawjson.Encode(approval.Decision{Decision: approval.Reject, Reason: "declined at the client"}), ""
	default:
		return nil, ""
	}
	d := approval.Decision{Decision: text("decision"), Reason: text("reason")}
	if d.Decision == "" {
		return nil, ""
	}
	if raw := strings.TrimSpace(text("arguments")); raw != "" && d.Decision == approval.Edit {
		if !json.Valid([]byte(raw)) {
			return nil, "The arguments are not JSON."
		}
		d.Arguments = json.RawMessage(raw)
	}
	if d.Decision == approval.Respond {
		d.Content = rawjson.Encode(text("content"))
	}
	raw := rawjson.Encode(d)
	if call := text(callField); call != "" {
		raw = rawjson.SetFieldString(raw, "id", call)
	}
	return raw, ""
}
