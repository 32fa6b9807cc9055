package mcpapi

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// taskMethod serves one method of the extension.
type taskMethod func(f *Server, ctx context.Context, extra *mcp.RequestExtra, p *taskParams) (mcp.Result, error)

// taskMethods are the methods of the extension, for callers that declare it.
var taskMethods = map[string]taskMethod{
	"tasks/get":    (*Server).getTask,
	"tasks/update": (*Server).updateTask,
	"tasks/cancel": (*Server).cancelTask,
}

// getTask is tasks/get.
func (f *Server) getTask(ctx context.Context, extra *mcp.RequestExtra, p *taskParams) (mcp.Result, error) {
	limit, cancel := context.WithTimeout(ctx, taskTime)
	defer cancel()
	id, err := p.id()
	if err != nil {
		return nil, err
	}
	t, err := f.loadTask(limit, extra, id)
	if err != nil {
		return nil, err
	}
	c, at, err := f.Tasks.Peek(limit, t.tenant, t.Call)
	switch {
	case errors.Is(err, pipeline.ErrHeld):
		f.keepTask(limit, t)
		return f.heldTask(limit, extra, p, t), nil
	case err != nil && messages.AsFault(err, "entry").Code == messages.NotFound:
		return nil, invalidParams("the task %q has expired: results are kept %s", id, t.ttl)
	case err != nil:
		return nil, f.taskTrouble(id, err)
	case c == nil:
		f.keepTask(limit, t)
		v := t.view(statusWorking)
		if t.Cancelled {
			f.Tasks.Cancel(t.Call) // the process that runs it may have missed the first message
			v.StatusMessage = "the task was told to stop"
		}
		return v, nil
	}
	if q := questionOf(t, c); q != nil {
		open := t.open(q)
		switch {
		case t.Cancelled:
			return t.view(statusCancelled), nil
		case len(open) > 0:
			v := t.view(statusInput)
			v.InputRequests = rawjson.Encode(open)
			return v, nil
		}
		// Everything is answered, and the gateway that took the last answer did not begin the next round.
		if err := f.nextRound(limit, t, c, q); err != nil {
			f.Log.Warn("a task does not go on yet", "task", id, "call", t.Call, "err", err)
		}
		return t.view(statusWorking), nil
	}
	t.ended = at
	return f.endOfTask(limit, t, c)
}

// endOfTask shows a task whose call has ended, with the result that tools/call would have given.
func (f *Server) endOfTask(ctx context.Context, t *task, c *messages.Call) (mcp.Result, error) {
	if f := c.Fault; f != nil && (f.Code == messages.Cancelled || t.Cancelled && f.Code == messages.OutcomeUnknown) {
		v := t.view(statusCancelled)
		v.StatusMessage = c.Fault.Message
		return v, nil
	}
	d, err := f.definition(ctx, t)
	if err != nil {
		return nil, f.taskTrouble(t.id, err)
	}
	res, err := f.result(d, c, true)
	if err != nil {
		var wire *jsonrpc.Error
		if !errors.As(err, &wire) {
			wire = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
		}
		v := t.view(statusFailed)
		v.StatusMessage, v.Error = wire.Message, wire
		return v, nil
	}
	if res.Content == nil {
		res.Content = []mcp.Content{}
	}
	raw, err := json.Marshal(res)
	if err != nil {
		return nil, f.taskTrouble(t.id, err)
	}
	v := t.view(statusCompleted)
	v.Result = rawjson.SetField(raw, "resultType", []byte(`"complete"`))
	return v, nil
}

// definition is the tool of a task. A tool that is no longer in the registry promises nothing.
func (f *Server) definition(ctx context.Context, t *task) (*tool.Definition, error) {
	defs, err := f.tools(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range defs {
		if d.Name == t.Tool {
			return d, nil
		}
	}
	return &tool.Definition{Name: t.Tool, Executor: tool.Executor{Kind: t.Executor}}, nil
}

// cancelTask is tasks/cancel. A task that has ended stays as it is.
func (f *Server) cancelTask(ctx context.Context, extra *mcp.RequestExtra, p *taskParams) (mcp.Result, error) {
	return f.changeTask(ctx, extra, p, func(limit context.Context, t *task, c *messages.Call, q *asked) error {
		if c != nil && q == nil {
			return nil
		}
		if !t.Cancelled {
			t.Cancelled, t.Changed = true, time.Now().UTC()
			if err := f.saveTask(limit, t); err != nil {
				return err
			}
		}
		if c == nil {
			f.Tasks.Cancel(t.Call)
		}
		return nil
	})
}

// updateTask is tasks/update. Answers to questions that are not open (any more) are ignored, as the extension requires.
func (f *Server) updateTask(ctx context.Context, extra *mcp.RequestExtra, p *taskParams) (mcp.Result, error) {
	answers, err := p.answers()
	if err != nil {
		return nil, err
	}
	return f.changeTask(ctx, extra, p, func(limit context.Context, t *task, c *messages.Call, q *asked) error {
		if c == nil && !t.Cancelled {
			return f.answerHeld(limit, extra, t, answers)
		}
		if q == nil || t.Cancelled {
			return nil
		}
		took := false
		for name := range t.open(q) {
			answer, ok := answers[name]
			if !ok {
				continue
			}
			if t.Answers == nil {
				t.Answers = map[string]json.RawMessage{}
			}
			t.Answers[name], took = answer, true
		}
		if took {
			t.Changed = time.Now().UTC()
			if err := f.saveTask(limit, t); err != nil {
				return err
			}
			// The next round needs the record's new revision.
			fresh, err := f.loadTask(limit, extra, t.id)
			if err != nil {
				return err
			}
			t = fresh
		}
		if t.Call == c.ID && !t.Cancelled && len(t.open(q)) == 0 {
			if err := f.nextRound(limit, t, c, q); err != nil { // the answers are stored: tasks/get goes on with them
				f.Log.Warn("a task does not go on yet", "task", t.id, "call", t.Call, "err", err)
			}
		}
		return nil
	})
}

// changeTask changes a task and acknowledges that. It tries again if another gateway changes the task at the same time.
// The call is nil while it is under way; the question is set if the call ended with one.
func (f *Server) changeTask(ctx context.Context, extra *mcp.RequestExtra, p *taskParams,
	change func(ctx context.Context, t *task, c *messages.Call, q *asked) error) (mcp.Result, error) {
	limit, cancel := context.WithTimeout(ctx, taskTime)
	defer cancel()
	id, err := p.id()
	if err != nil {
		return nil, err
	}
	for {
		t, err := f.loadTask(limit, extra, id)
		if err != nil {
			return nil, err
		}
		c, _, err := f.Tasks.Peek(limit, t.tenant, t.Call)
		if err == nil || errors.Is(err, pipeline.ErrHeld) {
			var q *asked
			if c != nil {
				q = questionOf(t, c)
			}
			err = change(limit, t, c, q)
		} else if messages.AsFault(err, "entry").Code == messages.NotFound {
			err = nil // it has expired, so it has ended
		}
		var wire *jsonrpc.Error
		switch {
		case err == nil:
			return &taskAck{ResultType: resultComplete}, nil
		case errors.As(err, &wire):
			return nil, wire
		case !errors.Is(err, pipeline.ErrChanged) || limit.Err() != nil:
			return nil, f.taskTrouble(id, err)
		}
	}
}
