package bus

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// Headers of questions and answers. Line 1 is the truth; these are for routing and for people.
const (
	hdrWire     = "Shallot-Wire"
	hdrCall     = "Shallot-Call"
	hdrAlone    = "Shallot-Alone"
	hdrTenant   = "Shallot-Tenant" // as one token
	hdrDegraded = "Shallot-Degraded"
	hdrEdited   = "Shallot-Edited"
	hdrDropped  = "Shallot-Dropped"
	hdrTrace    = "traceparent"
)

// wireVersion is that of questions, answers, offers and outcomes.
const wireVersion = "2"

// pendingBytes bounds what the client keeps of a subscription until it is read. Beyond it messages are lost, which
// the owner notices (dropped) and the protocol mends.
const pendingBytes = 256 << 20

// subscriptions are those of a node.
type subscriptions struct {
	nc     *nats.Conn
	log    *slog.Logger
	queues []*nats.Subscription // new work: drained first
	rest   []*nats.Subscription
}

// hear subscribes to what this process hears until it has stopped.
func (s *subscriptions) hear(subject string, heard nats.MsgHandler) (*nats.Subscription, error) {
	sub, err := s.nc.Subscribe(subject, heard)
	if err == nil {
		err = sub.SetPendingLimits(-1, pendingBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("bus: subscribe to %s: %w", subject, err)
	}
	s.rest = append(s.rest, sub)
	return sub, nil
}

// serve subscribes to new work, as one of a group if it has a name.
func (s *subscriptions) serve(subject, group string, heard nats.MsgHandler) error {
	sub, err := s.nc.QueueSubscribe(subject, group, heard)
	if err == nil {
		err = sub.SetPendingLimits(-1, pendingBytes)
	}
	if err != nil {
		return fmt.Errorf("bus: subscribe to %s: %w", subject, err)
	}
	s.queues = append(s.queues, sub)
	return nil
}

// drainQueues takes no new work; what has come is still handed out.
func (s *subscriptions) drainQueues() {
	for _, sub := range s.queues {
		if err := sub.Drain(); err != nil {
			s.log.Debug("not drained", "subject", sub.Subject, "err", err)
		}
	}
}

// end ends the rest. The connection may live on, and must not answer for a node that has stopped.
func (s *subscriptions) end() {
	for _, sub := range s.rest {
		if err := sub.Unsubscribe(); err != nil {
			s.log.Debug("not unsubscribed", "subject", sub.Subject, "err", err)
		}
	}
}

// up tells the machines that the connection is there.
func (n *Node) up() {
	n.owner.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect { return n.owns.Up(now, out) })
	n.member.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect { return n.member.m.Up(now, out) })
	n.durable.up()
}

func (n *Node) down() {
	n.owner.do(func(_ time.Duration, out []protocol.Effect) []protocol.Effect { n.owns.Down(); return out })
	n.member.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect { return n.member.m.Down(now, out) })
}

// watchConnection tells the machines of outages.
func (n *Node) watchConnection(ctx context.Context) {
	changed := n.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	defer n.nc.RemoveStatusListener(changed)
	for {
		select {
		case status := <-changed:
			if status == nats.CONNECTED {
				n.up()
				n.presence.reconnected()
			} else {
				n.down()
			}
		case <-ctx.Done():
			return
		}
	}
}

// tick is the one goroutine that looks at the time.
func (n *Node) tick(ctx context.Context) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		var next time.Duration
		n.owner.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
			if n.replies.dropped() {
				n.owns.Dropped(now)
			}
			out = n.owns.Tick(now, out)
			next = n.owns.Next(now) - now
			return out
		})
		n.member.do(func(now time.Duration, out []protocol.Effect) []protocol.Effect {
			out = n.member.m.Tick(now, out)
			next = min(next, n.member.m.Next(now)-now)
			return out
		})
		t.Reset(max(next, time.Millisecond))
	}
}
