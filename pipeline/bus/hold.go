package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// hdrHeld tells the accepting process that its call is parked.
const hdrHeld = "Shallot-Held"

// NoteAnswer is where a stage finds the answer to its Hold when its phase runs again.
const NoteAnswer = "hold.answer"

// Parked is a call that waits for somebody's answer: line 1 of its record; the call itself follows.
type Parked struct {
	Call     string          `json:"call"`
	Tenant   string          `json:"tenant"`
	Kind     messages.Kind   `json:"kind"`
	Stage    string          `json:"stage"`
	Phase    messages.Phase  `json:"phase"`
	Question json.RawMessage `json:"question,omitempty"`
	Since    time.Time       `json:"since"`
	Deadline time.Time       `json:"deadline"`
	Answered bool            `json:"answered,omitempty"`
}

// park stores a held call and its question, and only then settles the lease: a parked call holds none. Its end will be
// recorded, because whoever asked may be long gone.
func (n *Node) park(h *held, question []byte) {
	n.work.Add(1)
	defer n.work.Done()
	ctx, cancel := n.until(h.c)
	defer cancel()
	h.c.Return.Record, h.c.Stream = true, false // who waited comes back for the result: nobody reads chunks
	name, phase := h.c.Slip.Stage()
	p := Parked{Call: h.c.ID, Tenant: h.c.Tenant, Kind: h.c.Kind, Stage: name, Phase: phase, Question: question,
		Since: time.Now().UTC(), Deadline: h.c.Deadline}
	m, err := n.codec.encode(ctx, h.c)
	if err == nil { // from now on it can be asked for by its id
		_, err = n.results.Put(ctx, submittedKey(h.c.Tenant, h.c.ID), []byte("{}"), 0, pipeline.Always())
	}
	if err == nil {
		record := append(append(messages.Encode(p), '\n'), m.Data...)
		_, err = n.approvals.Put(ctx, messages.Key(h.c.Tenant, h.c.ID), record, 0, pipeline.Always())
	}
	if err != nil {
		n.log.Error("a held call could not be parked; its lease brings it back", "call", h.c.ID, "err", err)
		return
	}
	_ = n.nc.Publish(n.subj.Event("held", string(h.c.Kind), messages.Token(name)), messages.Encode(p))
	if h.c.Return.Inbox != "" {
		_ = n.nc.PublishMsg(&nats.Msg{Subject: h.c.Return.Inbox, Header: nats.Header{hdrHeld: {name}}})
	}
	n.settleLater(h.lease)
}

// Answer gives a parked call its answer: it goes on with the phase that held it, which finds the answer in the note
// hold.answer. The first answer wins; a second one is the fault conflict.
func (n *Node) Answer(ctx context.Context, tenant, id string, answer json.RawMessage) error {
	key := messages.Key(tenant, id)
	e, err := n.approvals.Get(ctx, key)
	if errors.Is(err, pipeline.ErrNotFound) {
		return messages.NewFault(messages.NotFound, "no held call %s", id).From("entry")
	}
	if err != nil {
		return messages.NewFault(messages.StoreUnavailable, "the held call cannot be read: %v", err).From("entry")
	}
	var p Parked
	first, wire, _ := bytes.Cut(e.Value, []byte{'\n'})
	if err := json.Unmarshal(first, &p); err != nil {
		return fmt.Errorf("held call %s: %w", id, err)
	}
	if p.Answered {
		return messages.NewFault(messages.Conflict, "call %s was answered already", id).From("entry")
	}
	c, err := n.codec.decode(wire)
	if err != nil {
		return fmt.Errorf("held call %s: %w", id, err)
	}
	p.Answered = true
	rev, err := n.approvals.Put(ctx, key, append(append(messages.Encode(p), '\n'), wire...), 0, pipeline.IfRevision(e.Revision))
	if errors.Is(err, pipeline.ErrChanged) {
		return messages.NewFault(messages.Conflict, "call %s was answered meanwhile", id).From("entry")
	}
	if err != nil {
		return messages.NewFault(messages.StoreUnavailable, "the answer cannot be stored: %v", err).From("entry")
	}
	c.Note(NoteAnswer, answer)
	if err := n.storeNext(c, n.subj.Route(c.Kind), nil); err != nil {
		_, _ = n.approvals.Put(ctx, key, e.Value, 0, pipeline.IfRevision(rev)) // not answered after all
		return err
	}
	return n.approvals.Delete(ctx, key)
}

// heldNow reports whether a call is parked.
func (n *Node) heldNow(ctx context.Context, tenant, id string) bool {
	_, err := n.approvals.Get(ctx, messages.Key(tenant, id))
	return err == nil
}

// parkedCalls returns the parked calls of a tenant, all tenants' if it is empty.
func (n *Node) parkedCalls(ctx context.Context, tenant string) ([]Parked, error) {
	prefix := ""
	if tenant != "" {
		prefix = messages.Token(tenant) + "."
	}
	keys, err := n.approvals.Keys(ctx, prefix)
	if err != nil {
		return nil, err
	}
	out := []Parked{}
	for _, k := range keys {
		e, err := n.approvals.Get(ctx, k)
		if err != nil {
			continue
		}
		var p Parked
		first, _, _ := bytes.Cut(e.Value, []byte{'\n'})
		if json.Unmarshal(first, &p) == nil && !p.Answered {
			out = append(out, p)
		}
	}
	return out, nil
}

// serveApprovals answers shallot.v1.approval.list and .answer ({"call":"...","answer":...}).
func (n *Node) serveApprovals() error {
	if err := n.face(n.subj.Control("approval", "list"), func(m *nats.Msg) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		list, err := n.parkedCalls(ctx, "default")
		if err != nil {
			n.reply(m, refusal(m.Reply, messages.AsFault(err, "entry")))
			return
		}
		n.reply(m, &nats.Msg{Subject: m.Reply, Data: messages.Encode(list)})
	}); err != nil {
		return err
	}
	return n.face(n.subj.Control("approval", "answer"), func(m *nats.Msg) {
		var ask struct {
			Call   string          `json:"call"`
			Answer json.RawMessage `json:"answer"`
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err := json.Unmarshal(m.Data, &ask)
		if err != nil || ask.Call == "" {
			n.reply(m, refusal(m.Reply, messages.NewFault(messages.InvalidRequest, `send {"call":"<id>","answer":<JSON>}`).From("entry")))
			return
		}
		if err := n.Answer(ctx, "default", ask.Call, ask.Answer); err != nil {
			n.reply(m, refusal(m.Reply, messages.AsFault(err, "entry")))
			return
		}
		n.reply(m, &nats.Msg{Subject: m.Reply, Data: []byte(`{"status":"answered"}`)})
	})
}
