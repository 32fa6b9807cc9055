package bus

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// This file runs dead calls again. A redriven call has a new id, because the end of the old one is told and stored.
// What forbids a second run of its work is recorded under the old id, so nothing is redriven before that is known.

// hdrDeadBegun says of a dead letter whether work of its call that must not run twice had begun: yes or no.
const hdrDeadBegun = "Shallot-Dead-Begun"

// provable is how long after the time of a call its records of begun work tell the truth: they may go soon after.
const provable = begunMargin / 2

// settle notes in a copy of the message of a call that is given up whether its work had begun; from then on none does.
// What cannot be told is asked again at a redrive.
func (d *deadLetters) settle(m *nats.Msg, then func(m *nats.Msg)) {
	c := fromHeaders(m)
	if c.Kind != messages.Tool || messages.Token(c.Tenant) != m.Header.Get(hdrTenant) { // a hash, if it is long
		then(m)
		return
	}
	d.tasks.Go(func() {
		out := &nats.Msg{Subject: m.Subject, Reply: m.Reply, Data: m.Data, Sub: m.Sub, Header: nats.Header{}}
		for k, v := range m.Header {
			out.Header[k] = v
		}
		ctx, cancel := context.WithTimeout(context.Background(), 3*storeTime)
		defer cancel()
		if ran, err := d.begun.forbid(ctx, c, d.opts.Name); err == nil {
			out.Header[hdrDeadBegun] = []string{map[bool]string{true: "yes", false: "no"}[ran]}
		}
		then(out)
	})
}

// forbid makes sure that no work of the call that must not run twice begins from now on, and reports whether some has.
func (b *begun) forbid(ctx context.Context, c *messages.Call, by string) (ran bool, err error) {
	for num := uint64(1); ; num++ {
		e := protocol.Effect{Kind: protocol.PutBegun, Call: c.ID, N: num, State: protocol.Void, Last: true, By: by,
			Until: b.clock.at(c.Deadline)}
		if st, _ := b.do(ctx, c.Tenant, e, nil); st.Result == protocol.OK {
			return false, nil
		}
		st, _ := b.do(ctx, c.Tenant, protocol.Effect{Kind: protocol.GetBegun, Call: c.ID, N: num}, nil)
		switch {
		case st.Result != protocol.OK:
			return false, errors.New("the records of begun work cannot be read")
		case st.Record.State != protocol.Void && st.Record.State != protocol.NotRun:
			return true, nil
		case st.Record.Last:
			return false, nil
		}
	}
}

// again runs the call of a dead letter again and returns its new id.
func (d *deadLetters) again(ctx context.Context, l pipeline.DeadLetter, data []byte) (string, error) {
	if l.Call == "" || !l.Kind.Valid() {
		return "", messages.NewFault(messages.Conflict, "dead letter %d is not a stored call, so it can be deleted only",
			l.Sequence).
			From("control")
	}
	c, err := d.durable.codec.open(ctx, data)
	if err != nil {
		return "", messages.NewFault(messages.Conflict, "the call of dead letter %d cannot be read: %v", l.Sequence,
			err).From("control")
	}
	if c.ID != l.Call || c.Kind != l.Kind || c.Tenant != l.Tenant && messages.Token(c.Tenant) != l.Tenant {
		return "", messages.NewFault(messages.Conflict, "dead letter %d holds another call than its headers say",
			l.Sequence).From("control")
	}
	if err := d.mayRedrive(ctx, c, l); err != nil {
		return "", err
	}
	d.redrives.Lock() // of two at once here, one would wait for the other's receipt
	defer d.redrives.Unlock()
	old := c.Clone()
	if err := d.renew(ctx, c); err != nil {
		return "", err
	}
	if _, err := d.durable.enter(ctx, c, "", false); err != nil {
		return "", err
	}
	if err := d.durable.keys.move(ctx, old, c.ID); err != nil {
		d.opts.Log.WarnContext(ctx, "the idempotency key of a redriven call still names the old one", "call", c.ID,
			"old", old.ID, "err", err)
	}
	return c.ID, nil
}

// mayRedrive refuses calls whose work must not run twice, unless it is proved that none has begun.
func (d *deadLetters) mayRedrive(ctx context.Context, c *messages.Call, l pipeline.DeadLetter) error {
	refused := func(format string, args ...any) error {
		return messages.NewFault(messages.Conflict, "call %s is not redriven: "+format,
			append([]any{c.ID}, args...)...).From("control")
	}
	switch {
	case c.Kind == messages.Agent:
		return refused("what an agent has done on the way is recorded for this run; start a new one")
	case !d.opts.Once(c) || l.Begun == "no":
		return nil
	case l.Begun == "" && time.Since(c.Deadline) > provable:
		return refused("tool %s must not run twice, and whether it has run is not known any more", c.Tool)
	}
	ran, err := d.begun.forbid(ctx, c, d.opts.Name)
	switch {
	case err != nil:
		return messages.NewFault(messages.StoreUnavailable, "%v; try again", err).From("control")
	case ran:
		return refused("tool %s had begun and must not run twice; see what it did, then delete the letter", c.Tool)
	}
	return nil
}

// renew makes the call of a letter a new one with as much time as the old one had. Its id is recorded first, so that
// whoever redrives the letter again, because the first attempt was not confirmed, redrives the same call.
func (d *deadLetters) renew(ctx context.Context, c *messages.Call) error {
	key := messages.Key(c.Tenant, c.ID, "redriven")
	store := d.durable.redriven
	id := messages.NewID()
	_, err := store.Put(ctx, key, rawjson.Encode(id), 0, pipeline.IfAbsent())
	if err != nil {
		e, getErr := store.Get(ctx, key)
		first, ok := rawjson.IsString(e.Value)
		if getErr != nil || !ok {
			return messages.NewFault(messages.StoreUnavailable, "the redrive cannot be recorded: %v; nothing was redriven",
				err).From("control")
		}
		id = first
	}
	left := max(c.Deadline.Sub(c.Accepted), time.Second)
	c.ID, c.Generation, c.Accepted = id, 0, time.Now().UTC()
	c.Deadline = c.Accepted.Add(left)
	c.Return = messages.Return{Record: true}
	return nil
}

// move lets the key of a call mean another one, unless it means another one already.
func (k *keys) move(ctx context.Context, c *messages.Call, id string) error {
	if c.IdempotencyKey == "" {
		return nil
	}
	e, err := k.store.Get(ctx, keyOf(c))
	if errors.Is(err, pipeline.ErrNotFound) {
		return nil
	}
	var rec keyRecord
	if err == nil {
		err = json.Unmarshal(e.Value, &rec)
	}
	if err != nil || rec.Call != c.ID {
		return err
	}
	rec.Call = id
	_, err = k.store.Put(ctx, keyOf(c), rawjson.Encode(rec), 0, pipeline.IfRevision(e.Revision))
	return err
}
