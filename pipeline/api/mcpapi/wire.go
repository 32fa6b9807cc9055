package mcpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// envelope is what the server itself reads of a JSON-RPC message, before the SDK does.
type envelope struct {
	method      string
	id          json.RawMessage // nil for a notification, a response, a batch
	standsAlone bool            // it carries its revision in _meta, as requests do since 2026-07-28
}

// readEnvelope reads a body that must be JSON. A batch has no envelope.
func readEnvelope(body []byte) (envelope, *messages.Fault) {
	if fault := api.JSONText(body); fault != nil {
		return envelope{}, fault
	}
	in := envelope{method: gjson.GetBytes(body, "method").String()}
	in.standsAlone = gjson.GetBytes(body, `params._meta.io\.modelcontextprotocol/protocolVersion`).Exists()
	if in.id = idOf(body); in.method == "" {
		in.id = nil // the id of a response must not be answered
	}
	if !keptID(in.id) {
		return envelope{}, api.Invalid("id", "%s: %s", in.id, changedID)
	}
	return in, nil
}

// idOf is the id of a message; nil if it has none, or one that is neither a string nor a number.
func idOf(raw []byte) json.RawMessage {
	if id := gjson.GetBytes(raw, "id"); id.Type == gjson.String || id.Type == gjson.Number {
		return json.RawMessage(id.Raw)
	}
	return nil
}

// changedID says what is wrong with an id that keptID refuses.
const changedID = "this id would not come back as it is; use a string, or a whole number up to 2^53"

// keptID reports whether the SDK, which reads numbers as floating point, returns an id unchanged. A caller would wait
// in vain for the answer to a changed one.
func keptID(id json.RawMessage) bool {
	if len(id) == 0 || id[0] == '"' {
		return true
	}
	n, err := strconv.ParseInt(string(id), 10, 64)
	return err == nil && n >= -(1<<53) && n <= 1<<53
}

// rpcError is an error of JSON-RPC.
func rpcError(code int64, format string, values ...any) *jsonrpc.Error {
	return &jsonrpc.Error{Code: code, Message: fmt.Sprintf(format, values...)}
}

// invalidParams is the error of a request with wrong parameters.
func invalidParams(format string, values ...any) *jsonrpc.Error {
	return rpcError(jsonrpc.CodeInvalidParams, format, values...)
}

// wireError answers with an error of JSON-RPC. An error that does not belong to a request has no id.
func wireError(w http.ResponseWriter, status int, id json.RawMessage, code int64, message string) {
	wireRefusal(w, status, id, &jsonrpc.Error{Code: code, Message: message})
}

func wireRefusal(w http.ResponseWriter, status int, id json.RawMessage, e *jsonrpc.Error) {
	api.WriteJSON(w, status, append(rawjson.Encode(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id,omitempty"`
		Error   *jsonrpc.Error  `json:"error"`
	}{"2.0", id, e}), '\n'))
}

// writeTimeout is how long one write to an MCP client may take.
const writeTimeout = 30 * time.Second

// wireWriter passes on the SDK's answers. A refusal in plain text is sent as JSON-RPC, with a hint what to do. A client
// that does not read loses only its own connection.
type wireWriter struct {
	http.ResponseWriter
	in   envelope
	held int // the status of a refusal in plain text, which is sent later
	text bytes.Buffer
}

// Unwrap lets http.ResponseController reach deadlines and Flush.
func (w *wireWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *wireWriter) WriteHeader(status int) {
	if status >= http.StatusBadRequest && strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
		w.held = status
		return
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *wireWriter) Write(b []byte) (int, error) {
	if w.held != 0 {
		return w.text.Write(b)
	}
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(writeTimeout))
	return w.ResponseWriter.Write(b)
}

// end sends a refusal that was kept back.
func (w *wireWriter) end() {
	if w.held == 0 {
		return
	}
	w.Header().Del("X-Content-Type-Options")
	text := strings.TrimSpace(w.text.String())
	status, code := w.held, int64(jsonrpc.CodeInvalidRequest)
	switch {
	case strings.Contains(text, "JSON RPC not handled"):
		if w.in.id == nil { // an unknown notification is not answered
			w.ResponseWriter.WriteHeader(http.StatusAccepted)
			return
		}
		status, code, text = http.StatusOK, jsonrpc.CodeMethodNotFound, "method not found: "+w.in.method
	case status == http.StatusNotFound:
		code, text = codeNoSession, text+"; it has ended, or another gateway has it: begin a new one with initialize"
	case status == http.StatusMethodNotAllowed:
		text += ": requests are sent with POST; GET and DELETE need the Mcp-Session-Id of a session"
	case status == http.StatusForbidden:
		text += ": a session belongs to the key that began it"
	case status >= http.StatusInternalServerError:
		code = jsonrpc.CodeInternalError
	case strings.HasPrefix(text, "Accept must"):
		text += "; send Accept: application/json, text/event-stream"
	case strings.HasPrefix(text, "missing id"):
		text += "; a request has an id that is a string or a number"
	}
	wireError(w.ResponseWriter, status, w.in.id, code, text)
}

// codeNoSession is what clients of older revisions expect beside the status 404.
const codeNoSession = -32001
