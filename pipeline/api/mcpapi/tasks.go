package mcpapi

import (
	"context"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// The Tasks extension of MCP 2026-07-28. A task is a call on the bus whose end is recorded, and a record that says
// whose it is. The handle is sent when both are stored, so that any gateway of the installation can answer for the
// task, even when the one that accepted the call is gone.

// TasksExtension is the extension's name among capabilities.
const TasksExtension = "io.modelcontextprotocol/tasks"

// taskAfter is how long the caller of a tool with the policy auto waits for the result before they get a handle.
const taskAfter = 2 * time.Second

// taskSlack is how much longer than its tool's timeout a task may take, for stages and for waiting in a queue.
const taskSlack = time.Minute

// TaskStore keeps tasks, and knows their calls; a *bus.Node is one.
type TaskStore interface {
	// Peek returns the end of a call and when it was recorded. A call under way gives nil, one that waits for an answer
	// pipeline.ErrHeld, and an unknown one the fault not_found.
	Peek(ctx context.Context, tenant, call string) (*messages.Call, time.Time, error)
	// Cancel cancels a call wherever it runs. It may have ended.
	Cancel(call string)
	// Results keeps records as long as ends of calls are kept, which ResultTTL says.
	Results() pipeline.Store
	ResultTTL() time.Duration
}

// serveTasks registers the methods. withTasks, which knows who asks, does their work.
func (f *Server) serveTasks() error {
	if f.Tasks == nil {
		return nil
	}
	for method := range taskMethods {
		unknown := func(context.Context, *mcp.ServerSession, *taskParams) (*taskAck, error) {
			return nil, rpcError(jsonrpc.CodeMethodNotFound, "method not found: %s", method)
		}
		err := mcp.AddReceivingCustomMethod(f.server, method, unknown)
		if err != nil {
			return err
		}
	}
	return nil
}

// taskSlot is where a tools/call puts the handle with which it is answered.
type taskSlot struct{ handle *taskView }

type taskSlotKey struct{}

// withTasks answers the extension's methods, and tools/call with a handle if one was made. Revisions before 2026-07-28
// do not see the extension.
func (f *Server) withTasks(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		params := req.GetParams()
		if p, ok := params.(*taskParams); ok && p != nil && standsAlone(p) {
			if !declaresTasks(p) {
				return nil, needsTasks(method + " is of the extension " + TasksExtension)
			}
			return taskMethods[method](f, ctx, req.GetExtra(), p)
		}
		if p, ok := params.(*mcp.CallToolParamsRaw); ok && declaresTasks(p) {
			slot := &taskSlot{}
			res, err := next(context.WithValue(ctx, taskSlotKey{}, slot), method, req)
			if err == nil && slot.handle != nil {
				return slot.handle, nil
			}
			return res, err
		}
		res, err := next(ctx, method, req)
		if r, ok := res.(*mcp.InitializeResult); ok && err == nil && r.Capabilities != nil { // an older revision
			older := *r.Capabilities
			older.Extensions = nil
			r.Capabilities = &older
		}
		return res, err
	}
}

// declaresTasks reports whether the request itself declares the extension; what was declared before does not count.
func declaresTasks(params mcp.Params) bool {
	if !standsAlone(params) {
		return false
	}
	caps, _ := params.GetMeta()[mcp.MetaKeyClientCapabilities].(map[string]any)
	extensions, _ := caps["extensions"].(map[string]any)
	_, ok := extensions[TasksExtension].(map[string]any)
	return ok
}

// asTask returns where the handle of a call goes, if its caller may get one. A caller that does not declare the
// extension is refused if the tool requires it.
func (f *Server) asTask(ctx context.Context, d *tool.Definition, req *mcp.CallToolRequest) (*taskSlot, error) {
	slot, ok := ctx.Value(taskSlotKey{}).(*taskSlot)
	switch {
	case f.Tasks == nil, d.Task == tool.TaskNever:
		return nil, nil
	case !ok && d.Task == tool.TaskRequired && standsAlone(req.Params):
		return nil, needsTasks("tool '" + d.Name + "' is only run as a task")
	}
	return slot, nil
}

// callTask carries one tools/call through the chain for a caller that accepts a handle instead of the result.
func (f *Server) callTask(
	ctx context.Context, d *tool.Definition, req *mcp.CallToolRequest, slot *taskSlot,
) (*mcp.CallToolResult, error) {
	r, err := f.request(d, req)
	if err != nil {
		return nil, err
	}
	r.Keep = true
	if d.Timeout > 0 {
		r.MaxTime = d.Timeout.D() + taskSlack // no connection waits for its end
	}
	pending, err := f.Entry.Accept(ctx, r)
	if err != nil {
		return faultResult(messages.AsFault(err, "entry"), "")
	}
	stay := context.AfterFunc(ctx, func() {
		pending.Leave()
		if r.IdempotencyKey == "" { // the caller has no handle yet, and without a key cannot come back
			f.Tasks.Cancel(pending.ID())
		}
	})
	defer stay()
	wait, done := f.untilHalt(ctx)
	defer done()
	atOnce := d.Task == tool.TaskAlways || d.Task == tool.TaskRequired
	held := false
	if !atOnce {
		limit, cancel := context.WithTimeout(wait, taskAfter)
		c, err := pending.Wait(limit, f.progress(ctx, req))
		cancel()
		if err == nil {
			return f.result(d, c, true)
		}
		held = errors.Is(err, pipeline.ErrHeld)
	}
	t, err := f.newTask(ctx, req, r, d, pending.ID())
	if err == nil && stay() {
		if f.halted.Err() == nil { // the waiter ends the call when its time is over, in case no other process does
			f.work.Go(func() { _, _ = pending.Wait(f.halted, nil) })
		}
		slot.handle = t.view(statusWorking)
		slot.handle.ResultType = resultTask
		if held {
			slot.handle.StatusMessage = heldMessage
			slot.handle.Meta = heldMeta(t)
		}
		return &mcp.CallToolResult{}, nil
	}
	if err != nil {
		f.Log.Warn("a task could not be stored; its caller waits for the result", "call", pending.ID(), "err", err)
	}
	c, err := pending.Wait(wait, f.progress(ctx, req))
	switch {
	case errors.Is(err, pipeline.ErrHeld):
		return f.held(ctx, req, heldState{Call: pending.ID(), Tenant: r.Tenant}, "")
	case err != nil:
		return f.notEnded(ctx, d, req, pending, err)
	}
	return f.result(d, c, true)
}

// needsTasks refuses a caller that does not declare the extension.
func needsTasks(why string) *jsonrpc.Error {
	err := rpcError(mcp.CodeMissingRequiredClientCapabilities,
		"%s; declare it in _meta, among the extensions of %s", why, mcp.MetaKeyClientCapabilities)
	extensions := map[string]any{"extensions": map[string]any{TasksExtension: struct{}{}}}
	err.Data = rawjson.Encode(map[string]any{"requiredCapabilities": extensions})
	return err
}
