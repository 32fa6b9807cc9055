package bus

import (
	"context"
	"errors"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// end ends a call. On the first delivery of its lease the accepting process takes the reply, hands it out and
// acknowledges. If nobody listens there, on a redelivery, for submitted calls and with an idempotency key, the sender
// stores the result first, so that the end is first-wins, sends it too, and acknowledges (design.md, "The end").
func (n *Node) end(h *held) {
	n.work.Go(func() {
		leave := n.marker.enter(h.lease, h.fresh, time.Time{})
		defer leave()
		h.c.Slip.At, h.c.Slip.Back = -1, true
		h.c.Fault = n.doubt(h.c, h.c.Fault)
		if h.c.Return.Record || h.lease.Delivered > 1 || h.c.Return.Inbox == "" {
			n.recordEnd(h)
			return
		}
		ctx, cancel := n.until(h.c)
		defer cancel()
		m, err := n.codec.encode(ctx, h.c)
		if err != nil {
			n.log.Error("the end of a call could not be written; its lease brings it back", "call", h.c.ID, "err", err)
			return
		}
		m.Subject = h.c.Return.Inbox
		m.Header[hdrLease] = []string{h.lease.Ack}
		m.Reply = n.inbox + ".h." + n.unheard.remember(func() { n.work.Go(func() { n.recordEnd(h) }) })
		if err := n.nc.PublishMsg(m); err != nil {
			n.log.Warn("a reply was not sent; the lease brings its call back", "call", h.c.ID, "err", err)
		}
	})
}

// recordEnd stores the end of the call, sends it to whoever may listen, and settles the lease. If another copy of the
// call has ended first, that end is the one that is sent.
func (n *Node) recordEnd(h *held) {
	leave := n.marker.enter(h.lease, h.fresh, time.Time{})
	defer leave()
	final, first, err := n.record(h.c)
	if err != nil {
		n.log.Error("the end of a call could not be stored; its lease brings it back", "call", h.c.ID, "err", err)
		return
	}
	n.sendRecorded(final, first)
	n.settleLater(h.lease)
}

// record makes the result record of a call. It returns the end that counts, and whether it is this one.
func (n *Node) record(c *messages.Call) (final *messages.Call, first bool, err error) {
	ctx, cancel := n.until(c)
	defer cancel()
	m, err := n.codec.encode(ctx, c)
	if err != nil {
		return nil, false, err
	}
	key := messages.Key(c.Tenant, c.ID)
	for wait := 100 * time.Millisecond; ; wait = min(wait*2, 2*time.Second) {
		_, err = n.results.Put(ctx, key, m.Data, 0, pipeline.IfAbsent())
		if err == nil {
			n.release(ctx, c)
			return c, true, nil
		}
		if errors.Is(err, pipeline.ErrExists) {
			final, err = n.recorded(ctx, c.Tenant, c.ID)
			if err == nil && final != nil {
				return final, false, nil
			}
		}
		if ctx.Err() != nil {
			return nil, false, errors.Join(err, ctx.Err())
		}
		pause(ctx, wait)
	}
}

// recorded reads the end of a call; nil if it has not ended.
func (n *Node) recorded(ctx context.Context, tenant, id string) (*messages.Call, error) {
	c, _, err := n.recordedAt(ctx, tenant, id)
	return c, err
}

// recordedAt also says when it was recorded.
func (n *Node) recordedAt(ctx context.Context, tenant, id string) (*messages.Call, time.Time, error) {
	e, err := n.results.Get(ctx, messages.Key(tenant, id))
	if errors.Is(err, pipeline.ErrNotFound) {
		return nil, time.Time{}, nil
	}
	if err != nil {
		return nil, time.Time{}, err
	}
	c, err := n.codec.decode(e.Value)
	if err != nil {
		return nil, time.Time{}, err
	}
	if c.Tenant != tenant || c.ID != id {
		return nil, time.Time{}, messages.NewFault(messages.Internal, "the result record of call %s is another call's", id)
	}
	return c, e.Created, n.codec.fill(ctx, c)
}

// release frees the idempotency key of a call that ended in a fault which is retryable as it is, or of a tool call that ended with a result which only
// stands in for one: the caller may try again, and must not be given the same for a day.
func (n *Node) release(ctx context.Context, c *messages.Call) {
	_, degraded := c.Notes[messages.NoteDegraded]
	degraded = degraded && c.Kind == messages.Tool // a standby model's answer is an answer
	if c.IdempotencyKey == "" || !degraded && (c.Fault == nil || !c.Fault.Retryable()) {
		return
	}
	if err := n.idempotency.Delete(ctx, idempotencyKey(c)); err != nil {
		n.log.Warn("the idempotency key of a failed call was not freed", "call", c.ID, "err", err)
	}
}

// sendRecorded sends an end that is stored already. Losing it loses nothing: whoever waits reads the record.
func (n *Node) sendRecorded(c *messages.Call, first bool) {
	if c.Return.Inbox == "" {
		if first {
			n.opts.Manager.Fold(c.Kind, c.Slip)
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	m, err := n.codec.encode(ctx, c)
	if err != nil {
		return
	}
	m.Subject = c.Return.Inbox
	m.Header[hdrRecorded] = []string{"1"}
	m.Reply = n.inbox + ".h." + n.unheard.remember(func() {
		// The accepting process is gone: its counters with it, and a plain NATS caller still waits.
		if first {
			n.opts.Manager.Fold(c.Kind, c.Slip)
		}
		if c.Return.Caller != "" {
			n.answerCaller(c)
		}
	})
	if err := n.nc.PublishMsg(m); err != nil {
		n.log.Debug("a recorded end was not sent", "call", c.ID, "err", err)
	}
}

// answerCaller is the courtesy to a plain NATS caller whose accepting process died.
func (n *Node) answerCaller(c *messages.Call) {
	if !n.inboxAllowed(c.Return.Caller) {
		return
	}
	if c.Stream && c.Flag(messages.NoteStreamEmitted) && c.Fault == nil {
		c.Fail(messages.NewFault(messages.StreamCut, "the process that streamed the reply died; call %s has the whole reply", c.ID).From("bus"))
	}
	n.opts.Callers.Answer(c)
}
