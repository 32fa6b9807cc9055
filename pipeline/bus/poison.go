package bus

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// suspectAlone is how long a suspect keeps other suspects of its process waiting. What kills, kills at once; a model
// that thinks for minutes must not stand in the way of all calls that a restarted server delivered again.
const suspectAlone = 5 * time.Second

// alone waits until no other suspect runs in this process, and returns what ends its own turn. Without it, all suspects
// would die with the one that kills, each time, and be taken for it.
func (n *Node) alone(m *message.Message) (leave func()) {
	l, err := ParseLease(leaseOf(m))
	if err != nil || l.Delivered <= 2 {
		return func() {}
	}
	n.suspect <- struct{}{}
	var once sync.Once
	end := func() { once.Do(func() { <-n.suspect }) }
	limit := time.AfterFunc(suspectAlone, end)
	return func() { limit.Stop(); end() }
}

// mayTry decides about a call whose holders died at least twice. Such calls run one at a time in a process, each with
// a mark that is written before the body is decoded; enough marks make a dead letter (lease.md 5).
func (n *Node) mayTry(m *message.Message, l Lease, stored bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	base := messages.Key(m.Metadata.Get(hdrCall), m.Metadata.Get(hdrGen))
	marks, err := n.poison.Keys(ctx, base+".")
	if err != nil {
		n.log.Error("poison marks cannot be read; the call waits for its next delivery", "call", m.Metadata.Get(hdrCall), "err", err)
		return false
	}
	if stored && len(marks) >= n.cfg.PoisonMarks {
		n.buryPoison(m, l, len(marks))
		return false
	}
	_, err = n.poison.Put(ctx, base+"."+strconv.Itoa(l.Delivered), []byte(time.Now().UTC().Format(time.RFC3339Nano)), 0, pipeline.IfAbsent())
	if err != nil && !errors.Is(err, pipeline.ErrExists) {
		n.log.Error("a poison mark cannot be written; the call waits for its next delivery", "call", m.Metadata.Get(hdrCall), "err", err)
		return false
	}
	return true
}

// buryPoison makes a dead letter of a call that kills its holders and answers its caller. Only headers are read: the
// body may be what kills.
func (n *Node) buryPoison(m *message.Message, l Lease, marks int) {
	c := messages.NewCall(messages.Kind(m.Metadata.Get(hdrKind)), m.Metadata.Get(hdrTenant), []byte("null"))
	c.ID = m.Metadata.Get(hdrCall)
	if !c.Kind.Valid() || c.ID == "" || c.Tenant == "" {
		n.bury(m, &l, "deliveries used up, and the headers name no call")
		return
	}
	if in := m.Metadata.Get(hdrReturn); n.inboxAllowed(in) {
		c.Return.Inbox = in
	}
	c.Return.Record = true
	c.Deadline = time.Now().Add(time.Minute)
	c.Slip.At, c.Slip.Back = -1, true
	if !n.deadLetter(m, &l, "deliveries used up: "+strconv.Itoa(marks)+" of its holders died with it") {
		return
	}
	c.Fail(messages.NewFault(messages.Undeliverable,
		"the call was given up: %d processes died while they held it. It is kept as dead letter of call %s; look at it with: nats stream view %s",
		marks, c.ID, jet.DeadStream).From("bus"))
	n.end(&held{c: c, lease: l})
}

// bury makes a dead letter of something that is no call, and ends the lease if it has one. No message kills the
// process, and none is dropped silently.
func (n *Node) bury(m *message.Message, l *Lease, reason string) {
	if n.deadLetter(m, l, reason) && l != nil {
		n.settleLater(*l)
	}
}

func (n *Node) deadLetter(m *message.Message, l *Lease, reason string) bool {
	n.stats.dead.Add(1)
	h := nats.Header{
		hdrReason:   {headerValue(reason)},
		hdrDeadFrom: {headerValue(m.Metadata.Get(metaSubject))},
	}
	for _, k := range []string{hdrWire, hdrCall, hdrKind, hdrStage, hdrPhase, hdrTenant, hdrSession, hdrGen, hdrDeadline, hdrPath, hdrTrace} {
		if v := m.Metadata.Get(k); v != "" {
			h[k] = []string{headerValue(v)}
		}
	}
	if l != nil {
		h[hdrDeadSeq] = []string{strconv.FormatUint(l.Seq, 10)}
		h[hdrDeadCount] = []string{strconv.Itoa(l.Delivered)}
		h[hdrMsgID] = []string{"dead." + l.Stream + "." + strconv.FormatUint(l.Seq, 10)}
	}
	kind, stage := m.Metadata.Get(hdrKind), m.Metadata.Get(hdrStage)
	if kind == "" {
		kind = "none"
	}
	if stage == "" {
		stage = "none"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	body := []byte(m.Payload)
	if most := int(n.nc.MaxPayload()) - 16<<10; len(body) > most && most > 0 {
		body = body[:most] // what came was legal only with fewer headers
	}
	if _, err := n.publishStored(ctx, &nats.Msg{Subject: n.subj.Dead(kind, stage), Header: h, Data: body}); err != nil {
		n.log.Error("a dead letter could not be stored", "reason", reason, "subject", m.Metadata.Get(metaSubject), "err", err)
		return false
	}
	n.log.Warn("dead letter", "reason", reason, "subject", m.Metadata.Get(metaSubject), "call", m.Metadata.Get(hdrCall))
	return true
}
