package responses

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// A call that waits for a person ends its response, with an item of type mcp_approval_request for each decision that is
// open. A request whose input ends with items of type mcp_approval_response goes on from there: it decides, and its
// response is what the call says next. The call itself is one and the same.

// Questions says what a call waits for; api.ApprovalService is one. Its errors are faults.
type Questions interface {
	Approval(ctx context.Context, tenant, call string) (api.Approval, error)
}

const (
	askPrefix = "mcpr_"
	// askLabel is the server that the items name: clients show it beside the tool.
	askLabel = "shallot"
)

// Answer is what a caller says to a question of theirs.
type Answer struct {
	Request string // id of the item that asked
	Call    string // that waits
	Step    int    // of the run that asked; 0 for other calls
	Index   int    // of the question among those of the step
	Approve bool
	Reason  string
}

func askID(call string, step, index int) string {
	return fmt.Sprintf("%s%s_%d_%d", askPrefix, call, step, index)
}

// readAsk reads the id of an item that asked; false for one that was not made here.
func readAsk(id string) (a Answer, ok bool) {
	rest, ok := strings.CutPrefix(id, askPrefix)
	part := strings.Split(rest, "_")
	if !ok || len(part) != 3 || uuid.Validate(part[0]) != nil {
		return a, false
	}
	step, err := strconv.Atoi(part[1])
	index, err2 := strconv.Atoi(part[2])
	return Answer{Request: id, Call: part[0], Step: step, Index: index}, err == nil && err2 == nil
}

// question is what a held call asks. A run of an agent asks about several tool calls at once; every other call asks
// whether it may go on itself.
type question struct {
	Step  int `json:"step"`
	Calls []struct {
		ID        string          `json:"id"`
		Tool      string          `json:"tool"`
		Arguments json.RawMessage `json:"arguments"`
		Question  json.RawMessage `json:"question"`
	} `json:"calls"`
	Decided map[string]json.RawMessage `json:"decided"`
}

// asks are the items with which a held call asks, without those that were decided.
func asks(a api.Approval) (items [][]byte) {
	item := func(step, index int, name string, args []byte) {
		items = append(items, rawjson.Encode(struct {
			ID        string `json:"id"`
			Type      string `json:"type"`
			Server    string `json:"server_label"`
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		}{askID(a.Call, step, index), "mcp_approval_request", askLabel, name, string(args)}))
	}
	var q question
	_ = json.Unmarshal(a.Question, &q) // what is none of a run asks once
	if a.Kind != messages.Agent || len(q.Calls) == 0 {
		name, args := a.Tool, a.Question
		if name == "" {
			name = a.Stage
		}
		if own, ok := rawjson.Field(a.Question, "arguments"); ok {
			args = own
		}
		if len(args) == 0 {
			args = []byte("{}")
		}
		item(0, 0, name, args)
		return items
	}
	for i, c := range q.Calls {
		if _, done := q.Decided[c.ID]; len(c.Question) > 0 && !done {
			item(q.Step, i, c.Tool, c.Arguments)
		}
	}
	return items
}

// Decision is what an answer decides, for the call that waits; stale reports that it does not ask this any more.
func (a Answer) Decision(of api.Approval) (decision json.RawMessage, stale bool) {
	open := slices.ContainsFunc(asks(of), func(item []byte) bool { return rawjson.Text(item, "id") == a.Request })
	if !open {
		return nil, true
	}
	d := map[string]any{"decision": "reject"}
	if a.Approve {
		d["decision"] = "approve"
	}
	if a.Reason != "" {
		d["reason"] = a.Reason
	}
	var q question
	if _ = json.Unmarshal(of.Question, &q); of.Kind == messages.Agent && a.Index < len(q.Calls) {
		d["id"] = q.Calls[a.Index].ID
	}
	return rawjson.Encode(d), false
}

// answers reads the answers with which an input ends. Those to questions that were not asked here go to the model's
// provider as they are; those to questions of another owner are not found.
func (k *Kept) answers(ctx context.Context, o Owner, input [][]byte) (out []Answer, err error) {
	for _, item := range slices.Backward(input) {
		if kind, _ := rawjson.FieldString(item, "type"); kind != "mcp_approval_response" {
			break
		}
		id := rawjson.Text(item, "approval_request_id")
		a, ok := readAsk(id)
		if !ok {
			break
		}
		approve, _ := rawjson.Field(item, "approve")
		if string(approve) != "true" && string(approve) != "false" {
			return nil, api.Invalid("input", "approve of an mcp_approval_response must be true or false")
		}
		a.Approve = string(approve) == "true"
		a.Reason, _ = rawjson.FieldString(item, "reason")
		if err := k.asked(ctx, o, a); err != nil {
			return nil, at(err, "input")
		}
		if len(out) > 0 && out[0].Call != a.Call {
			return nil, api.Invalid("input", "answer the questions of one response at a time")
		}
		out = append(out, a)
	}
	slices.Reverse(out)
	return out, nil
}

// asked is nil if a response of the owner has asked the question, about its own call.
func (k *Kept) asked(ctx context.Context, o Owner, a Answer) error {
	var p place
	_, err := k.get(ctx, o.key("item", a.Request), &p)
	if errors.Is(err, pipeline.ErrNotFound) {
		return missing("item", a.Request)
	}
	if err != nil {
		return fault(err)
	}
	r, _, err := k.Load(ctx, o, p.Response)
	if err == nil && r.Call != a.Call {
		err = missing("item", a.Request)
	}
	return err
}

// Held is the end of a response whose call waits for a person, with what was shown of it until then; nil if it does not
// wait, or for what this response has answered itself.
func (k *Kept) Held(ctx context.Context, o Owner, r *Record, shown [][]byte) *messages.Call {
	if k.Asks == nil {
		return nil
	}
	a, err := k.Asks.Approval(ctx, o.Tenant, r.Call)
	if err != nil {
		return nil // it was decided just now, or cannot be read: whoever looks next finds out
	}
	items := slices.DeleteFunc(asks(a), func(item []byte) bool {
		return slices.Contains(r.Answered, rawjson.Text(item, "id"))
	})
	if len(items) == 0 {
		return nil
	}
	reply := view.NewResponse(r.ID, view.ModelName(r.Request), r.Created)
	reply = rawjson.SetFieldString(reply, "status", "completed")
	reply = rawjson.SetField(reply, "completed_at", rawjson.Encode(time.Now().Unix()))
	reply = rawjson.SetField(reply, "output", rawjson.Array(append(said(shown), items...)))
	c := messages.NewCall(messages.Agent, o.Tenant, r.Request)
	c.ID, c.Wire, c.Accepted = r.Call, messages.ResponsesWire, time.Unix(r.Created, 0)
	c.SetReply(reply)
	return c
}

// said are the messages that the events of a stream have shown, with their texts as far as they came.
func said(shown [][]byte) (items [][]byte) {
	ids, texts := map[int]string{}, map[int]string{}
	for _, e := range shown {
		if events.Name(e) == "response.output_item.added" {
			item, _ := rawjson.Field(e, "item")
			at, _ := rawjson.Field(e, "output_index")
			if n, ok := rawjson.Int(at); ok {
				ids[int(n)] = rawjson.Text(item, "id")
			}
		}
		if at, text, ok := events.Delta(e); ok && at.Kind == events.Answer {
			texts[at.Item] += text
		}
	}
	for i := range len(ids) {
		items = append(items, view.TextItem(ids[i], texts[i]))
	}
	return items
}

// Continues is the record of a turn that answers questions of a call and goes on from there.
func (t *Turn) Continues(created int64) *Record {
	r := t.record(ID(messages.NewID()), t.Answers[0].Call, created)
	for _, a := range t.Answers {
		r.Answered = append(r.Answered, a.Request)
	}
	return r
}
