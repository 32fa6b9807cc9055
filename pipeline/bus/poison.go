package bus

import (
	"log/slog"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// poison keeps the marks of calls whose owners died, and the letters of those that were given up.
type poison struct {
	records records
	decide  decide
	subj    messages.Subjects
	queue   *workqueue
	// settle sees to it that no work of a stored call begins any more that must not run twice, and says what is true of
	// it in a copy of its message.
	settle func(m *nats.Msg, then func(m *nats.Msg))
	log    *slog.Logger
}

// mark creates a mark before a suspicious call may run.
func (p *poison) mark(e protocol.Effect, key string) {
	p.records.create(jet.PoisonBucket, key+"."+strconv.FormatUint(e.N, 10), nil, func(f found) {
		p.decide.stored(e, protocol.Stored{Result: f.result})
	})
}

// drop deletes the marks of a call that has come further than those who left them.
func (p *poison) drop(e protocol.Effect, key string) {
	for n := range e.N {
		m := &nats.Msg{Subject: kvSubject(jet.PoisonBucket, key+"."+strconv.FormatUint(n+1, 10)), Header: nats.Header{
			hdrKVOp: {"PURGE"}, hdrRollup: {"sub"}, hdrTTL: {markerTTL}, hdrMsgID: {"drop." + secret(8)}}}
		p.records.insist(m, func(found) {})
	}
}

// carry makes a dead letter of a call that is given up.
func (p *poison) carry(e protocol.Effect) {
	if m := p.queue.held(e.Call); m != nil {
		p.settle(m, func(m *nats.Msg) {
			p.bury(m, "deliveries used up: its owners died with it, again and again", func(found) {})
		})
	}
}

// bury stores a message as a dead letter with the reason.
func (p *poison) bury(m *nats.Msg, why string, then func(f found)) {
	h := nats.Header{hdrReason: {headerValue(why)}, hdrDeadFrom: {m.Subject}}
	for _, k := range []string{hdrWire, hdrCall, hdrKind, hdrTenant, hdrGen, hdrDeadline, hdrTrace, hdrDeadBegun} {
		if v := m.Header.Get(k); v != "" {
			h[k] = []string{v}
		}
	}
	if meta, err := m.Metadata(); err == nil {
		seq := strconv.FormatUint(meta.Sequence.Stream, 10)
		h["Shallot-Dead-Sequence"], h[hdrMsgID] = []string{seq}, []string{"dead." + meta.Stream + "." + seq}
		h[hdrDeliveries] = []string{strconv.FormatUint(meta.NumDelivered, 10)}
	}
	kind := m.Header.Get(hdrKind)
	if !messages.Kind(kind).Valid() {
		kind = "none"
	}
	p.log.Warn("dead letter", "reason", why, "subject", m.Subject, "call", m.Header.Get(hdrCall))
	p.records.insist(&nats.Msg{Subject: p.subj.Dead(kind, "none"), Header: h, Data: m.Data}, func(f found) {
		if f.result != protocol.OK {
			p.log.Error("a dead letter could not be stored", "reason", why, "call", m.Header.Get(hdrCall), "why", f.why)
		}
		then(f)
	})
}
