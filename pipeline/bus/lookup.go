package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// lookEvery is how often a result is looked for that somebody waits for by its call's id.
const lookEvery = 250 * time.Millisecond

// result waits for the end of a call.
func (d *durables) result(ctx context.Context, tenant, id string) (*messages.Call, error) {
	for {
		c, _, err := d.peek(ctx, tenant, id)
		if ctx.Err() != nil && c == nil {
			return nil, nil
		}
		if f, ok := errors.AsType[*messages.Fault](err); c != nil || err != nil &&
			(!ok || f.Code != messages.StoreUnavailable) {
			return c, err
		}
		_ = wait(ctx, lookEvery)
	}
}

// peek looks where a call may be: among the ends, in the queue, among the held. "Not found" is said only when it was in
// none of them, twice: a call that ends or is resumed goes from one place to another meanwhile.
func (d *durables) peek(ctx context.Context, tenant, id string) (*messages.Call, time.Time, error) {
	for range 2 {
		c, at, err := d.ended(ctx, tenant, id)
		if c != nil || err != nil {
			return c, at, err
		}
		waiting, err := d.look(ctx, jet.CallsStream, d.subj.QueuedCall(tenant, id))
		if err != nil {
			return nil, time.Time{}, err
		}
		queued := waiting.result == protocol.OK
		if queued {
			if c, at, err = d.expire(ctx, waiting); c != nil || err != nil {
				return c, at, err
			}
		}
		p, err := d.holds.find(ctx, tenant, id) // a call that is parked stays in the queue for a moment
		switch {
		case err == nil && p.Decided == nil && !p.Delayed:
			return nil, time.Time{}, pipeline.ErrHeld
		case err == nil: // it goes on
			return nil, time.Time{}, nil
		case !errors.Is(err, pipeline.ErrNotFound):
			return nil, time.Time{}, unread(err)
		case queued:
			return nil, time.Time{}, nil
		}
	}
	if o := d.calls.get(id); o != nil && o.tenant == tenant { // bound, and not yet parked
		return nil, time.Time{}, nil
	}
	return nil, time.Time{}, messages.NewFault(messages.NotFound,
		"no call %s; results are kept %s after a call's end, for submitted calls and calls with an idempotency key", id,
		d.cfg.ResultTTL).From("entry")
}

func unread(why error) *messages.Fault {
	return messages.NewFault(messages.StoreUnavailable, "whether the call has ended cannot be read: %v", why).From("entry")
}

// look reads the last message of a subject from its leader. The error says that it could not be read.
func (d *durables) look(ctx context.Context, stream, subject string) (found, error) {
	got := make(chan found, 1)
	d.queue.records.last(stream, subject, func(f found) { got <- f })
	select {
	case f := <-got:
		if f.result == protocol.Unclear {
			return f, unread(errors.New(f.why))
		}
		return f, nil
	case <-ctx.Done():
		return found{}, unread(ctx.Err())
	}
}

// ended reads the end of a call and when it was recorded; nil if it has not ended.
func (d *durables) ended(ctx context.Context, tenant, id string) (*messages.Call, time.Time, error) {
	f, err := d.look(ctx, "KV_"+jet.ResultsBucket, kvSubject(jet.ResultsBucket, messages.Key(tenant, id)))
	if err != nil || f.result != protocol.OK {
		return nil, time.Time{}, err
	}
	c, err := d.codec.open(ctx, f.data)
	if err != nil {
		return nil, time.Time{}, messages.AsFault(err, "entry")
	}
	if c.Tenant != tenant || c.ID != id {
		return nil, time.Time{}, messages.NewFault(messages.Internal, "the result record of call %s is another call's", id)
	}
	return c, f.created, nil
}

// expire ends a call that lies in the queue although its time is over: no owner has seen it, or all have died.
func (d *durables) expire(ctx context.Context, f found) (*messages.Call, time.Time, error) {
	c, err := messages.Unmarshal(f.data)
	if err != nil {
		c = fromHeaders(&nats.Msg{Header: f.header})
	}
	if !c.Past(time.Now().Add(-overdueAfter)) {
		return nil, time.Time{}, nil
	}
	fault := messages.NewFault(messages.DeadlineExceeded, "the call's time was over; it was last seen in the entry "+
		"queue").From("deadline")
	began, err := d.opts.mayHaveRun(ctx, c.Tenant, c.ID) // no work begins after the deadline
	if err != nil {
		return nil, time.Time{}, unread(err)
	}
	if began {
		fault = unknownFault(c)
	}
	c.Slip.At, c.Slip.Back = -1, true
	c.Fail(d.doubt(ctx, c, fault))
	wire, err := d.codec.encode(ctx, c)
	if err != nil {
		return nil, time.Time{}, messages.AsFault(err, "entry")
	}
	_, err = d.results.Put(ctx, messages.Key(c.Tenant, c.ID), wire, 0, pipeline.IfAbsent())
	switch {
	case err == nil:
		d.opts.fold(c.Kind, c.Slip)
		d.keys.release(c, func() {})
		return c, time.Now(), nil
	case errors.Is(err, pipeline.ErrExists), errors.Is(err, jet.ErrNoAnswer):
		return d.ended(ctx, c.Tenant, c.ID)
	}
	return nil, time.Time{}, unread(err)
}

// Results is where the ends of calls are kept; see [Node.ResultTTL].
func (n *Node) Results() pipeline.Store { return n.durable.results }

// ResultTTL is how long a record in Results lasts after it was last written.
func (n *Node) ResultTTL() time.Duration { return n.cfg.ResultTTL }
