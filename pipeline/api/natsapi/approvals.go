package natsapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// serveApprovals answers shallot.v1.approval.list and .answer, bare and with a tenant. An answer is {"call": "<id>",
// "answer": <JSON>}, or the keys of a decision beside the call.
func (s *Server) serveApprovals() error {
	list := endpoint{about: "lists the calls that wait for a person", reply: heldForm}
	if err := s.perTenant(list, "approval.list", s.serveHeld); err != nil {
		return err
	}
	answer := endpoint{about: "answers the question of a call that waits", request: decisionForm, reply: decided{}}
	return s.perTenant(answer, "approval.answer", s.serveAnswer)
}

// decided is the answer to a decision.
type decided struct {
	Call     string `json:"call"`
	Status   string `json:"status"`
	Decision string `json:"decision,omitempty"`
	By       string `json:"by,omitempty"`
}

func (s *Server) serveHeld(m *asked, tenant string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	list, err := s.Calls.HeldRows(ctx, tenant)
	if err != nil {
		s.reply(m, refusal(m.Reply, messages.AsFault(err, "entry")))
		return
	}
	s.reply(m, &nats.Msg{Subject: m.Reply, Data: heldList(list, s.largest())})
}

// heldList is as much of the list as fits into a message, the oldest first. A call whose question does not fit is
// listed without it.
func heldList(list []json.RawMessage, limit int) []byte {
	out := []byte{'['}
	for _, row := range list {
		if len(out)+len(row)+2 > limit {
			row = rawjson.DropField(row, "question")
		}
		if len(out)+len(row)+2 > limit {
			break
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, row...)
	}
	return append(out, ']')
}

func (s *Server) serveAnswer(m *asked, tenant string) {
	call, answer, err := readAnswer(m.Data)
	if err != nil {
		s.reply(m, refusal(m.Reply, messages.AsFault(err, "entry")))
		return
	}
	by := by(m.Msg)
	ctx := api.WithOrigin(context.Background(), "nats "+m.Subject)
	decision, err := s.Calls.DecideInOneWord(ctx, tenant, call, answer, by)
	switch {
	case errors.Is(err, pipeline.ErrHeld):
		s.reply(m, pendingAnswer(m.Reply, call))
	case err != nil:
		s.reply(m, refusal(m.Reply, messages.AsFault(err, "entry")))
	default:
		s.reply(m, status(m.Reply, call, "decided", decided{call, "decided", decision, by}))
	}
}

// by is who asks: a message says no more of it than its sender wants.
func by(m *nats.Msg) string {
	if user := m.Header.Get("Shallot-User"); user != "" {
		return "nats/" + headerValue(user)[:min(len(user), 256)]
	}
	return "nats"
}

// readAnswer reads the call and the answer to its question.
func readAnswer(data []byte) (call string, answer json.RawMessage, err error) {
	bad := messages.NewFault(messages.InvalidRequest,
		`send {"call":"<id>","decision":"approve"}, or {"call":"<id>","answer":<JSON>}`).From("entry")
	if f := control(data); f != nil {
		return "", nil, f
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return "", nil, bad
	}
	call, ok := rawjson.IsString(all["call"])
	if !ok || call == "" {
		return "", nil, bad.At("call")
	}
	if answer, ok := all["answer"]; ok {
		return call, answer, nil
	}
	delete(all, "call")
	if len(all) == 0 {
		return "", nil, bad.At("decision")
	}
	return call, rawjson.DropField(bytes.TrimSpace(data), "call"), nil
}
