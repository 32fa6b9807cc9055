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

// cancelTime is how long the end of a cancelled call is waited for.
const cancelTime = 3 * time.Second

// CancelCall cancels a call of a tenant, wherever it is, and says what came of it; an empty tenant is any. It may be
// called again, with the same answer. The error is a *messages.Fault: not_found for a call that nobody knows, also
// another tenant's.
func (n *Node) CancelCall(ctx context.Context, tenant, id string) (pipeline.Cancellation, error) {
	return n.durable.cancelCall(ctx, tenant, id)
}

func (d *durables) cancelCall(ctx context.Context, tenant, id string) (out pipeline.Cancellation, err error) {
	out = pipeline.Cancellation{Call: id, Status: pipeline.StatusCancelled}
	if d.cancelBound(tenant, id) {
		return out, nil
	}
	of := tenant
	if of == "" {
		if of, err = d.tenantOf(ctx, id); err != nil {
			return out, err
		}
	}
	c, _, err := d.peek(ctx, of, id)
	f, _ := errors.AsType[*messages.Fault](err)
	switch {
	case c != nil:
		return endedAs(c), nil
	case f != nil && f.Code == messages.NotFound: // a call that is not stored runs in one process alone
		if d.who.cancel(ctx, tenant, id) {
			return out, nil
		}
		return out, messages.NewFault(messages.NotFound, "no call %s", id).From("entry")
	case err != nil && !errors.Is(err, pipeline.ErrHeld):
		return out, err
	}
	d.cancel(id)
	ctx, stop := context.WithTimeout(ctx, cancelTime)
	defer stop()
	if c, err := d.settled(ctx, of, id); c != nil || err != nil {
		return endedAs(c), err
	}
	out.Status = pipeline.StatusCancelling
	return out, nil
}

// settled waits for the end of a call that was cancelled; nil if it has not ended when ctx is over. A held call goes on
// to its end.
func (d *durables) settled(ctx context.Context, tenant, id string) (*messages.Call, error) {
	for {
		c, err := d.result(ctx, tenant, id)
		if !errors.Is(err, pipeline.ErrHeld) {
			return c, err
		}
		if wait(ctx, lookEvery) != nil {
			return nil, nil
		}
	}
}

func endedAs(c *messages.Call) pipeline.Cancellation {
	switch {
	case c == nil:
		return pipeline.Cancellation{}
	case c.Fault == nil:
		return pipeline.Cancellation{Call: c.ID, Status: pipeline.StatusEnded, Outcome: "completed"}
	case c.Fault.Code == messages.Cancelled:
		return pipeline.Cancellation{Call: c.ID, Status: pipeline.StatusCancelled}
	}
	return pipeline.Cancellation{Call: c.ID, Status: pipeline.StatusEnded, Outcome: string(c.Fault.Code)}
}

// tenantOf finds out whose a stored call is: of those that ended, wait or run, or are held. It is empty for one that
// nobody knows.
func (d *durables) tenantOf(ctx context.Context, id string) (string, error) {
	whose := "*." + messages.Token(id)
	for _, at := range []struct {
		stream, subject string
		tenant          func(f found) string
	}{
		{jet.CallsStream, d.subj.QueuedOfAny(id), func(f found) string {
			return fromHeaders(&nats.Msg{Header: f.header}).Tenant
		}},
		{"KV_" + jet.ApprovalsBucket, kvSubject(jet.ApprovalsBucket, whose), func(f found) string {
			p, _, _ := readParked(f.data)
			return p.Tenant
		}},
		{"KV_" + jet.ResultsBucket, kvSubject(jet.ResultsBucket, whose), func(f found) string {
			c, err := messages.Unmarshal(f.data)
			if err != nil {
				return ""
			}
			return c.Tenant
		}},
	} {
		f, err := d.look(ctx, at.stream, at.subject)
		if err != nil {
			return "", err
		}
		if f.result == protocol.OK {
			return at.tenant(f), nil
		}
	}
	return "", nil
}

// cancelBound cancels a call that runs here and is not stored; false if there is none of that id and tenant, nor was
// one that was cancelled.
func (d *durables) cancelBound(tenant, id string) bool {
	o := d.calls.get(id)
	if o == nil || o.durable || tenant != "" && o.tenant != tenant {
		return d.unwanted.bound(tenant, id)
	}
	d.unwanted.addBound(id, o.tenant, time.Now())
	for _, o := range d.calls.of(id) {
		o.cancel(pipeline.ErrCancelled)
	}
	return true
}

// What owners say to each other of a call that is to be cancelled and is not stored.
const (
	cancelAsk = "ask"
	cancelYes = "yes"
	cancelNo  = "no"
)

// cancel has the owner of a call that is not stored cancel it, and reports whether one did. The message goes to owners
// only: programs of tools and stages hear it from them.
func (w *who) cancel(ctx context.Context, tenant, id string) bool {
	others := w.owners() - 1
	answers := make(chan bool, max(others, 1))
	w.mu.Lock()
	w.last++
	n := w.last
	w.cancels[n] = answers
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.cancels, n)
	}()
	ctx, stop := context.WithTimeout(ctx, unanswered)
	defer stop()
	w.send(w.subject, owns{Call: id, Owner: w.own, Seq: n, Reply: w.reply, Cancel: cancelAsk, Tenant: tenant})
	for range others {
		select {
		case yes := <-answers:
			if yes {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
	return false
}

// cancelled takes the answer of an owner.
func (w *who) cancelled(a owns) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.cancels[a.Seq] <- a.Cancel == cancelYes:
	default: // nobody waits for it
	}
}
