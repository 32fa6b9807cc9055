package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// Answer is Decide without a name.
func (n *Node) Answer(ctx context.Context, tenant, id string, answer json.RawMessage) error {
	_, err := n.Decide(ctx, tenant, id, answer, "")
	return err
}

// Decide gives a parked call its answer: it goes on with the phase that held it, which finds the answer in the note
// hold.answer. The first answer wins; a later one is the fault conflict, which says whose the first was and when. An
// answer that is refused is an error, and null is ErrHeld: in both cases the call waits on. An unknown call is not_found.
// An empty tenant means any.
func (n *Node) Decide(ctx context.Context, tenant, id string, answer json.RawMessage, by string) (Parked, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	unavailable := func(err error) error {
		if errors.Is(err, nats.ErrMaxPayload) {
			return messages.NewFault(messages.TooLarge, "the answer of %d bytes does not fit into a NATS message of %d; the call waits on", len(answer), n.nc.MaxPayload()).From("entry")
		}
		return messages.NewFault(messages.StoreUnavailable, "the answer cannot be stored: %v; the call waits on", err).From("entry")
	}
	if tenant == "" {
		p, err := n.HeldCall(ctx, "", id)
		if f, ok := errors.AsType[*messages.Fault](err); err != nil && (!ok || f.Code != messages.NotFound) {
			return p, err
		}
		if p.Call == "" {
			return n.answered(ctx, "", id, nil)
		}
		tenant = p.Tenant // also of a call that is decided and has not gone on yet
	}
	var mine *Decided
	for {
		p, e, wire, err := n.parked(ctx, messages.Key(tenant, id))
		if errors.Is(err, pipeline.ErrNotFound) {
			return n.answered(ctx, tenant, id, mine)
		}
		if err != nil {
			return p, messages.NewFault(messages.StoreUnavailable, "the held call cannot be read: %v", err).From("entry")
		}
		if p.Decided != nil {
			if err := n.goOn(ctx, p, wire); err != nil {
				n.log.Warn("a decision was not carried out yet; that is done in a few seconds", "call", id, "err", err)
			}
			return p, conflict(p, mine)
		}
		if !time.Now().Before(p.Expires) {
			if err := n.decide(ctx, &p, e, wire, Decided{By: "nobody", Fault: expired(p)}); err != nil && !changed(err) {
				return p, unavailable(err)
			}
			continue
		}
		made := answer
		if n.opts.Decide != nil {
			if made, err = n.opts.Decide(ctx, p, answer, by); err != nil {
				return p, messages.AsFault(err, p.Stage)
			}
		}
		if rawjson.IsNull(made) {
			return p, pipeline.ErrHeld
		}
		d := Decided{By: by, Answer: made}
		err = n.decide(ctx, &p, e, wire, d)
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
	return messages.NewFault(messages.Conflict, "call %s was decided already, by %s at %s%s", p.Call, cmp.Or(d.By, "somebody"), d.At.Format(time.RFC3339), what).From("entry")
}

// answered answers for a call that does not wait, or no longer.
func (n *Node) answered(ctx context.Context, tenant, id string, mine *Decided) (Parked, error) {
	p, ok, err := n.decided(ctx, tenant, id)
	switch {
	case err != nil:
		return p, messages.NewFault(messages.StoreUnavailable, "the held call cannot be read: %v", err).From("entry")
	case ok:
		return p, conflict(p, mine)
	}
	n.log.Warn("an answer came for a call that does not wait; it is ignored", "call", id, "tenant", tenant)
	return p, messages.NewFault(messages.NotFound, "no held call %s", id).From("entry")
}

// HeldCalls returns the calls of a tenant that wait for an answer, the oldest first; all tenants' if it is empty.
func (n *Node) HeldCalls(ctx context.Context, tenant string) ([]Parked, error) {
	prefix := ""
	if tenant != "" {
		prefix = messages.Token(tenant) + "."
	}
	keys, err := n.approvals.Keys(ctx, prefix)
	if err != nil {
		return nil, messages.NewFault(messages.StoreUnavailable, "the held calls cannot be listed: %v", err).From("entry")
	}
	out := []Parked{}
	for _, k := range keys {
		if strings.Count(k, ".") != 1 {
			continue // a piece of a large body
		}
		if p, _, _, err := n.parked(ctx, k); err == nil && p.Decided == nil {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b Parked) int { return a.Since.Compare(b.Since) })
	return out, nil
}

// HeldCall returns one call that waits; of any tenant if that is empty. For one that is decided and has not gone on yet
// it returns both the call and not_found.
func (n *Node) HeldCall(ctx context.Context, tenant, id string) (Parked, error) {
	none := messages.NewFault(messages.NotFound, "no held call %s", id).From("entry")
	key := messages.Key(tenant, id)
	if tenant == "" {
		keys, err := n.approvals.Keys(ctx, "")
		if err != nil {
			return Parked{}, messages.NewFault(messages.StoreUnavailable, "the held calls cannot be listed: %v", err).From("entry")
		}
		i := slices.IndexFunc(keys, func(k string) bool { return strings.HasSuffix(k, "."+messages.Token(id)) && strings.Count(k, ".") == 1 })
		if i < 0 {
			return Parked{}, none
		}
		key = keys[i]
	}
	p, _, _, err := n.parked(ctx, key)
	switch {
	case errors.Is(err, pipeline.ErrNotFound), err == nil && p.Decided != nil:
		return p, none
	case err != nil:
		return p, messages.NewFault(messages.StoreUnavailable, "the held call cannot be read: %v", err).From("entry")
	}
	return p, nil
}

// HeldRows is HeldCalls with each call as JSON.
func (n *Node) HeldRows(ctx context.Context, tenant string) ([]json.RawMessage, error) {
	list, err := n.HeldCalls(ctx, tenant)
	out := make([]json.RawMessage, len(list))
	for i, p := range list {
		out[i] = rawjson.Encode(p)
	}
	return out, err
}

// DecideInOneWord is Decide that returns what was decided, in one word if the answer has one.
func (n *Node) DecideInOneWord(ctx context.Context, tenant, id string, answer json.RawMessage, by string) (string, error) {
	p, err := n.Decide(ctx, tenant, id, answer, by)
	if err != nil || p.Decided == nil {
		return "", err
	}
	return p.Decided.what(), nil
}
