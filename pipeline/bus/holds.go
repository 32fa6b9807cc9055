package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// holds parks calls until somebody decides about them. The record is created once for each hold, by its generation, and
// changes once more, when something is decided: that is the one moment which decides, and what follows from it may be
// done again by anybody. It stays until the call has ended, so that a late delivery finds that it was parked.
type holds struct {
	records records
	decide  decide
	codec   *codec
	queue   *workqueue
	keys    *keys
	ends    *ends
	store   *jet.Bucket // of the records and of large bodies beside them
	results *jet.Bucket // where decisions are remembered
	subj    messages.Subjects
	nc      *nats.Conn
	log     *slog.Logger
	subject func(c *messages.Call) string
	// check is Options.Decide; nil takes every answer.
	check func(ctx context.Context, p Parked, answer json.RawMessage, by string) (json.RawMessage, error)

	mu      sync.Mutex
	parking map[string]parking
}

// parking is a hold that is being stored.
type parking struct {
	Parked
	record []byte
}

// questionShare is the part of a NATS message that a question may take: its record holds the call and the decision too.
const questionShare = 4

// hold parks a call that a stage holds, or that waits long for another attempt. It returns when the record is stored,
// or when the call is another owner's.
func (h *holds) hold(o *owned, next pipeline.Next) (outcome, error) {
	c, delayed := o.call, next.Where != pipeline.ToHold
	name, phase := c.Slip.Stage()
	if name == "" {
		name = string(c.Kind) // the target itself
	}
	if o.run.last > 0 {
		c.Note(messages.NoteWorks, o.run.last)
	}
	most := h.nc.MaxPayload() / questionShare
	tooLarge := messages.NewFault(messages.TooLarge, "stage %s asks a question of %d bytes, which does not fit into its "+
		"record; at most %d, a quarter of the server's max_payload, less what the call itself takes", name,
		len(next.Question),
		most).From(name)
	if int64(len(next.Question)) > most {
		return 0, tooLarge
	}
	now := time.Now().UTC()
	p := Parked{Call: c.ID, Tenant: c.Tenant, Kind: c.Kind, Tool: c.Tool, Stage: name, Phase: phase,
		Question: next.Question,
		Since:    now, Expires: now.Add(next.Expires), Left: max(time.Until(c.Deadline), 0), Generation: c.Generation,
		Ran: c.Flag(messages.NoteExecutorReached), Delayed: delayed, Awaits: next.Awaits}
	inbox := c.Return.Inbox
	kept := c.Clone()
	kept.Note(messages.NoteStored, true)
	if delayed {
		p.Expires = now.Add(min(next.Delay, p.Left))
	} else { // whoever waits is told that it is held, and asks for its end later
		kept.Return, kept.Stream = messages.Return{Record: true}, false
	}
	wire, err := h.shelve(o.ctx, kept)
	if err != nil {
		return 0, err
	}
	record := parkedRecord(p, wire)
	if int64(len(record)) > h.nc.MaxPayload()-16<<10 {
		return 0, tooLarge
	}
	h.mu.Lock()
	h.parking[c.ID] = parking{p, record}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.parking, c.ID)
	}()
	h.decide(func(own *protocol.Owner, t time.Duration, out []protocol.Effect) []protocol.Effect {
		return own.Deliveries.Park(t, c.ID, out)
	})
	out, err := parkedOr(o)
	if out != parked || delayed {
		return out, err
	}
	if err := h.keys.keep(context.WithoutCancel(o.ctx), c, true); err != nil {
		h.log.Warn("the idempotency key of a held call may end before its hold", "call", c.ID, "err", err)
	}
	h.tell("held", p)
	h.ends.held(c.ID, inbox)
	return parked, nil
}

// parkedOr waits for what becomes of a hold.
func parkedOr(o *owned) (outcome, error) {
	for {
		l, err := o.mail.next(o.ctx)
		switch {
		case err != nil && errors.Is(context.Cause(o.ctx), errElsewhere):
			return yielded, nil
		case err != nil:
			return 0, overFault(o.ctx, o.call)
		case l.why == protocol.Parked:
			return parked, nil
		case l.why == protocol.Yielded:
			return yielded, nil
		case l.why == protocol.HandedBack:
			return handedBack, nil
		}
	}
}

// put creates the record of a hold. One of an earlier hold of the call is written over; the same one is there already.
func (h *holds) put(e protocol.Effect) {
	h.mu.Lock()
	p, ok := h.parking[e.Call]
	h.mu.Unlock()
	if !ok {
		h.decide.stored(e, protocol.Stored{Result: protocol.Unclear})
		return
	}
	key := messages.Key(p.Tenant, p.Call)
	told := func(f found) { h.decide.stored(e, protocol.Stored{Result: f.result}) }
	h.records.create(jet.ApprovalsBucket, key, p.record, func(f found) {
		if f.result != protocol.Exists {
			told(f)
			return
		}
		old, _, err := readParked(f.data)
		if err == nil && old.Generation < e.N {
			h.records.update(jet.ApprovalsBucket, key, p.record, f.rev, func(f found) {
				if f.result == protocol.Exists {
					f.result = protocol.Unclear // somebody changed the old one meanwhile
				}
				told(f)
			})
			return
		}
		told(f)
	})
}

// get looks whether a generation was parked: then a later delivery has nothing to do, whatever became of the hold.
func (h *holds) get(e protocol.Effect, key string) {
	h.records.get(jet.ApprovalsBucket, key, func(f found) {
		st := protocol.Stored{Result: f.result}
		if f.result == protocol.OK {
			if p, _, err := readParked(f.data); err != nil || p.Generation < e.N {
				st.Result = protocol.Missing
			}
		}
		h.decide.stored(e, st)
	})
}

// whether calls then if a call is parked and nobody has decided yet.
func (h *holds) whether(key string, then func()) {
	h.records.get(jet.ApprovalsBucket, key, func(f found) {
		if f.result != protocol.OK {
			return
		}
		if p, _, err := readParked(f.data); err == nil && p.Decided == nil && !p.Delayed {
			then()
		}
	})
}

func parkedRecord(p Parked, wire []byte) []byte {
	return append(append(rawjson.Encode(p), '\n'), wire...)
}

func readParked(record []byte) (p Parked, wire []byte, err error) {
	first, wire, _ := bytes.Cut(record, []byte{'\n'})
	if err := json.Unmarshal(first, &p); err != nil {
		return p, nil, fmt.Errorf("record of a held call: %w", err)
	}
	return p, wire, nil
}

// read reads the record of a hold; ErrNotFound if there is none.
func (h *holds) read(ctx context.Context, key string) (p Parked, e pipeline.StoreEntry, wire []byte, err error) {
	if e, err = h.store.Get(ctx, key); err == nil {
		p, wire, err = readParked(e.Value)
	}
	return p, e, wire, err
}

// find reads what is known of a call's hold.
func (h *holds) find(ctx context.Context, tenant, id string) (Parked, error) {
	p, _, _, err := h.read(ctx, messages.Key(tenant, id))
	return p, err
}

// A question may wait for days, longer than large bodies are kept. So they lie beside its record meanwhile.

// shelfPiece is how much of a large body goes into one entry.
const shelfPiece = 512 << 10

func shelfKey(c *messages.Call, ref string, piece int) string {
	return messages.Key(c.Tenant, c.ID) + ".body." + messages.Token(ref) + "." + strconv.Itoa(piece)
}

// shelve writes a call, with its large bodies beside its record.
func (h *holds) shelve(ctx context.Context, c *messages.Call) ([]byte, error) {
	full := c.Clone()
	wire, err := h.codec.encode(ctx, full)
	if err != nil {
		return nil, err
	}
	spilled, err := messages.Unmarshal(wire)
	if err != nil {
		return nil, err
	}
	for _, ref := range spilled.Refs() {
		raw, err := h.codec.fetch(ctx, ref)
		if err != nil {
			return nil, messages.NewFault(messages.StoreUnavailable, "large body %s: %v", ref, err)
		}
		for i := 0; i*shelfPiece < len(raw); i++ {
			piece := raw[i*shelfPiece : min((i+1)*shelfPiece, len(raw))]
			if _, err := h.store.Put(ctx, shelfKey(c, ref, i), piece, 0, pipeline.Always()); err != nil {
				return nil, messages.NewFault(messages.StoreUnavailable, "large body %s: %v", ref, err)
			}
		}
	}
	return wire, nil
}

// unshelve puts the large bodies of a call back where every process looks for them.
func (h *holds) unshelve(ctx context.Context, c *messages.Call) error {
	for _, ref := range c.Refs() {
		var raw []byte
		for i := 0; ; i++ {
			e, err := h.store.Get(ctx, shelfKey(c, ref, i))
			if errors.Is(err, pipeline.ErrNotFound) {
				break
			}
			if err != nil {
				return err
			}
			raw = append(raw, e.Value...)
		}
		if len(raw) == 0 {
			continue
		}
		if err := h.codec.put(ctx, ref, raw); err != nil {
			return err
		}
	}
	return nil
}
