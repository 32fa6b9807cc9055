package mcpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// The values of resultType and status that this server uses.
const (
	resultComplete = "complete"
	resultTask     = "task"

	statusWorking   = "working"
	statusInput     = "input_required"
	statusCompleted = "completed"
	statusFailed    = "failed"
	statusCancelled = "cancelled"
)

// taskParams are the parameters of all methods of the extension.
type taskParams struct {
	mcp.ParamsBase
	TaskID         json.RawMessage `json:"taskId"`
	InputResponses json.RawMessage `json:"inputResponses"`
}

func (p *taskParams) id() (string, error) {
	id, ok := rawjson.IsString(p.TaskID)
	if !ok || id == "" {
		return "", invalidParams("taskId: it must be the text that tools/call gave")
	}
	return id, nil
}

// answers are the responses by name. Each must be an object.
func (p *taskParams) answers() (map[string]json.RawMessage, error) {
	wrong := func(what string) error {
		return invalidParams("inputResponses: %s must be an object", what)
	}
	if !gjson.ParseBytes(p.InputResponses).IsObject() {
		return nil, wrong("it")
	}
	out := map[string]json.RawMessage{}
	var bad string
	rawjson.EachField(p.InputResponses, func(name string, answer []byte) {
		if !gjson.ParseBytes(answer).IsObject() {
			bad = name
		}
		out[name] = answer
	})
	if bad != "" {
		return nil, wrong(fmt.Sprintf("the response %q", messages.Clip(bad, 64)))
	}
	return out, nil
}

// taskView is a task as callers see it: the handle that answers tools/call, and the answer to tasks/get.
type taskView struct {
	mcp.ResultBase
	ResultType     string          `json:"resultType"`
	TaskID         string          `json:"taskId"`
	Status         string          `json:"status"`
	StatusMessage  string          `json:"statusMessage,omitempty"`
	CreatedAt      string          `json:"createdAt"`
	LastUpdatedAt  string          `json:"lastUpdatedAt"`
	TTLMs          int64           `json:"ttlMs"`
	PollIntervalMs int64           `json:"pollIntervalMs"`
	InputRequests  json.RawMessage `json:"inputRequests,omitempty"`
	Result         json.RawMessage `json:"result,omitempty"`
	Error          *jsonrpc.Error  `json:"error,omitempty"`
}

// taskAck acknowledges tasks/update and tasks/cancel.
type taskAck struct {
	mcp.ResultBase
	ResultType string `json:"resultType"`
}

// view shows a task. Its time to live is that of the record or of the result, whichever ends first.
func (t *task) view(status string) *taskView {
	changed, until := t.Changed, t.written.Add(t.ttl)
	if !t.ended.IsZero() {
		changed = t.ended
		if end := t.ended.Add(t.ttl); end.Before(until) {
			until = end
		}
	}
	stamp := func(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000Z") }
	return &taskView{
		ResultType: resultComplete, TaskID: t.id, Status: status, CreatedAt: stamp(t.Created), LastUpdatedAt: stamp(changed),
		TTLMs: max(until.Sub(t.Created).Milliseconds(), 1), PollIntervalMs: pollEvery(time.Since(t.Created)).Milliseconds(),
	}
}

// pollEvery is the interval at which a caller should poll; it grows with the age of the task.
func pollEvery(age time.Duration) time.Duration {
	return min(max(age/10, 500*time.Millisecond), 5*time.Second).Truncate(time.Millisecond)
}

// taskRefusal checks what the SDK does not check in a request of the extension: Mcp-Name is the task's id, and callers
// that want news of tasks must declare the extension.
func taskRefusal(r *http.Request, in envelope, body []byte) *jsonrpc.Error {
	params := gjson.GetBytes(body, "params")
	switch _, ours := taskMethods[in.method]; {
	case ours:
		name, id := r.Header.Get("Mcp-Name"), params.Get("taskId")
		if name == "" {
			return rpcError(mcp.CodeHeaderMismatch,
				"missing required Mcp-Name header for method %q; it is the taskId", in.method)
		}
		if id.Type == gjson.String && id.Str != name {
			return rpcError(mcp.CodeHeaderMismatch, "header mismatch: Mcp-Name header value %q does not match body value %q",
				messages.Clip(name, 64), messages.Clip(id.Str, 64))
		}
	case in.method == "subscriptions/listen" && params.Get("notifications.taskIds").Exists():
		caps := params.Get(`_meta.io\.modelcontextprotocol/clientCapabilities.extensions.io\.modelcontextprotocol/tasks`)
		if !caps.IsObject() {
			return needsTasks("news of tasks belongs to the extension " + TasksExtension)
		}
	}
	return nil
}

// fieldText is a text field of an object; empty if there is none.
func fieldText(obj []byte, key string) string {
	s, _ := rawjson.FieldString(obj, key)
	return s
}
