package mcpapi

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// taskRecord is what is stored of a task, beside its calls.
type taskRecord struct {
	Who      string    `json:"who"` // the key that made it
	Tool     string    `json:"tool"`
	Executor string    `json:"executor"` // the tool's kind, in case the tool is gone when the result is asked for
	Created  time.Time `json:"created"`
	Changed  time.Time `json:"changed"`
	// Call is the call that is under way, or the last one: a tool that asks for input ends with its question, and is
	// called again with the answers. Round counts these calls from 1.
	Call  string `json:"call"`
	Round int    `json:"round"`
	// Answers are the answers to the questions of this round, by the names that the caller sees.
	Answers   map[string]json.RawMessage `json:"answers,omitempty"`
	Cancelled bool                       `json:"cancelled,omitempty"` // cancellation was requested
	// Limit is how long a call may take by the caller's word, if they gave one; MaxTime by the tool's.
	Limit   time.Duration `json:"limit,omitempty"`
	MaxTime time.Duration `json:"max_time,omitempty"`
	// Asked counts the answers of the person that decided nothing. Note says what was wrong with the last one. Quiet
	// says that they declined to decide.
	Asked int    `json:"asked,omitempty"`
	Note  string `json:"note,omitempty"`
	Quiet bool   `json:"quiet,omitempty"`
}

// task is a record as it was read.
type task struct {
	taskRecord
	id, tenant string
	revision   uint64
	written    time.Time
	ttl        time.Duration // of the record, from when it was written
	ended      time.Time     // when the end was recorded; zero before
}

func taskKey(tenant, id string) string { return messages.Key(tenant, "task", id) }

// taskTime bounds the work of one request with the store.
const taskTime = 5 * time.Second

// newTask stores the record of a task. When it returns, every gateway knows the task.
func (f *Server) newTask(
	ctx context.Context, req *mcp.CallToolRequest, r pipeline.Request, d *tool.Definition, call string,
) (*task, error) {
	id, _ := f.caller(req.Extra)
	now := time.Now().UTC()
	t := &task{id: rand.Text(), tenant: r.Tenant, written: now, ttl: f.Tasks.ResultTTL(), taskRecord: taskRecord{
		Who: id.Who(), Tool: d.Name, Executor: d.Executor.Kind, Created: now, Changed: now, Call: call, Round: 1,
	}}
	t.MaxTime = r.MaxTime
	if !r.Deadline.IsZero() {
		t.Limit = r.Deadline.Sub(now)
	}
	limit, cancel := context.WithTimeout(ctx, taskTime)
	defer cancel()
	value := rawjson.Encode(t.taskRecord)
	_, err := f.Tasks.Results().Put(limit, taskKey(t.tenant, t.id), value, 0, pipeline.IfAbsent())
	return t, err
}

// loadTask reads a task for a caller. A task of another tenant or another key does not exist for them.
func (f *Server) loadTask(ctx context.Context, extra *mcp.RequestExtra, id string) (*task, error) {
	who, headers := f.caller(extra)
	r, fault := api.Metadata(headers.Values, who, api.Chat{}, time.Now())
	if fault != nil {
		return nil, metadataError(fault, nil)
	}
	none := invalidParams("there is no task %q of this key; tasks are kept %s", messages.Clip(id, 64), f.Tasks.ResultTTL())
	none.Data = rawjson.Encode(map[string]any{"shallot/fault": messages.NotFound, "shallot/retryable": false})
	if len(id) > 128 {
		return nil, none
	}
	e, err := f.Tasks.Results().Get(ctx, taskKey(r.Tenant, id))
	if errors.Is(err, pipeline.ErrNotFound) {
		return nil, none
	}
	t := &task{id: id, tenant: r.Tenant, revision: e.Revision, written: e.Created, ttl: f.Tasks.ResultTTL()}
	if err == nil {
		err = json.Unmarshal(e.Value, &t.taskRecord)
	}
	if err != nil {
		return nil, f.taskTrouble(id, err)
	}
	if t.Who != who.Who() || !f.mayTool(who, t.Tool) {
		return nil, none
	}
	return t, nil
}

// saveTask writes a task. If it was changed since it was read, the error is pipeline.ErrChanged.
func (f *Server) saveTask(ctx context.Context, t *task) error {
	key, value := taskKey(t.tenant, t.id), rawjson.Encode(t.taskRecord)
	_, err := f.Tasks.Results().Put(ctx, key, value, 0, pipeline.IfRevision(t.revision))
	return err
}

// keepTask renews the record of a task that is under way, so that it outlasts a long call, for example a parked one.
func (f *Server) keepTask(ctx context.Context, t *task) {
	if time.Since(t.written) < t.ttl/2 {
		return
	}
	if err := f.saveTask(ctx, t); err == nil {
		t.written = time.Now()
	}
}

// taskTrouble is an error that the caller did not cause.
func (f *Server) taskTrouble(id string, err error) error {
	f.Log.Warn("a task cannot be served", "task", id, "err", err)
	broken := rpcError(jsonrpc.CodeInternalError,
		"the task's record cannot be read or written now; it is kept, ask again later")
	broken.Data = rawjson.Encode(map[string]any{"shallot/fault": messages.StoreUnavailable, "shallot/retryable": true})
	return broken
}

// asked is the question that a call ended with, with the names that the MCP server gave.
type asked struct {
	names    []string
	requests map[string]json.RawMessage
	state    string
}

// questionOf returns the question that a call ended with; nil if it ended otherwise.
func questionOf(t *task, c *messages.Call) *asked {
	raw, ok := tool.NativeMCP(c)
	if t.Executor != tool.ExecMCP || !ok || fieldText(raw, "resultType") != "input_required" {
		return nil
	}
	q := &asked{requests: map[string]json.RawMessage{}, state: fieldText(raw, "requestState")}
	requests, _ := rawjson.Field(raw, "inputRequests")
	rawjson.EachField(requests, func(name string, request []byte) {
		q.names = append(q.names, name)
		q.requests[name] = request
	})
	return q
}

// shown is the name of a request of this round as the caller sees it. It is unique in the life of a task, whatever
// names the MCP server uses.
func (t *task) shown(name string) string { return strconv.Itoa(t.Round) + "." + name }

// open are the requests without an answer, by the names that the caller sees.
func (t *task) open(q *asked) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for _, name := range q.names {
		if _, done := t.Answers[t.shown(name)]; !done {
			out[t.shown(name)] = q.requests[name]
		}
	}
	return out
}

// nextRound calls the tool again with the answers. Several gateways may do it, and do it again after one has died in
// the middle: the idempotency key makes it one call.
func (f *Server) nextRound(ctx context.Context, t *task, c *messages.Call, q *asked) error {
	note := tool.MCPCall{}
	c.Noted(messages.NoteMCP, &note)
	note.Progress, note.LogLevel, note.RequestState, note.InputResponses = false, "", q.state, nil
	answers := map[string]json.RawMessage{}
	for _, name := range q.names {
		answers[name] = t.Answers[t.shown(name)]
	}
	if len(answers) > 0 {
		note.InputResponses = rawjson.Encode(answers)
	}
	body := c.Request()
	if text, ok := c.RequestText(); ok {
		body = []byte(text)
	}
	var deadline time.Time
	if t.Limit > 0 {
		deadline = time.Now().Add(t.Limit)
	}
	pending, err := f.Entry.Accept(ctx, pipeline.Request{
		Kind: messages.Tool, Tool: c.Tool, Body: body,
		Tenant: c.Tenant, Role: c.Role, Models: c.Models, Session: c.Session, Run: c.Run, User: c.User,
		Agent: c.Agent, RequestID: c.RequestID, IdempotencyKey: "mcp-task/" + t.id + "/" + strconv.Itoa(t.Round+1),
		Deadline: deadline, MaxTime: t.MaxTime, Cache: "off", Explain: c.Explain, Submit: true,
		Trace: c.Trace, Notes: messages.Notes{messages.NoteMCP: rawjson.Encode(note)},
	})
	if err != nil {
		return err
	}
	t.Call, t.Changed, t.Answers, t.Note = pending.ID(), time.Now().UTC(), nil, ""
	t.Round++
	err = f.saveTask(ctx, t)
	if errors.Is(err, pipeline.ErrChanged) { // another gateway did the same, or the task was cancelled
		e, err := f.Tasks.Results().Get(ctx, taskKey(t.tenant, t.id))
		var now taskRecord
		if err == nil && json.Unmarshal(e.Value, &now) == nil && now.Cancelled {
			f.Tasks.Cancel(pending.ID())
		}
		return err
	}
	return err
}
