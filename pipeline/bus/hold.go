package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// hdrHeld tells the accepting process that its call is parked.
const hdrHeld = "Shallot-Held"

// Parked is a call that waits for somebody's answer: line 1 of its record; the call itself follows.
//
// The record is made once for each hold, by its generation: a second delivery of the lease finds it and asks nobody
// again. It changes once more, when something is decided, and that is the one moment which decides: what follows from
// it may be done again by anybody. Every process with the entry role watches the records (waitlist): one of them ends the
// question in its time, and carries out what somebody decided and did not live to carry out.
type Parked struct {
	Call     string          `json:"call"`
	Tenant   string          `json:"tenant"`
	Kind     messages.Kind   `json:"kind"`
	Tool     string          `json:"tool,omitempty"`
	Stage    string          `json:"stage"`
	Phase    messages.Phase  `json:"phase"`
	Question json.RawMessage `json:"question,omitempty"`
	Since    time.Time       `json:"since"`
	// Expires is when the question ends undecided. Left is the time that the call itself has then: its clock stands
	// still while it waits.
	Expires    time.Time     `json:"expires"`
	Left       time.Duration `json:"left"`
	Generation uint64        `json:"generation"`
	// Ran says that the call had been at its target before it was held.
	Ran     bool     `json:"ran,omitempty"`
	Decided *Decided `json:"decided,omitempty"`
}

// Decided says what became of a question: an answer, or a fault where nobody gave one.
type Decided struct {
	By     string          `json:"by"`
	At     time.Time       `json:"at"`
	Answer json.RawMessage `json:"answer,omitempty"`
	Fault  *messages.Fault `json:"fault,omitempty"`
}

// what says in one word what was decided, if the answer has one.
func (d Decided) what() string {
	if d.Fault != nil {
		return string(d.Fault.Code)
	}
	if s, ok := rawjson.FieldString(d.Answer, "decision"); ok {
		return s
	}
	s, _ := rawjson.IsString(d.Answer)
	return s
}

// questionShare is the part of a NATS message that a question may take: its record holds the call and the decision too.
const questionShare = 4

// park stores a held call and its question, and only then settles the lease: a parked call holds none. Its end will be
// recorded, because whoever asked may be long gone.
func (n *Node) park(h *held, next pipeline.Next) {
	n.work.Add(1)
	defer n.work.Done()
	ctx, cancel := n.until(h.c)
	defer cancel()
	h.c.Return.Record, h.c.Stream = true, false // who waited comes back for the result: nobody reads chunks
	name, phase := h.c.Slip.Stage()
	now := time.Now().UTC()
	p := Parked{
		Call: h.c.ID, Tenant: h.c.Tenant, Kind: h.c.Kind, Tool: h.c.Tool, Stage: name, Phase: phase, Question: next.Question, Since: now,
		Expires: now.Add(next.Expires), Left: max(time.Until(h.c.Deadline), 0), Generation: h.c.Generation,
	}
	p.Ran = h.c.Flag(messages.NoteExecutorReached)
	inbox, caller := h.c.Return.Inbox, h.c.Return.Caller
	h.c.Return.Inbox, h.c.Return.Caller = "", "" // whoever waits is told that it is held, and asks for the end later
	fresh, err := false, nats.ErrMaxPayload
	if most := n.nc.MaxPayload() / questionShare; int64(len(next.Question)) <= most {
		p, fresh, err = n.ask(ctx, h.c, p)
	}
	if err == nil && p.Decided == nil {
		err = n.keepKey(ctx, h.c, true)
	}
	if errors.Is(err, nats.ErrMaxPayload) {
		h.c.Return.Inbox, h.c.Return.Caller = inbox, caller
		n.forward(h, pipeline.FailHold(h.c, messages.NewFault(messages.TooLarge,
			"stage %s asks a question of %d bytes, which does not fit into its record; at most %d, a quarter of the server's max_payload, less what the call itself takes",
			name, len(next.Question), n.nc.MaxPayload()/questionShare)))
		return
	}
	if err != nil {
		n.log.Error("a held call could not be parked; its lease brings it back", "call", h.c.ID, "err", err)
		return
	}
	if fresh {
		n.tell("held", p)
	}
	if inbox != "" {
		_ = n.nc.PublishMsg(&nats.Msg{Subject: inbox, Header: nats.Header{hdrHeld: {name}}})
	}
	n.settleLater(h.lease)
}

// ask makes the record of a question. If it is there already, or was and is answered, that one counts.
func (n *Node) ask(ctx context.Context, c *messages.Call, p Parked) (counts Parked, fresh bool, err error) {
	m, err := n.codec.encode(ctx, c)
	if err == nil {
		err = n.shelve(ctx, m.Data)
	}
	if err != nil {
		return p, false, err
	}
	key, record := messages.Key(c.Tenant, c.ID), parkedRecord(p, m.Data)
	when := pipeline.IfAbsent()
	for {
		rev, err := n.approvals.Put(ctx, key, record, 0, when)
		if err == nil {
			// The question may have been answered, and its record cleared away, before this delivery of the lease.
			if d, ok, err := n.decided(ctx, c.Tenant, c.ID); err != nil || ok && d.Generation >= p.Generation {
				if ok {
					_ = n.approvals.Clear(ctx, key, rev)
				}
				return d, false, err
			}
			return p, true, nil
		}
		if ctx.Err() != nil || !errors.Is(err, pipeline.ErrExists) && !errors.Is(err, pipeline.ErrChanged) && !errors.Is(err, jet.ErrNoAnswer) {
			return p, false, err
		}
		old, e, _, err := n.parked(ctx, key)
		switch {
		case errors.Is(err, pipeline.ErrNotFound):
			when = pipeline.IfAbsent()
		case err != nil:
			return p, false, err
		case old.Generation >= p.Generation:
			return old, false, nil
		default: // an earlier hold of this call, answered and not yet cleared away
			when = pipeline.IfRevision(e.Revision)
		}
	}
}

func parkedRecord(p Parked, wire []byte) []byte {
	return append(append(rawjson.Encode(p), '\n'), wire...)
}

// parked reads the record of a call that waits; ErrNotFound if there is none.
func (n *Node) parked(ctx context.Context, key string) (p Parked, e pipeline.StoreEntry, wire []byte, err error) {
	if e, err = n.approvals.Get(ctx, key); err != nil {
		return p, e, nil, err
	}
	first, wire, _ := bytes.Cut(e.Value, []byte{'\n'})
	if err := json.Unmarshal(first, &p); err != nil {
		return p, e, nil, fmt.Errorf("held call %s: %w", key, err)
	}
	return p, e, wire, nil
}

// decidedKey is what is remembered of an answered question, as long as a result. The tenant stands in the value.
func decidedKey(id string) string { return messages.Key(id, "decided") }

// decided finds an answered question of the tenant, or of any if that is empty.
func (n *Node) decided(ctx context.Context, tenant, id string) (p Parked, ok bool, err error) {
	e, err := n.results.Get(ctx, decidedKey(id))
	if errors.Is(err, pipeline.ErrNotFound) {
		return p, false, nil
	}
	if err != nil {
		return p, false, err
	}
	ok = json.Unmarshal(e.Value, &p) == nil && p.Decided != nil && (tenant == "" || tenant == p.Tenant)
	return p, ok, nil
}

// heldNow reports whether a call is parked, and whether nobody has decided yet.
func (n *Node) heldNow(ctx context.Context, tenant, id string) (parked, open bool) {
	p, _, _, err := n.parked(ctx, messages.Key(tenant, id))
	return err == nil, err == nil && p.Decided == nil
}

// wasHeld reports whether a call is parked or was: then it may end long after the deadline that it began with.
func (n *Node) wasHeld(ctx context.Context, tenant, id string) bool {
	if parked, _ := n.heldNow(ctx, tenant, id); parked {
		return true
	}
	_, ok, _ := n.decided(ctx, tenant, id)
	return ok
}

// tell tells whoever listens what became of a call, without the question and the answer: they hold arguments.
func (n *Node) tell(what string, p Parked) {
	type event struct {
		Call     string        `json:"call"`
		Tenant   string        `json:"tenant"`
		Kind     messages.Kind `json:"kind"`
		Tool     string        `json:"tool,omitempty"`
		Stage    string        `json:"stage"`
		Since    time.Time     `json:"since"`
		Expires  time.Time     `json:"expires"`
		Decision string        `json:"decision,omitempty"`
		By       string        `json:"by,omitempty"`
		At       time.Time     `json:"at,omitzero"`
	}
	e := event{Call: p.Call, Tenant: p.Tenant, Kind: p.Kind, Tool: p.Tool, Stage: p.Stage, Since: p.Since, Expires: p.Expires}
	if d := p.Decided; d != nil {
		e.Decision, e.By, e.At = d.what(), d.By, d.At
	}
	_ = n.nc.Publish(n.subj.Event(what, string(p.Kind), messages.Token(p.Stage)), rawjson.Encode(e))
}

func expired(p Parked) *messages.Fault {
	return messages.NewFault(messages.Blocked, "nobody decided about the call in %s (from %s to %s), so it ended at stage %s; %s",
		p.Expires.Sub(p.Since).Round(time.Millisecond), p.Since.Format(time.RFC3339), p.Expires.Format(time.RFC3339), p.Stage, p.ran()).From(p.Stage)
}

// ran says whether the target was asked: an after may hold a call too, with the result in its hands.
func (p Parked) ran() string {
	if p.Ran {
		return fmt.Sprintf("the %s had run before, and its result is not given out", p.Kind)
	}
	return "it was not run"
}

// decide writes what became of the question into its record, if nothing has been decided yet (ErrChanged), and carries
// it out.
func (n *Node) decide(ctx context.Context, p *Parked, e pipeline.StoreEntry, wire []byte, d Decided) error {
	d.At = time.Now().UTC()
	p.Decided = &d
	if _, err := n.approvals.Put(ctx, messages.Key(p.Tenant, p.Call), parkedRecord(*p, wire), 0, pipeline.IfRevision(e.Revision)); err != nil {
		return err
	}
	n.tell("decided", *p)
	if err := n.goOn(ctx, *p, wire); err != nil {
		n.log.Warn("a decision was not carried out yet; that is done in a few seconds", "call", p.Call, "err", err)
	}
	return nil
}

// goOn lets an answered call go on where it was held, with the time that it had left. It may be done twice: of two
// copies of the call only one is claimed. Its record stays until then.
func (n *Node) goOn(ctx context.Context, p Parked, wire []byte) error {
	c, err := n.codec.decode(wire)
	if err != nil {
		return fmt.Errorf("held call %s: %w", p.Call, err)
	}
	if err := n.unshelve(ctx, c); err != nil {
		return err
	}
	c.Deadline = time.Now().UTC().Add(p.Left)
	if _, err := n.results.Put(ctx, submittedKey(p.Tenant, p.Call), []byte("{}"), 0, pipeline.Always()); err != nil {
		return err
	}
	if err := n.keepKey(ctx, c, false); err != nil {
		return err
	}
	if p.Decided.Fault != nil {
		pipeline.FailHold(c, p.Decided.Fault)
	} else {
		c.Note(messages.NoteAnswer, p.Decided.Answer)
	}
	c.Note(messages.NoteResumed, p.Generation)
	return n.storeNext(c, n.subj.Route(c.Kind), nil)
}

// resumed claims the one copy of an answered call that goes on, and clears the question away; what was decided is
// remembered as long as a result. A second delivery of the same copy finds its own claim.
func (n *Node) resumed(c *messages.Call, l Lease, generation uint64) (mine bool, err error) {
	ctx, cancel := n.until(c)
	defer cancel()
	if mine, err = n.claimResumed(ctx, c, l, generation); err != nil || !mine {
		return mine, err
	}
	key := messages.Key(c.Tenant, c.ID)
	p, e, _, err := n.parked(ctx, key)
	switch {
	case errors.Is(err, pipeline.ErrNotFound), err == nil && (p.Generation != generation || p.Decided == nil):
		return true, nil
	case err != nil:
		return false, err
	}
	if _, err := n.results.Put(ctx, decidedKey(p.Call), rawjson.Encode(p), 0, pipeline.Always()); err != nil {
		return false, err
	}
	return true, n.approvals.Clear(ctx, key, e.Revision)
}

// claimResumed reports whether this message is the one copy of a resumed call that goes on. A second delivery of it is.
func (n *Node) claimResumed(ctx context.Context, c *messages.Call, l Lease, generation uint64) (bool, error) {
	key := "hold." + messages.Key(c.Tenant, c.ID, strconv.FormatUint(generation, 10))
	mine := []byte(l.Stream + "." + strconv.FormatUint(l.Seq, 10))
	for {
		_, err := n.intents.Put(ctx, key, mine, 0, pipeline.IfAbsent())
		if err == nil {
			return true, nil
		}
		if errors.Is(err, pipeline.ErrExists) {
			e, err := n.intents.Get(ctx, key)
			if !errors.Is(err, pipeline.ErrNotFound) {
				return err == nil && bytes.Equal(e.Value, mine), err
			}
		}
		if ctx.Err() != nil {
			return false, err
		}
		pause(ctx, 100*time.Millisecond)
	}
}
