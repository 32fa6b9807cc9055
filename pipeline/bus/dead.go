package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// Headers of a dead letter.
const (
	hdrReason     = "Shallot-Dead-Reason"
	hdrDeadFrom   = "Shallot-Dead-Subject"
	hdrDeliveries = "Shallot-Dead-Deliveries"
)

// garbage keeps a message that nobody can read.
func (d *deadLetters) garbage(m *nats.Msg, why string) {
	d.opts.Log.Error("a message cannot be read; it is kept as a dead letter", "subject", m.Subject, "err", why)
	d.tasks.Go(func() { d.bury(m.Subject, m.Data, why) })
}

// Unread keeps a message of a caller that was refused and gave nobody to tell so.
func (n *Node) Unread(m *nats.Msg, why string) { n.garbage(m, why) }

// bury stores a dead letter.
func (d *deadLetters) bury(from string, data []byte, why string) {
	d.stats.dead.Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	m := &nats.Msg{Subject: d.subj.Dead("hop", from), Data: data, Header: nats.Header{
		hdrReason: {headerValue(why)}, hdrDeadFrom: {from}, hdrMsgID: {"dead." + secret(8)}}}
	for ctx.Err() == nil {
		_, err := d.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(1))
		if err == nil {
			return
		}
		if errors.Is(err, nats.ErrMaxPayload) {
			m.Data = nil // its subject and the reason still say what it was
			continue
		}
		_ = wait(ctx, time.Second)
	}
	d.opts.Log.Error("a dead letter was not stored", "from", from, "why", why)
}

// doubt asks whether a fault says the truth about the call's target.
func (n *Node) doubt(ctx context.Context, c *messages.Call, f *messages.Fault) *messages.Fault {
	if f == nil || n.opts.Doubt == nil {
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	return n.opts.Doubt(ctx, c, f)
}

// holdCall parks a call that a stage held.
func (n *Node) holdCall(o *owned, next pipeline.Next) (outcome, error) {
	return n.durable.hold(o, next)
}

// doubt is the fault that is true of the call.
func (d *durables) doubt(ctx context.Context, c *messages.Call, f *messages.Fault) *messages.Fault {
	if d.opts.doubt == nil {
		return f
	}
	return d.opts.doubt(ctx, c, f)
}
