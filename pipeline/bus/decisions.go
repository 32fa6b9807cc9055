package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// decideCall gives a parked call its answer: it goes on with the phase that held it, which finds the answer in the note
// hold.answer. The first answer wins; a later one is the fault conflict, which says whose the first was and when. An
// answer that is refused is an error, and null is ErrHeld: in both cases the call waits on. An unknown call is
// not_found. An empty tenant means any.
func (h *holds) decideCall(ctx context.Context, tenant, id string, answer json.RawMessage, by string) (Parked, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	unavailable := func(err error) error {
		if errors.Is(err, nats.ErrMaxPayload) {
			return messages.NewFault(messages.TooLarge, "the answer of %d bytes does not fit into a NATS message of %d; the "+
				"call waits on", len(answer), h.nc.MaxPayload()).From("entry")
		}
		return messages.NewFault(messages.StoreUnavailable, "the answer cannot be stored: %v; the call waits on",
			err).From("entry")
	}
	if tenant == "" {
		p, err := h.heldCall(ctx, "", id)
		if f, ok := errors.AsType[*messages.Fault](err); err != nil && (!ok || f.Code != messages.NotFound) {
			return p, err
		}
		if p.Call == "" {
			return h.answered(ctx, "", id, nil)
		}
		tenant = p.Tenant // also of a call that is decided and has not gone on yet
	}
	var mine *Decided
	for {
		p, e, wire, err := h.read(ctx, messages.Key(tenant, id))
		if errors.Is(err, pipeline.ErrNotFound) {
			return h.answered(ctx, tenant, id, mine)
		}
		if err != nil {
			return p, messages.NewFault(messages.StoreUnavailable, "the held call cannot be read: %v", jet.Said(err)).From("entry")
		}
		if p.Delayed {
			return h.answered(ctx, tenant, id, mine)
		}
		if p.Decided != nil {
			return h.second(ctx, p, wire, mine)
		}
		if !time.Now().Before(p.Expires) {
			if err := h.settle(ctx, &p, e.Revision, wire, Decided{By: "nobody",
				Fault: expired(p)}); err != nil && !changed(err) {
				return p, unavailable(err)
			}
			continue
		}
		made := answer
		if h.check != nil {
			made, err = h.check(ctx, p, answer, by)
			if part, ok := errors.AsType[*Partly](err); ok {
				err = h.decidePart(ctx, &p, e.Revision, wire, part)
				switch {
				case err == nil:
					return p, fmt.Errorf("%s: %w", part.Open, pipeline.ErrHeld)
				case !changed(err) || ctx.Err() != nil:
					return p, unavailable(err)
				}
				continue
			}
			if err != nil {
				return p, messages.AsFault(err, p.Stage)
			}
		}
		if rawjson.IsNull(made) {
			return p, pipeline.ErrHeld
		}
		d := Decided{By: by, Answer: made}
		err = h.settle(ctx, &p, e.Revision, wire, d)
		if mine = p.Decided; err == nil {
			return p, nil
		}
		if !changed(err) {
			return p, unavailable(err)
		}
		if ctx.Err() != nil {
			return p, unavailable(ctx.Err())
		}
	}
}

// decidePart writes what was decided so far into the question, if nothing came between (ErrChanged).
func (h *holds) decidePart(ctx context.Context, p *Parked, rev uint64, wire []byte, part *Partly) error {
	if len(part.Question) == 0 {
		return nil // nothing was decided
	}
	p.Question = part.Question
	_, err := h.store.Put(ctx, messages.Key(p.Tenant, p.Call), parkedRecord(*p, wire), 0, pipeline.IfRevision(rev))
	return err
}

// changed reports whether a conditional write found something else, or may have happened without being confirmed.
func changed(err error) bool {
	return errors.Is(err, pipeline.ErrChanged) || errors.Is(err, jet.ErrNoAnswer)
}

// conflict says that somebody was first; nil if it was this very decision, whose confirmation was lost.
func conflict(p Parked, mine *Decided) error {
	d := p.Decided
	if mine != nil && mine.At.Equal(d.At) && mine.By == d.By {
		return nil
	}
	what := d.what()
	if what != "" {
		what = " (" + what + ")"
	}
	return messages.NewFault(messages.Conflict, "call %s was decided already, by %s at %s%s", p.Call,
		cmp.Or(d.By, "somebody"), d.At.Format(time.RFC3339), what).From("entry")
}

// answered answers for a call that does not wait, or no longer.
func (h *holds) answered(ctx context.Context, tenant, id string, mine *Decided) (Parked, error) {
	p, ok, err := h.decided(ctx, tenant, id)
	switch {
	case err != nil:
		return p, messages.NewFault(messages.StoreUnavailable, "the held call cannot be read: %v", jet.Said(err)).From("entry")
	case ok:
		return p, conflict(p, mine)
	}
	h.log.Warn("an answer came for a call that does not wait; it is ignored", "call", id, "tenant", tenant)
	return p, messages.NewFault(messages.NotFound, "no held call %s", id).From("entry")
}

// heldCalls returns the calls of a tenant that wait for an answer, the oldest first; all tenants' if it is empty.
func (h *holds) heldCalls(ctx context.Context, tenant string) ([]Parked, error) {
	prefix := ""
	if tenant != "" {
		prefix = messages.Token(tenant) + "."
	}
	keys, err := h.store.Keys(ctx, prefix)
	if err != nil {
		return nil, messages.NewFault(messages.StoreUnavailable, "the held calls cannot be listed: %v", jet.Said(err)).From("entry")
	}
	out := []Parked{}
	for _, k := range keys {
		if strings.Count(k, ".") != 1 {
			continue // a piece of a large body
		}
		if p, _, _, err := h.read(ctx, k); err == nil && p.Decided == nil && !p.Delayed {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b Parked) int { return a.Since.Compare(b.Since) })
	return out, nil
}

// heldCall returns one call that waits; of any tenant if that is empty. For one that is decided and has not gone on yet
// it returns both the call and not_found.
func (h *holds) heldCall(ctx context.Context, tenant, id string) (Parked, error) {
	none := messages.NewFault(messages.NotFound, "no held call %s", id).From("entry")
	key := messages.Key(tenant, id)
	if tenant == "" {
		of, err := h.tenantOf(ctx, id)
		if err != nil {
			return Parked{}, messages.NewFault(messages.StoreUnavailable, "the held call cannot be read: %v",
				jet.Said(err)).From("entry")
		}
		if of == "" {
			return Parked{}, none
		}
		key = messages.Key(of, id)
	}
	p, _, _, err := h.read(ctx, key)
	switch {
	case errors.Is(err, pipeline.ErrNotFound), err == nil && (p.Decided != nil || p.Delayed):
		return p, none
	case err != nil:
		return p, messages.NewFault(messages.StoreUnavailable, "the held call cannot be read: %v", jet.Said(err)).From("entry")
	}
	return p, nil
}

// tenantOf says whose a call is that has a record; empty if there is none. A list of the keys would not do: it may lack
// one that is written meanwhile.
func (h *holds) tenantOf(ctx context.Context, id string) (string, error) {
	heard := make(chan found, 1)
	subject := kvSubject(jet.ApprovalsBucket, "*."+messages.Token(id))
	h.records.last("KV_"+jet.ApprovalsBucket, subject, func(f found) { heard <- f })
	select {
	case f := <-heard:
		switch f.result {
		case protocol.OK:
			p, _, err := readParked(f.data)
			return p.Tenant, err
		case protocol.Missing:
			return "", nil
		default:
			return "", errors.New(f.why)
		}
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// second answers for a call that is decided and has not ended. If it was not resumed, that is done.
func (h *holds) second(ctx context.Context, p Parked, wire []byte, mine *Decided) (Parked, error) {
	if !p.Resumed {
		if err := h.resume(ctx, p, wire, false); err != nil {
			h.log.Warn("a decision was not carried out yet; that is done in a few seconds", "call", p.Call, "err", err)
		}
	}
	return p, conflict(p, mine)
}

// decided finds an answered question of the tenant, or of any if that is empty.
func (h *holds) decided(ctx context.Context, tenant, id string) (p Parked, ok bool, err error) {
	e, err := h.results.Get(ctx, decidedKey(id))
	if errors.Is(err, pipeline.ErrNotFound) {
		return p, false, nil
	}
	if err != nil {
		return p, false, err
	}
	ok = json.Unmarshal(e.Value, &p) == nil && p.Decided != nil && (tenant == "" || tenant == p.Tenant)
	return p, ok, nil
}
