package agent

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool/approval"
)

// decided goes on after the batch was decided. What nobody decided in time counts as rejected.
func (s *State) decided(d *Decided) {
	asked := s.Asked
	if s.Asked = nil; asked == nil {
		return
	}
	for _, q := range asked.Calls {
		o := s.call(q.ID)
		if o == nil || q.Question == nil {
			continue
		}
		made, ok := d.Decisions[q.ID]
		if !ok {
			made = approval.Decision{Decision: approval.Reject, By: "nobody", Reason: "nobody decided in time"}
		}
		s.decide(o, made)
	}
}

func (s *State) decide(o *Open, d approval.Decision) {
	switch d.Decision {
	case approval.Approve:
		o.Granted = true
	case approval.Edit:
		o.Shown, o.Arguments = o.Arguments, string(d.Arguments)
		s.edited(o)
	case approval.Respond:
		o.Result = &Result{ID: o.ID, Content: plain(d.Content)}
	default:
		o.Result = &Result{ID: o.ID, Content: d.Said(o.Name), IsError: true}
	}
}

// edited writes the arguments that a person has changed into the assistant message, so that the model reads what was
// really called.
func (s *State) edited(o *Open) {
	for i, raw := range slices.Backward(s.Messages) {
		m := chat.Msg{Raw: raw}
		if m.Role() != "assistant" {
			continue
		}
		calls := m.ToolCalls()
		for k, t := range calls {
			if t.ID() == o.ID {
				calls[k] = t.WithArguments(o.Arguments)
				s.Messages[i] = m.WithToolCalls(calls).Raw
				return
			}
		}
	}
}

// plain is a JSON value as a model reads it: a string without its quotes.
func plain(raw []byte) string {
	if text, ok := rawjson.IsString(raw); ok {
		return text
	}
	return string(raw)
}

// Rule of decisions: each is bound to the id of a tool call. A bare decision means the only call that is still open.

// Decide adds decisions to those that were made about a batch before. answer is one decision, or an object
// {"decisions": {"<id>": decision}}, or a list of decisions with their ids in place of that object. check holds a
// decision to its question and completes it. all says that every question of the batch is decided now. open lists the
// ids that are not. Unknown ids are returned and change nothing. An error is a fault, and nothing was decided.
func (a *Asked) Decide(before map[string]approval.Decision, answer json.RawMessage,
	check func(q AskedCall, answer json.RawMessage) (d approval.Decision, ok bool, err error)) (
	made map[string]approval.Decision, open, unknown []string, err error) {
	made = map[string]approval.Decision{}
	for id, d := range before {
		made[id] = d
	}
	given, err := a.given(made, answer)
	if err != nil {
		return nil, nil, nil, err
	}
	for _, g := range given {
		i := slices.IndexFunc(a.Calls, func(q AskedCall) bool { return q.ID == g.id && q.Question != nil })
		if i < 0 {
			unknown = append(unknown, g.id)
			continue
		}
		if old, ok := made[g.id]; ok {
			return nil, nil, nil, messages.NewFault(messages.Conflict, "call %s of '%s' was decided already, by %s at %s (%s)",
				g.id, a.Calls[i].Tool, old.By, old.At.Format("2006-01-02T15:04:05Z07:00"), old.Decision).From("entry")
		}
		d, ok, err := check(a.Calls[i], g.raw)
		if err != nil {
			return nil, nil, nil, err
		}
		if ok {
			made[g.id] = d
		}
	}
	return made, a.open(made), unknown, nil
}

// open are the ids that wait for a decision.
func (a *Asked) open(made map[string]approval.Decision) (ids []string) {
	for _, q := range a.Calls {
		if _, ok := made[q.ID]; !ok && q.Question != nil {
			ids = append(ids, q.ID)
		}
	}
	return ids
}

type givenDecision struct {
	id  string
	raw json.RawMessage
}

func (a *Asked) given(made map[string]approval.Decision, answer json.RawMessage) (out []givenDecision, err error) {
	several, ok := rawjson.Field(answer, "decisions")
	switch {
	case ok && several[0] == '[':
		for _, e := range rawjson.Elements(several) {
			id, _ := rawjson.FieldString(e, "id")
			out = append(out, givenDecision{id, rawjson.DropField(e, "id")})
		}
	case ok:
		rawjson.EachField(several, func(key string, raw []byte) { out = append(out, givenDecision{key, raw}) })
	case rawjson.IsNull(answer):
	default:
		id, named := rawjson.FieldString(answer, "id")
		if open := a.open(made); !named && len(open) != 1 {
			return nil, messages.NewFault(messages.InvalidRequest, "the batch has %d calls that wait (%s); say which one is "+
				`meant: {"id": "<id>", "decision": ...}, or {"decisions": {"<id>": {...}}}`, len(open),
				strings.Join(open, ", ")).At("id").From("approval")
		} else if !named {
			id = open[0]
		}
		out = append(out, givenDecision{id, rawjson.DropField(answer, "id")})
	}
	return out, nil
}
