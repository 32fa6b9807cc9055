package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

// request is a call of the run's current step. Its key is made of run, step and number in the step, so whoever makes it
// again gets the same call. No caller's key can be the same, because those hold no blanks.
func (d *drive) childRequest(kind messages.Kind, n int, body []byte) pipeline.Request {
	c := d.root
	r := pipeline.Request{
		Kind: kind, Body: body, Tenant: c.Tenant, Role: c.Role, Models: c.Models, Session: c.Session, Run: d.run,
		User: c.User, Agent: d.Start.Spec.Name, RequestID: c.RequestID, Deadline: c.Deadline, Parent: c.ID, Cache: c.Cache,
		Explain: c.Explain, Trace: c.Trace, IdempotencyKey: fmt.Sprintf("run %s %d %d", d.run, d.Steps, n),
		Notes: messages.Notes{},
	}
	if d.Start.Todo != c.Session {
		r.Notes[messages.NoteTodoList] = rawjson.Encode(d.Start.Todo)
	}
	if len(d.Keys) > 0 {
		r.Notes[messages.NoteRunState] = rawjson.Encode(d.Keys)
	}
	return r
}

// call makes a call of the run and waits for its end. The error is [pipeline.ErrHeld] where the call waits for
// somebody, and only its id is known, or that of ctx. A call that is refused is a fault in its end.
func (d *drive) call(ctx context.Context, r pipeline.Request, onDelta func(pipeline.Delta)) (*messages.Call, error) {
	var p pipeline.Pending
	err := patient(ctx, func() (err error) {
		p, err = d.o.Entry.Accept(ctx, r)
		return err
	})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		c := messages.NewCall(r.Kind, r.Tenant, r.Body)
		c.Fail(messages.AsFault(err, "entry"))
		return c, nil
	}
	c, err := p.Wait(ctx, onDelta)
	if errors.Is(err, pipeline.ErrHeld) {
		c = &messages.Call{ID: p.ID()}
	}
	return c, err
}

// askModel makes the run's next model call.
func (d *drive) askModel(ctx context.Context, body []byte) (*Record, *pause, error) {
	r := d.childRequest(messages.Model, 0, body)
	r.Only, r.Stream = d.Start.Spec.Stages, d.root.Stream
	teller := d.newTeller()
	c, err := d.call(ctx, r, teller.delta)
	switch {
	case errors.Is(err, pipeline.ErrHeld):
		return nil, d.waitFor("the model call", c.ID), nil
	case err != nil:
		return nil, nil, err
	}
	a := &Answer{Call: c.ID, Fault: c.Fault, Added: added(c)}
	if _, ok := c.Notes[messages.NoteJumpTo]; ok && !c.Noted(messages.NoteJumpTo, &a.Jump) {
		a.Jump = string(c.Notes[messages.NoteJumpTo])
	}
	a.Reached = c.Flag(messages.NoteExecutorReached) || c.Fault == nil && a.Jump == ""
	if c.Fault == nil {
		teller.end(c)
		a.Usage = usage(pipeline.BoughtBy(c))
		if err := d.read(ctx, a, c.Reply()); err != nil {
			return nil, nil, err
		}
		if d.o.Money != nil {
			a.Usage.Micros = d.o.Money(c)
		}
	}
	return &Record{Answer: a, Updates: updatesOf(c), Bought: d.bought(c)}, nil, nil
}

// bought is what stages have bought for a call of the run; nil: nothing.
func (d *drive) bought(c *messages.Call) *Spent {
	all := pipeline.BoughtFor(c)
	if len(all) == 0 {
		return nil
	}
	s := &Spent{}
	for _, b := range all {
		used := usage(b)
		if d.o.Money != nil {
			used.Micros = d.o.Money(b.Call(d.root.Tenant))
		}
		s.add(Spent{Models: 1, Usage: used})
	}
	return s
}

func usage(b pipeline.Bought) Usage {
	if b.Estimated {
		return Usage{Estimated: b.Total}
	}
	return Usage{Prompt: b.Input, Completion: b.Output, Total: b.Total}
}

// added are the tools that stages added to a model call.
func added(c *messages.Call) (names []string) {
	var owners map[string]string
	c.Noted(messages.NoteStageTools, &owners)
	for name := range owners {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// read takes from a chat reply what the run needs of it.
func (d *drive) read(ctx context.Context, a *Answer, reply []byte) error {
	choices := chat.Choices(reply)
	if len(choices) == 0 {
		a.Fault = messages.NewFault(messages.ProviderBadReply, "the model's reply has no choice").From(messages.TargetOrigin)
		return nil
	}
	m := choices[0].Message()
	a.Message = m.Raw
	spec := d.Start.Spec
	calls := m.ToolCalls()
	if len(calls) == 0 {
		if len(spec.OutputSchema) > 0 && d.o.Fits != nil && a.Jump == "" {
			a.Misfit = d.o.Fits(spec.OutputSchema, m.Text())
		}
		return nil
	}
	if d.root.Session == "" || !spec.Limits.Tools.Threads() {
		return nil
	}
	names, _ := d.names(calls, a.Added)
	return patient(ctx, func() (err error) {
		a.Thread, err = d.o.Log.Reserve(ctx, d.root.Tenant, d.root.Session, d.run, d.Steps, names, spec.Limits.Tools,
			d.Spent.Tools)
		return err
	})
}

// teller shows what a model says while it says it.
type teller struct {
	d      *drive
	follow *stream.Follower
	shown  int // bytes of text
}

func (d *drive) newTeller() *teller {
	return &teller{d: d, follow: stream.NewFollower(nil)}
}

func (t *teller) delta(delta pipeline.Delta) { t.tell(t.follow.Delta(delta)) }

// end shows the rest of the reply.
func (t *teller) end(c *messages.Call) {
	if !t.d.root.Stream {
		return
	}
	chunks, _ := t.follow.End(c) // a reply that is not what was shown counts; whoever follows reads it in the record
	t.tell(chunks)
}

func (t *teller) tell(chunks [][]byte) {
	for _, chunk := range chunks {
		for _, choice := range chat.Choices(chunk) {
			delta, _ := rawjson.Field(choice.Raw, "delta")
			if text, _ := rawjson.FieldString(delta, "content"); text != "" {
				t.text(text)
			}
		}
	}
}

func (t *teller) text(text string) {
	first := t.shown == 0
	t.shown += len(text)
	d := t.d
	if d.o.Show != nil {
		d.o.Show(d.root.Tenant, d.run, textEvent(d.Steps, t.shown, text))
	}
	if d.emit != nil {
		if first && d.said {
			text = between + text
		}
		d.show(text)
	}
}

// show sends text to whoever reads the run as one reply.
func (d *drive) show(text string) {
	if text == "" {
		return
	}
	d.said = true
	like := chat.TextReply(d.run, "agent/"+d.Start.Spec.Name, "", d.root.Accepted.Unix())
	delta := rawjson.Encode(struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}{"assistant", text})
	_ = d.emit(chat.Chunk(like, 0, delta, nil)) // who reads it too late gets the reply
}
