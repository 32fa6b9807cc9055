package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool/approval"
)

// Options are what a loop needs.
type Options struct {
	// Entry is where the calls of runs go. Each has an idempotency key of its own, so that it is made once, however often
	// its step begins.
	Entry pipeline.Entry
	Log   Log
	// Agent returns an agent by name. The error is a fault.
	Agent func(ctx context.Context, name string) (*Spec, error)
	// Tools returns the tools that the agent offers to its model. The error is a fault.
	Tools func(ctx context.Context, tenant string, s *Spec) ([]Tool, error)
	// Judge says which tool calls wait for a person; nil: none.
	Judge Judge
	// Fits says what is wrong with a final answer by its schema; empty if nothing is. Nil: every answer fits.
	Fits func(schema json.RawMessage, text string) string
	// Money is what a model call has cost, in millionths of a US dollar; nil: nobody knows.
	Money func(c *messages.Call) int64
	// Show is told of text as the model says it, for those who follow the run; nil: nobody does. It must be quick.
	Show func(tenant, run string, e Event)
	Out  *slog.Logger
}

// Judge knows the tools' policies. It is safe for concurrent use.
type Judge interface {
	// Judge returns the arguments of a tool call as the tool gets them, and what a person is asked before it runs; nil:
	// nobody is. shown, if not nil, are the arguments that a person has seen and then replaced: only what they could not
	// know is asked. The error is a fault; the run then fails.
	Judge(ctx context.Context, c *messages.Call, shown []byte) (args json.RawMessage, q *approval.Question, err error)
}

// Loop runs agents: it is the target of calls of kind agent. It keeps nothing of a run in memory that the records do
// not hold, so it may be called for a run again, by another process, at any time. It is safe for concurrent use.
type Loop struct{ o Options }

var _ pipeline.Target = (*Loop)(nil)

// New returns a loop.
func New(o Options) *Loop {
	if o.Out == nil {
		o.Out = slog.New(slog.DiscardHandler)
	}
	return &Loop{o}
}

// drive is one run, or the run of a sub-agent, while this process has it.
type drive struct {
	*Loop
	root *messages.Call // the agent call
	run  string         // the call's id, or one made of it
	emit pipeline.Emit  // nil for sub-agents
	said bool           // a text was emitted
	// answer is the step of the last answer.
	answer int
	*State
}

// pause says that a run cannot go on until somebody answers.
type pause struct {
	question json.RawMessage
	expires  time.Duration
	awaits   string // a call, whose end is the answer
}

// Do implements pipeline.Target. The id of the run is that of its call.
func (l *Loop) Do(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
	d := &drive{Loop: l, root: c, run: c.ID, State: &State{}}
	if c.Stream {
		d.emit = inWire(c, emit)
	}
	wait, err := d.through(ctx, func() (*Start, error) { return l.start(ctx, c) })
	switch {
	case err != nil:
		return err
	case wait != nil:
		pipeline.Suspend(c, wait.question, wait.expires, wait.awaits)
		return nil
	case d.End.Fault != nil:
		return d.End.Fault
	}
	if c.Session != "" {
		err := patient(ctx, func() error {
			return l.o.Log.Remember(ctx, c.Tenant, c.Session, c.Agent, d.run, d.Start.Session, d.newMessages())
		})
		if err != nil {
			return err
		}
	}
	reply, err := replyIn(c, d.Reply(d.run, c.Accepted, c.Stream))
	if err == nil {
		c.SetReply(reply)
	}
	return err
}

// through takes the run from where its records end to its own end, or to where it must wait.
func (d *drive) through(ctx context.Context, start func() (*Start, error)) (*pause, error) {
	if err := d.resume(ctx, start); err != nil {
		return nil, err
	}
	if d.emit != nil {
		d.show(d.State.said())
	}
	for {
		var r *Record
		var wait *pause
		var err error
		switch e := d.Next(); e.Kind {
		case Done:
			return nil, nil
		case AskModel:
			r, wait, err = d.askModel(ctx, e.Request)
		case AskTools:
			r, wait, err = d.askTools(ctx, e.Calls)
		case Wait:
			r, wait, err = d.wait(e.Asked)
		}
		if r != nil && err == nil {
			err = d.record(ctx, *r)
		}
		if err != nil || wait != nil {
			return wait, err
		}
	}
}

// resume brings the state to where the records end. A run without any begins here.
func (d *drive) resume(ctx context.Context, start func() (*Start, error)) error {
	var records []Record
	err := patient(ctx, func() (err error) {
		records, err = d.o.Log.Read(ctx, d.root.Tenant, d.run, 0)
		return err
	})
	if err != nil {
		return err
	}
	if len(records) == 0 {
		begin, err := start()
		if err != nil {
			return err
		}
		r := Record{Start: begin}
		if begin.Depth == 0 {
			r.Updates, r.Bought = updatesOf(d.root), d.bought(d.root) // by stages before the run
		}
		if err = d.add(ctx, &r); err != nil {
			return err
		}
		records = []Record{r}
	}
	if n := records[0].Start.Before; n > 0 {
		err = patient(ctx, func() (err error) {
			d.History, _, err = d.o.Log.History(ctx, d.root.Tenant, d.root.Session, d.root.Agent, n)
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, r := range records {
		d.take(r)
	}
	return nil
}

// record stores a finished step, and goes on with the record that counts.
func (d *drive) record(ctx context.Context, r Record) error {
	if err := d.add(ctx, &r); err != nil {
		return err
	}
	d.take(r)
	return nil
}

// take applies a record.
func (d *drive) take(r Record) {
	if r.Answer != nil {
		d.answer = d.Steps
	}
	d.Apply(r)
}

// add stores the next record; r is the one that counts then.
func (d *drive) add(ctx context.Context, r *Record) error {
	mine := *r
	return patient(ctx, func() (err error) {
		*r, err = d.o.Log.Add(ctx, d.root.Tenant, d.run, d.Steps, mine)
		return err
	})
}

// wait goes on with the decisions about a batch, if they are there.
func (d *drive) wait(asked *Asked) (*Record, *pause, error) {
	step := d.Steps - 1 // of the record that asked
	var answer Ruling
	if raw := pipeline.Answered(d.root); raw != nil && json.Unmarshal(raw, &answer) == nil && answer.about(d.run, step) {
		return &Record{Decided: &Decided{Decisions: answer.Decisions}}, nil, nil
	}
	if u, ok := pipeline.UnansweredBy(d.root); ok {
		var q Question
		if json.Unmarshal(u.Question, &q) == nil && q.Run == d.run && q.Step == step && q.Waits == "" {
			return &Record{Decided: &Decided{Fault: u.Fault}}, nil, nil
		}
	}
	question := rawjson.Encode(Question{Run: d.run, Agent: d.Start.Spec.Name, Step: step, Asked: *asked})
	return nil, &pause{question: question, expires: asked.Expires}, nil
}

// start makes the first record of a run from the caller's request.
func (l *Loop) start(ctx context.Context, c *messages.Call) (*Start, error) {
	spec, err := l.o.Agent(ctx, c.Agent)
	if err != nil {
		return nil, err
	}
	body, err := chatBody(c)
	if err != nil {
		return nil, err
	}
	s := &Start{Spec: *spec, Params: params(body), Todo: c.Session}
	if spec.Todo == TodoOwn {
		s.Todo = c.ID
	}
	if s.Tools, err = l.o.Tools(ctx, c.Tenant, spec); err != nil {
		return nil, err
	}
	raw, _ := rawjson.Field(body, "messages")
	for _, m := range rawjson.Elements(raw) {
		s.Messages = append(s.Messages, m)
	}
	c.Noted(messages.NoteJumpTo, &s.Jump)
	if s.Jump == pipeline.JumpModel {
		s.Jump = "" // where it begins anyway
	}
	if c.Session == "" {
		return s, nil
	}
	err = patient(ctx, func() (err error) {
		_, s.Session, err = l.o.Log.History(ctx, c.Tenant, c.Session, c.Agent, -1)
		return err
	})
	if !bringsHistory(s.Messages) {
		s.Before = s.Session
	}
	return s, err
}

// patience is how long a run waits for a store, or for room, that is away for the moment.
const patience = 2 * time.Minute

// patient does f, and does it again while it fails, because a run is not to end by what passes.
func patient(ctx context.Context, f func() error) error {
	limit := time.Now().Add(patience)
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := f()
		if err == nil || ctx.Err() != nil || time.Now().After(limit) || !passing(err) {
			return fault(ctx, err)
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// passing reports whether an error may go away by itself. An error that is not a fault is one of a store.
func passing(err error) bool {
	f, ok := errors.AsType[*messages.Fault](err)
	return !ok || f.Code == messages.Overloaded || f.Code == messages.StoreUnavailable || f.Code == messages.Stopping
}

func fault(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*messages.Fault](err); ok || err == nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return messages.NewFault(messages.StoreUnavailable, "the run cannot be read or recorded: %v; what it has done is kept",
		err).From(messages.TargetOrigin)
}
