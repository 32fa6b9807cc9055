package bus

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// addEntry pulls accepted calls and those that come back from a target or a delay, and sends them on.
func (n *Node) addEntry() {
	for _, kind := range []messages.Kind{messages.Model, messages.Tool, messages.Agent} {
		pull := func(stream, durable string, hold func() bool, handle func(*message.Message)) {
			n.subscribed(durable, durable, &pullSubscriber{
				js: n.js, stream: stream, slots: make(slots, n.cfg.InFlight), hold: hold, onArrive: n.arriveStored, log: n.log,
			}, func(m *message.Message) error { handle(m); return nil })
		}
		pull(jet.CallsStream, "entry-"+string(kind), n.overBacklog, n.handleEntry)
		pull(jet.CallsStream, "nested-"+string(kind), nil, n.handleEntry)
		pull(jet.HopsStream, "route-"+string(kind), nil, n.handleRoute)
	}
}

// overBacklog makes the refusal happen at the door: while too much is stored further in, nothing new is taken in, and
// the limited entry stream fills up and refuses.
func (n *Node) overBacklog() bool { return n.backlog.Load() > n.cfg.HopBacklog }

func (n *Node) handleEntry(m *message.Message) {
	h, ok := n.take(m)
	if !ok {
		return
	}
	if n.draining.Load() {
		n.handBackEntry(h)
		return
	}
	n.forward(h, pipeline.Start(h.c))
}

func (n *Node) handleRoute(m *message.Message) {
	h, ok := n.take(m)
	if !ok {
		return
	}
	if n.draining.Load() {
		n.handBack(h)
		return
	}
	var hold uint64
	if h.c.Noted(messages.NoteResumed, &hold) {
		mine, err := n.resumed(h.c, h.lease, hold)
		switch {
		case err != nil:
			n.log.Error("an answered call could not be claimed; its lease brings it back", "call", h.c.ID, "err", err)
			return
		case !mine:
			n.settleLater(h.lease) // a second copy, after a decision was carried out twice
			return
		}
		h.c.Unnote(messages.NoteResumed)
	}
	n.forward(h, pipeline.Resume(h.c))
}

// handBackEntry hands back a call that has not begun: its successor goes to the hops stream like any other, so that
// the first successor wins.
func (n *Node) handBackEntry(h *held) {
	pipeline.Start(h.c)
	n.handBack(h)
}
