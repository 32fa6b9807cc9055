package agent

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool/approval"
)

// askTools carries out the open tool calls of an answer. If one of them needs a person's yes, none is made before all
// are decided.
func (d *drive) askTools(ctx context.Context, calls []*Open) (*Record, *pause, error) {
	args := make([][]byte, len(calls))
	asked := Asked{Calls: make([]AskedCall, len(calls))}
	wait := false
	for i, o := range calls {
		raw, q, err := d.judge(ctx, o)
		if err != nil {
			return nil, nil, err
		}
		args[i] = raw
		asked.Calls[i] = AskedCall{ID: o.ID, Tool: o.Name, Arguments: shown(raw), Question: q, Auto: q == nil}
		if q != nil {
			wait = true
			if asked.Expires == 0 || q.Expires < asked.Expires {
				asked.Expires = q.Expires
			}
		}
	}
	if wait {
		return &Record{Asked: &asked}, nil, nil
	}
	return d.runTools(ctx, calls, args)
}

// shown are arguments as JSON, also if the model wrote none.
func shown(args []byte) json.RawMessage {
	if json.Valid(args) {
		return args
	}
	return rawjson.Encode(string(args))
}

// judge returns the arguments of a tool call and what is to be asked about it.
func (d *drive) judge(ctx context.Context, o *Open) ([]byte, *approval.Question, error) {
	raw := []byte(o.Arguments)
	if t, _ := d.Tool(o.Name); d.o.Judge == nil || t.Agent != "" {
		return raw, nil, nil
	}
	c := messages.NewCall(messages.Tool, d.root.Tenant, raw)
	c.Tool, c.Session, c.Run, c.User, c.Agent = o.Name, d.root.Session, d.run, d.root.User, d.Start.Spec.Name
	c.Note(messages.NoteToolCall, o.ID)
	var before []byte
	if o.Shown != "" {
		before = []byte(o.Shown)
	}
	args, q, err := d.o.Judge.Judge(ctx, c, before)
	if args == nil {
		args = raw
	}
	if o.Granted {
		q = nil
	}
	return args, q, err
}

// outcome is what came of one tool call.
type outcome struct {
	result  *Result
	updates []Update
	bought  *Spent
	pause   *pause
	err     error
}

// runTools makes the calls, all at once, and waits for all of them. What has a result is recorded, although others have
// to wait.
func (d *drive) runTools(ctx context.Context, calls []*Open, args [][]byte) (*Record, *pause, error) {
	agents := 0
	for _, o := range calls {
		if t, _ := d.Tool(o.Name); t.Agent != "" {
			agents++
		}
	}
	out := make([]outcome, len(calls))
	var all sync.WaitGroup
	for i, o := range calls {
		all.Go(func() {
			if t, _ := d.Tool(o.Name); t.Agent != "" {
				out[i] = d.delegate(ctx, t.Agent, o, agents)
			} else {
				out[i] = d.runTool(ctx, o, args[i])
			}
		})
	}
	all.Wait()
	r := &Record{}
	var wait *pause
	var failed error
	for _, o := range out {
		switch {
		case o.err != nil:
			failed = o.err
		case o.pause != nil && wait == nil:
			wait = o.pause
		case o.result != nil:
			r.Results = append(r.Results, *o.result)
			r.Updates = append(r.Updates, o.updates...)
			if o.bought != nil {
				if r.Bought == nil {
					r.Bought = &Spent{}
				}
				r.Bought.add(*o.bought)
			}
		}
	}
	if len(r.Results) > 0 && ctx.Err() == nil {
		return r, nil, nil // what still waits is asked for again, and is where it was
	}
	if failed == nil && wait != nil {
		if q := d.below(wait); q != nil {
			return &Record{Below: q}, nil, nil
		}
	}
	return nil, wait, failed
}

// below is the question of a sub-agent's run, for which this run is to wait, if its records do not have it yet: who
// follows the run reads it there.
func (d *drive) below(wait *pause) *Question {
	var q Question
	if wait.awaits != "" || json.Unmarshal(wait.question, &q) != nil {
		return nil
	}
	if d.Below != nil && d.Below.Run == q.Run && d.Below.Step == q.Step {
		return nil
	}
	return &q
}

// number is the place of a tool call in its answer.
func (d *drive) number(o *Open) int {
	for i, p := range d.Open {
		if p == o {
			return i
		}
	}
	return -1
}

func (d *drive) runTool(ctx context.Context, o *Open, args []byte) (out outcome) {
	r := d.childRequest(messages.Tool, d.number(o), args)
	r.IdempotencyKey = toolKey(d.run, d.answer, o.ID)
	r.Tool = o.Name
	r.Notes[messages.NoteToolCall] = rawjson.Encode(o.ID)
	if o.Granted || o.Shown != "" { // a person has said yes to what was shown, or has written it
		g, err := approval.Grant(d.root.Tenant, d.run, o.ID, o.Name, args)
		if err == nil {
			r.Notes[messages.NoteGrant] = rawjson.Encode(g)
		}
	}
	c, err := d.call(ctx, r, nil)
	switch {
	case errors.Is(err, pipeline.ErrHeld):
		return outcome{pause: d.waitFor("tool call "+o.ID, c.ID)}
	case err != nil:
		return outcome{err: err}
	}
	res := &Result{ID: o.ID, Call: c.ID, IsError: c.Flag(messages.NoteIsError)}
	if c.Fault != nil {
		res.Content, res.IsError = faultText(c.Fault), true
	} else {
		res.Content, _, _ = c.ReplyPlain()
		if text, ok := rawjson.IsString([]byte(res.Content)); ok {
			res.Content = text
		}
	}
	return outcome{result: res, updates: updatesOf(c), bought: d.bought(c)}
}

// faultText is what a model reads of a tool call that failed: what happened, and at which stage.
func faultText(f *messages.Fault) string {
	return string(rawjson.Encode(struct {
		Error any `json:"error"`
	}{struct {
		Code    messages.Code `json:"code"`
		Stage   string        `json:"stage,omitempty"`
		Message string        `json:"message"`
	}{f.Code, f.Origin, f.Message}}))
}

// toolKey is the key of a tool call. It is the same however the steps between the answer and the call went: a batch
// that waited, or of which a part was done before.
func toolKey(run string, step int, id string) string {
	return "run " + run + " " + strconv.Itoa(step) + " " + id
}

// lookAgain is when a run looks itself whether a call has ended that a stage holds. It is told before.
const lookAgain = 5 * time.Minute

// waitFor parks the run until a call has ended that one of its stages holds.
func (d *drive) waitFor(what, call string) *pause {
	q := Question{Run: d.run, Agent: d.Start.Spec.Name, Step: d.Steps, Asked: Asked{Waits: what, Calls: []AskedCall{}}}
	return &pause{question: rawjson.Encode(q), expires: lookAgain, awaits: call}
}

// delegate has a tool call done by another agent: its run is a part of this one, with a part of what this one has left.
func (d *drive) delegate(ctx context.Context, name string, o *Open, n int) outcome {
	sub := &drive{Loop: d.Loop, root: d.root, run: d.subRun(o), State: &State{}}
	wait, err := sub.through(ctx, func() (*Start, error) { return d.subStart(ctx, name, o, n) })
	if f, ok := errors.AsType[*messages.Fault](err); ok && !passing(f) {
		return outcome{result: &Result{ID: o.ID, Content: faultText(f), IsError: true}}
	}
	if err != nil || wait != nil {
		return outcome{pause: wait, err: err}
	}
	r := &Result{ID: o.ID, Call: sub.run, Spent: &sub.Spent}
	if sub.End.Fault != nil {
		r.Content, r.IsError = faultText(sub.End.Fault), true
	} else {
		r.Content = chat.Msg{Raw: sub.End.Message}.Text()
	}
	return outcome{result: r}
}

// subRun is the id of the run that a tool call makes of another agent.
func (d *drive) subRun(o *Open) string {
	return d.run + "-" + strconv.Itoa(d.answer) + "-" + strconv.Itoa(d.number(o))
}

func (d *drive) subStart(ctx context.Context, name string, o *Open, n int) (*Start, error) {
	if d.Start.Depth+1 >= MaxDepth {
		return nil, messages.NewFault(messages.LimitExceeded,
			"agents delegate to each other %d deep; do the task without agent %s",
			MaxDepth, name)
	}
	spec, err := d.o.Agent(ctx, name)
	if err != nil {
		return nil, err
	}
	s := &Start{Spec: *spec, Parent: d.run, Depth: d.Start.Depth + 1, Todo: d.Start.Todo}
	if spec.Todo == TodoOwn || s.Todo != "" && spec.Todo != TodoShared {
		s.Todo = d.subRun(o)
	}
	s.Spec.Limits = d.Left(spec.Limits, n)
	if s.Tools, err = d.o.Tools(ctx, d.root.Tenant, spec); err != nil {
		return nil, err
	}
	task, ok := rawjson.FieldString([]byte(o.Arguments), "task")
	if !ok {
		task = o.Arguments
	}
	s.Messages = []json.RawMessage{chat.NewMsg("user", task).Raw}
	return s, nil
}
