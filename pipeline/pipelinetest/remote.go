package pipelinetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/remotestage"
)

// Remotely turns the stages into remote stages, so that the Runner suite can be run on these too. The subject of each
// is its name; ask asks the programs.
func Remotely(stages []pipeline.Stage, ask pipeline.Requester) []pipeline.Stage {
	out := make([]pipeline.Stage, len(stages))
	for i, s := range stages {
		spec := remotestage.Spec{
			Name: s.Name, Kind: s.Kind, Order: s.Order, Tier: s.Tier, Subject: s.Name, Timeout: time.Minute,
			OnError: remotestage.OpenErr,
			Again:   s.Keep, Jumps: s.Jumps, Writes: []string{"request", "reply"},
		}
		if s.FailClosed {
			spec.OnError = remotestage.CloseErr
		}
		if s.Before != nil {
			spec.Phases = append(spec.Phases, messages.Before)
		}
		if s.After != nil {
			spec.Phases = append(spec.Phases, messages.After)
		}
		out[i] = remotestage.Stage(spec, ask, nil)
		out[i].Rewrites = s.Rewrites
	}
	return out
}

// Programs is a Requester whose programs are the stages themselves, by name, in this process.
type Programs []pipeline.Stage

// Request runs the stage whose name is the subject.
func (p Programs) Request(ctx context.Context, subject string, _ map[string]string,
	question []byte) (pipeline.Response, error) {
	for _, s := range p {
		if s.Name == subject {
			body, failed := Program(ctx, s, question)
			asked := pipeline.Response{Body: body, ErrorText: failed}
			if ctx.Err() != nil {
				return asked, ctx.Err()
			}
			return asked, nil
		}
	}
	return pipeline.Response{}, pipeline.ErrNoResponders
}

// told is a question as a program reads it. It follows docs/writing-a-stage.md and shares no code with package
// remotestage, so that the two can be compared.
type told struct {
	Version int    `json:"version"`
	Stage   string `json:"stage"`
	Phase   string `json:"phase"`
	Call    struct {
		ID       string                     `json:"id"`
		Kind     string                     `json:"kind"`
		Tenant   string                     `json:"tenant"`
		Session  string                     `json:"session"`
		Run      string                     `json:"run"`
		Tool     string                     `json:"tool"`
		Attempt  int                        `json:"attempt"`
		Deadline time.Time                  `json:"deadline"`
		Notes    map[string]json.RawMessage `json:"notes"`
	} `json:"call"`
	State   json.RawMessage `json:"state"`
	Request json.RawMessage `json:"request"`
	Reply   json.RawMessage `json:"reply"`
	Text    []string        `json:"text"`
	Fault   *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Origin  string `json:"origin"`
	} `json:"fault"`
}

// Program answers a question as the program of a remote stage would: it runs the stage's phase on a call of its own,
// and answers with the verdict and the changes. failed is the text of a service error.
func Program(ctx context.Context, s pipeline.Stage, question []byte) (body []byte, failed string) {
	var q told
	if err := json.Unmarshal(question, &q); err != nil {
		return nil, err.Error()
	}
	c := q.rebuild()
	if !c.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, c.Deadline)
		defer cancel()
	}
	run := s.Before
	if q.Phase == "after" {
		run = s.After
	}
	was := c.Clone()
	defer func() {
		if p := recover(); p != nil {
			failed = fmt.Sprintf("panic: %v", p)
			body = rawjson.Encode(map[string]any{"error": failed, "notes": changed(was, c)})
		}
	}()
	v, err := run(ctx, c)
	if err != nil {
		e := map[string]any{"message": err.Error()}
		if f, ok := errors.AsType[*messages.Fault](err); ok {
			e = map[string]any{"code": f.Code, "message": f.Message, "param": f.Param}
		}
		return rawjson.Encode(map[string]any{"error": e, "notes": changed(was, c)}), ""
	}
	return q.answer(v, was, c), ""
}

func (q *told) rebuild() *messages.Call {
	text := func(name string, raw json.RawMessage) []byte {
		for _, t := range q.Text {
			var s string
			if t == name && json.Unmarshal(raw, &s) == nil {
				return []byte(s)
			}
		}
		return raw
	}
	c := messages.NewCall(messages.Kind(q.Call.Kind), q.Call.Tenant, text("request", q.Request))
	c.ID, c.Session, c.Run, c.Tool, c.Deadline, c.Notes = q.Call.ID, q.Call.Session, q.Call.Run, q.Call.Tool,
		q.Call.Deadline, q.Call.Notes
	c.Slip = messages.Slip{Stops: []messages.Stop{{Name: q.Stage, Before: true, After: true}}, Scratch: q.State}
	if q.Phase == "after" {
		c.Slip.Back, c.Slip.Frames, c.Slip.Scratch = true,
			[]messages.Frame{{Attempt: q.Call.Attempt, State: q.State}}, nil
	}
	switch {
	case q.Reply != nil:
		c.SetReply(text("reply", q.Reply))
	case q.Fault != nil:
		c.Fault = messages.NewFault(messages.Code(q.Fault.Code), "%s", q.Fault.Message).From(q.Fault.Origin)
	}
	return c
}

func (q *told) answer(v pipeline.Verdict, was, is *messages.Call) []byte {
	out := map[string]any{"verdict": v.String()}
	var text []string
	give := func(name string, old, now []byte, isText bool) {
		switch {
		case now == nil && old != nil:
			out["remove"] = []string{name}
		case now != nil && !bytes.Equal(old, now):
			out[name] = json.RawMessage(now)
			if isText {
				text = append(text, name)
			}
		}
	}
	_, isText := is.RequestText()
	give("request", was.Request(), is.Request(), isText)
	_, isText = is.ReplyText()
	give("reply", was.Reply(), is.Reply(), isText)
	if r := v.Request(); r != nil {
		out["request"] = json.RawMessage(r)
	}
	if text != nil {
		out["text"] = text
	}
	out["notes"] = changed(was, is)
	var state json.RawMessage
	if ok, err := is.State(&state); ok && err == nil {
		out["state"] = state
	}
	if d := v.Delay(); d > 0 {
		out["delay_ms"] = d.Milliseconds()
	}
	if t := v.Target(); t != "" {
		out["target"] = t
	}
	if raw := v.Question(); raw != nil {
		out["question"] = raw
	}
	return rawjson.Encode(out)
}

// changed returns the notes that a phase has set; null for those that it removed.
func changed(was, is *messages.Call) map[string]json.RawMessage {
	notes := map[string]json.RawMessage{}
	for k, raw := range is.Notes {
		if !bytes.Equal(was.Notes[k], raw) {
			notes[k] = raw
		}
	}
	for k := range was.Notes {
		if _, ok := is.Notes[k]; !ok {
			notes[k] = json.RawMessage("null")
		}
	}
	return notes
}
