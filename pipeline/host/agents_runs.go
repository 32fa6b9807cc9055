package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/agent"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// runs reads and follows the runs of agents; it is what the faces ask.
type runs struct {
	*agents
	records  *jet.Bucket
	conn     *nats.Conn
	subjects messages.Subjects
	node     *bus.Node
}

var _ api.AgentService = (*runs)(nil)

// Agents implements api.AgentService.
func (r *runs) Agents() []api.Agent {
	out := []api.Agent{}
	for _, s := range r.all() {
		out = append(out, agentRow(s))
	}
	return out
}

// Run implements api.AgentService.
func (r *runs) Run(ctx context.Context, tenant, id string) (api.Run, error) {
	records, err := r.log.Read(ctx, tenant, id, 0)
	if err != nil {
		return api.Run{}, messages.NewFault(messages.StoreUnavailable, "the run cannot be read: %v", err).From("entry")
	}
	var s agent.State
	out := api.Run{ID: id, Steps: len(records)}
	for _, rec := range records {
		s.Apply(rec)
	}
	if len(records) > 0 {
		out.Agent, out.Created, out.Updated = s.Start.Spec.Name, records[0].At, records[len(records)-1].At
		out.Spent, out.Messages = rawjson.Encode(s.Spent), s.Messages
	}
	if s.End != nil {
		ended(&out, s.End)
		return out, nil
	}
	c, at, err := r.node.Peek(ctx, tenant, id)
	switch {
	case errors.Is(err, pipeline.ErrHeld):
		if more, err := r.log.Read(ctx, tenant, id, len(records)); err == nil && len(more) > 0 {
			return r.Run(ctx, tenant, id) // it went on between the two looks
		}
		out.Status = api.RunWaiting
		switch {
		case s.Asked != nil:
			out.Waits = rawjson.Encode(s.Asked)
		case s.Below != nil:
			out.Waits = rawjson.Encode(s.Below.Asked)
		}
	case err != nil && len(records) == 0:
		return out, err
	case err != nil: // its end is not kept any more
		out.Status = api.RunFailed
	case c == nil:
		out.Status = api.RunRunning
	case c.Kind != messages.Agent:
		return out, messages.NewFault(messages.NotFound, "no run %s", id).From("entry")
	default:
		out.Updated = at
		endedOutside(&out, c)
	}
	return out, nil
}

func ended(out *api.Run, end *agent.End) {
	out.Status, out.Reason = api.RunCompleted, end.Reason
	if end.Fault != nil {
		out.Status, out.Error = api.RunFailed, end.Error()
		return
	}
	out.Output = chat.Msg{Raw: end.Message}.Text()
}

// endedOutside is the end of a run that its own records do not hold: a stage ended it, its time was over, or somebody
// cancelled it.
func endedOutside(out *api.Run, c *messages.Call) {
	switch {
	case c.Fault == nil:
		out.Status = api.RunCompleted
		for _, choice := range chat.Choices(c.Reply()) {
			out.Output = choice.Message().Text()
			break
		}
		return
	case c.Fault.Code == messages.Cancelled:
		out.Status = api.RunCancelled
	default:
		out.Status = api.RunFailed
	}
	out.Error = (&agent.End{Fault: c.Fault}).Error()
}

// CheckEvent implements api.AgentService.
func (r *runs) CheckEvent(id string) error {
	_, err := agent.ParseMark(id)
	return err
}

// Cancel implements api.AgentService.
func (r *runs) Cancel(_ context.Context, _, run string) error {
	r.node.Cancel(run)
	return nil
}

// textSubject is where the text of a run is published while a model says it, for gateways alone: it is no event that
// observers may read.
func textSubject(s messages.Subjects, tenant, run string) string {
	return s.Control("run", messages.Token(tenant), messages.Token(run))
}

type textPiece struct {
	ID   string          `json:"id"`
	Data json.RawMessage `json:"data"`
}

// publishText publishes a piece of text. Nobody waits for it: what is lost comes with the record of its step.
func publishText(conn *nats.Conn, s messages.Subjects) func(tenant, run string, e agent.Event) {
	return func(tenant, run string, e agent.Event) {
		_ = conn.Publish(textSubject(s, tenant, run), rawjson.Encode(textPiece{e.At.String(), e.Data}))
	}
}

// Follow implements api.AgentService. The records tell what has happened, in any process; what a model says meanwhile
// comes beside them.
func (r *runs) Follow(ctx context.Context, tenant, run, after string, tell func(api.RunEvent) error) error {
	mark, err := agent.ParseMark(after)
	if err != nil {
		return err
	}
	pieces := make(chan *nats.Msg, 512)
	sub, err := r.conn.ChanSubscribe(textSubject(r.subjects, tenant, run), pieces)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	w, err := r.records.Watch(ctx, agent.RunKey(tenant, run)+".*")
	if err != nil {
		return err
	}
	defer func() { _ = w.Stop() }()
	f := &following{log: r.log, Follower: agent.NewFollower(run, mark), later: map[int]agent.Record{}}
	for f.State.End == nil {
		var events []agent.Event
		select {
		case e, ok := <-w.Updates():
			if !ok {
				return errors.New("the records of the run are not told any more")
			}
			if e == nil {
				continue // those that were there are told
			}
			if events, err = f.record(ctx, e); err != nil {
				return err
			}
		case m := <-pieces:
			var p textPiece
			if json.Unmarshal(m.Data, &p) != nil {
				continue
			}
			at, err := agent.ParseMark(p.ID)
			if err != nil {
				continue
			}
			events = f.Text(agent.Event{At: at, Type: agent.TextDelta, Data: p.Data})
		case <-ctx.Done():
			return ctx.Err()
		}
		for _, e := range events {
			if err := tell(api.RunEvent{ID: e.At.String(), Type: e.Type, Data: e.Data}); err != nil {
				return err
			}
		}
	}
	return nil
}

// following takes records in the order of their numbers.
type following struct {
	*agent.Follower
	log   agent.Log
	later map[int]agent.Record
}

func (f *following) record(ctx context.Context, e jetstream.KeyValueEntry) (out []agent.Event, err error) {
	n, err := strconv.Atoi(e.Key()[strings.LastIndexByte(e.Key(), '.')+1:])
	if err != nil || e.Operation() != jetstream.KeyValuePut {
		return nil, nil
	}
	if f.later[n], err = f.log.Open(ctx, e.Key(), e.Value()); err != nil {
		return nil, fmt.Errorf("record %d: %w", n, err)
	}
	for {
		n := f.State.Steps
		r, ok := f.later[n]
		if !ok {
			return out, nil
		}
		delete(f.later, n)
		out = append(out, f.Record(r)...)
	}
}
