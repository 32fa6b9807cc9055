package mcpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// metaHeaders are the keys of _meta that callers may set, with our prefix or reserved by the protocol, and the header
// with the same meaning for each.
var metaHeaders = []struct{ key, header string }{
	{"shallot/idempotency-key", "Idempotency-Key"},
	{"shallot/session", "Shallot-Session"},
	{"shallot/timeout", "Shallot-Timeout"},
	{"shallot/deadline", "Shallot-Deadline"},
	{"shallot/cache", "Shallot-Cache"},
	{"traceparent", "Traceparent"},
	{"tracestate", "Tracestate"},
}

// request makes a request for the entry of a tools/call.
func (f *Server) request(d *tool.Definition, req *mcp.CallToolRequest) (pipeline.Request, error) {
	id, headers := f.caller(req.Extra)
	headers, said, err := withMeta(headers, req.Params.Meta)
	if err != nil {
		return pipeline.Request{}, err
	}
	r, fault := api.Metadata(headers.Values, id, api.Chat{}, time.Now())
	if d.Executor.Kind == execAgent {
		r.Agent = d.Executor.Name
	}
	if fault == nil && r.Agent != "" && !id.MayAgent(r.Agent) {
		fault = api.Forbidden("the key may not use agent %q", r.Agent).At("Shallot-Agent")
	}
	if fault != nil {
		return r, metadataError(fault, said)
	}
	if d.Executor.Kind == execAgent {
		r.Kind, r.Stream = messages.Agent, false
		r.Body, err = runBody(r.Agent, req.Params.Arguments)
		return r, err
	}
	r.Kind, r.Tool, r.Body, r.Stream = messages.Tool, d.Name, req.Params.Arguments, false
	if len(r.Body) == 0 || string(r.Body) == "null" {
		r.Body = []byte("{}")
	}
	note := tool.MCPCall{Progress: req.Params.GetProgressToken() != nil, RequestState: req.Params.RequestState}
	if d.Executor.Kind == tool.ExecMCP {
		note.Capabilities = inputCapabilities(req)
		note.LogLevel = f.logs.level(req)
		note.Progress = note.Progress || note.LogLevel != "" // log messages travel as progress does
	}
	if len(req.Params.InputResponses) > 0 {
		raw, err := json.Marshal(req.Params.InputResponses)
		if err != nil {
			return r, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "inputResponses: " + err.Error()}
		}
		note.InputResponses = raw
	}
	if note.InputResponses != nil || note.RequestState != "" {
		r.Cache = "off" // the result of a caller's answers must not be given to others
		if r.IdempotencyKey != "" {
			// The same key with an answer is the next round of the call, not the same request again.
			r.IdempotencyKey += "." + tool.NativeHash(append(note.InputResponses, note.RequestState...))[:12]
		}
	}
	r.Notes = messages.Notes{messages.NoteMCP: rawjson.Encode(note)}
	return r, nil
}

// withMeta replaces headers by the entries of _meta with the same meaning. said maps the header to the key that set it.
func withMeta(h http.Header, meta mcp.Meta) (headers http.Header, said map[string]string, err error) {
	headers, said = h.Clone(), map[string]string{}
	for _, m := range metaHeaders {
		v, ok := meta[m.key]
		if !ok {
			continue
		}
		text, isText := v.(string)
		trace := !strings.HasPrefix(m.key, "shallot/")
		switch before := headers.Values(m.header); {
		case trace && !isText: // an invalid trace context is dropped, as the standard says
		case !isText:
			said := map[string]string{m.header: m.key}
			return nil, nil, metadataError(api.Invalid(m.header, "header %s must be a string", m.header), said)
		case !trace && len(before) > 0 && (len(before) > 1 || before[0] != text):
			return nil, nil, metadataError(api.Invalid(m.header,
				"_meta %q and the header %s say different things; give one of them", m.key, m.header), nil)
		default:
			headers[m.header], said[m.header] = []string{text}, m.key
		}
	}
	return headers, said, nil
}

// metadataError is a fault of request metadata as an error of the protocol. It names the key that the caller used.
func metadataError(f *messages.Fault, said map[string]string) error {
	param, text := f.Param, f.Message
	if key, ok := said[f.Param]; ok {
		param = "_meta." + key
		text = strings.Replace(text, "header "+f.Param, fmt.Sprintf("_meta %q", key), 1)
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: text, Data: rawjson.Encode(map[string]any{
		"shallot/fault": f.Code, "shallot/retryable": f.Retryable(), "param": param,
	})}
}
