package bus

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// receipts tells those who hand a call in what came of it.
type receipts struct {
	mu   sync.Mutex
	open map[string]chan protocol.Effect
}

func (r *receipts) expect(call string) <-chan protocol.Effect {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := make(chan protocol.Effect, 1)
	r.open[call] = c
	return c
}

// carry takes a Receipt. There is one for a call.
func (r *receipts) carry(e protocol.Effect) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.open[e.Call]; c != nil {
		delete(r.open, e.Call)
		c <- e
	}
}

// accept stores a call, or attaches to the one that has its idempotency key. "Not accepted" is said only where it is
// proved.
func (d *durables) accept(ctx context.Context, c *messages.Call, r pipeline.Request) (pipeline.Pending, error) {
	key := ""
	if c.IdempotencyKey != "" {
		key = keyOf(c)
	}
	return d.enter(ctx, c, key, !r.Submit)
}

// enter is accept for a call whose idempotency key, if it is not empty, is recorded at key.
func (d *durables) enter(ctx context.Context, c *messages.Call, key string, waits bool) (pipeline.Pending, error) {
	c.Return.Inbox = ""
	if waits {
		c.Return.Inbox = d.ends.inbox + messages.Token(c.ID)
	}
	c.Note(messages.NoteStored, true)
	done, err := d.lay(ctx, c)
	if err != nil {
		return nil, err
	}
	p := d.newWaiting(c, waits)
	receipt := d.receipts.expect(c.ID)
	d.decide(func(o *protocol.Owner, now time.Duration, out []protocol.Effect) []protocol.Effect {
		return o.Accepts.Accept(now, protocol.Request{Call: c.ID, Key: key, Print: printOf(c), Until: from(now, c.Deadline),
			Waits: waits}, out)
	})
	select {
	case e := <-receipt:
		done()
		return d.accepted(ctx, c, p, e)
	case <-ctx.Done():
		p.Leave()
		go func() { <-receipt; done() }() // it may be stored yet
		return nil, ctx.Err()
	}
}

// lay encodes the call and lays it ready for the queue.
func (d *durables) lay(ctx context.Context, c *messages.Call) (done func(), err error) {
	limit, cancel := context.WithDeadline(ctx, earlier(time.Now().Add(objectTime), c.Deadline))
	defer cancel()
	wire, err := d.codec.encode(limit, c.Clone())
	if err != nil {
		return nil, notAccepted(messages.StoreUnavailable, err.Error())
	}
	return d.queue.ready(callMessage(d.subjectOf(c), c, wire)), nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func notAccepted(code messages.Code, why string) *messages.Fault {
	return messages.NewFault(code, "the call could not be stored: %s; it was not accepted", why).From("entry")
}

// accepted says what came of an acceptance.
func (d *durables) accepted(ctx context.Context, c *messages.Call, p *pending,
	e protocol.Effect) (pipeline.Pending, error) {
	if e.Why == protocol.Accepted {
		d.progress(c)
		if c.Return.Inbox == "" {
			d.ends.unwait(c.ID, p)
			return submitted{p, d, c.Tenant}, nil
		}
		d.ends.await(c.ID, false)
		return p, nil
	}
	d.ends.unwait(c.ID, p)
	if e.Why == protocol.Attached {
		return d.attach(ctx, c, e.Record.Call)
	}
	switch e.Why {
	case protocol.Refused:
		why := d.queue.why(c.ID)
		if strings.Contains(why, "maximum") {
			return nil, notAccepted(messages.Overloaded, "the work queue SHALLOT_CALLS is full ("+why+")")
		}
		return nil, notAccepted(messages.StoreUnavailable, why)
	case protocol.Mismatch:
		return nil, d.keys.mismatch(ctx, c)
	case protocol.AskAgain:
		return nil, messages.NewFault(messages.StoreUnavailable, "the NATS server did not say whether call %s is stored; "+
			"ask again with the same idempotency key: the call then runs once", c.ID).From("entry")
	}
	return nil, messages.NewFault(messages.OutcomeUnknown, "the NATS server did not say whether call %s is stored, "+
		"so it may run; ask for its result before you send it again", c.ID).From("entry")
}

// progress tells the owner of a call's parent that the parent has come to a part that nobody has begun before: the key
// of a part is the same in each attempt.
func (d *durables) progress(c *messages.Call) {
	if c.IdempotencyKey == "" || c.Parent == "" || c.Parent == noParent {
		return
	}
	d.decide(func(o *protocol.Owner, _ time.Duration, out []protocol.Effect) []protocol.Effect {
		return o.Deliveries.Progress(c.Parent, out)
	})
}

// submitted is an accepted call for whose end nobody waits yet. It is looked for only when somebody does.
type submitted struct {
	*pending
	d      *durables
	tenant string
}

// Wait implements pipeline.Pending.
func (s submitted) Wait(ctx context.Context, _ func(pipeline.Delta)) (*messages.Call, error) {
	c, err := s.d.result(ctx, s.tenant, s.id)
	if c == nil && err == nil {
		err = ctx.Err()
	}
	return c, err
}

// attach waits for the call that has the key. While it waits, the call as it was asked here is ready to be put into the
// queue: whoever put it there first may have died before it arrived.
func (d *durables) attach(ctx context.Context, c *messages.Call, call string) (pipeline.Pending, error) {
	request := c.ID
	c.ID = call
	if c.Return.Inbox != "" {
		c.Return.Inbox = d.ends.inbox + messages.Token(c.ID)
	}
	done, err := d.lay(ctx, c)
	if err != nil {
		return nil, err
	}
	p := d.newWaiting(c, c.Return.Inbox != "")
	until, left := context.WithDeadline(d.loop, c.Deadline.Add(overdueAfter))
	p.leave = func() {
		left()
		d.ends.unwait(call, p)
		d.decide(func(o *protocol.Owner, _ time.Duration, out []protocol.Effect) []protocol.Effect {
			o.Accepts.Forget(request)
			return out
		})
	}
	d.loops.Go(func() { // while the end is not known and somebody wants it
		defer done()
		defer left()
		d.follow(until, c, p)
	})
	d.ends.await(call, true)
	return p, nil
}

// newWaiting is who waits for a stored call here.
func (d *durables) newWaiting(c *messages.Call, waits bool) *pending {
	p := newPending(c.ID)
	call, kept := c.ID, !waits || c.IdempotencyKey != "" || c.Return.Record
	p.leave = func() {
		d.ends.unwait(call, p)
		if !kept {
			d.cancel(call)
		}
	}
	d.ends.wait(call, waiter{pending: p, tenant: c.Tenant, until: c.Deadline.Add(overdueAfter)})
	return p
}

// overdueAfter is how long an owner may take to end a call whose time is over, before others do.
const overdueAfter = 2 * time.Second

// overdue ends the wait for a call whose time is over and of which nothing was heard. Its end is looked for, and made
// if nobody makes one.
func (d *durables) overdue(call string, w waiter) {
	ctx, cancel := context.WithTimeout(d.loop, objectTime)
	defer cancel()
	c, _, err := d.peek(ctx, w.tenant, call)
	switch {
	case errors.Is(err, pipeline.ErrHeld):
		w.hold()
	case c != nil:
		w.end(c)
	case err == nil: // it goes on: it was held, and has a new time
		w.until = time.Now().Add(overdueAfter)
		d.ends.wait(call, w)
		return
	default:
		end := &messages.Call{ID: call, Kind: messages.Model, Tenant: w.tenant}
		end.Slip.At, end.Slip.Back = -1, true
		end.Fail(messages.NewFault(messages.OutcomeUnknown, "the call's time is over and its end cannot be read: %v; "+
			"ask for the result of call %s later", err, call).From("entry"))
		w.end(end)
	}
	d.ends.forget(call)
}

// follow watches the result record of a call that others have accepted, until its end is known here or ctx is over.
func (d *durables) follow(ctx context.Context, c *messages.Call, p *pending) {
	w, err := d.results.Watch(ctx, messages.Key(c.Tenant, c.ID))
	if err != nil {
		select { // the record is read every few seconds all the same
		case <-p.done:
		case <-ctx.Done():
		}
		return
	}
	defer func() { _ = w.Stop() }()
	for {
		select {
		case <-p.done:
			return
		case <-ctx.Done():
			return
		case e := <-w.Updates():
			if e != nil {
				d.ends.await(c.ID, true)
			}
		}
	}
}
