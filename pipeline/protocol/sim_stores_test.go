package protocol

import (
	"fmt"
	"time"
)

// keep carries out an owner's effects on stores.
func (s *simOwner) keep(e Effect) {
	w, n := s.w, s.w.nats
	then := func(st Stored) {
		s.beat()
		s.out(s.o.Stored(s.clock(), e, s.spoil(e, st), nil))
	}
	id := e.Call
	switch e.Kind {
	case PutCall:
		s.putCall(e, then)
	case Ack:
		var tokens []*message
		for _, m := range s.tokens[id] {
			if m.delivery.Generation <= e.N {
				tokens = append(tokens, m)
			}
		}
		n.do(s.proc, true, func() Stored { n.ack(tokens); return Stored{Result: OK} }, then)
	case InProgress:
		tokens := s.tokens[id]
		n.do(s.proc, false, func() Stored { n.progress(tokens); return Stored{Result: OK} }, then)
	case PutResult:
		r := s.runs[id]
		if r == nil {
			return
		}
		if s.diesNow(resultIsDue, r.c) {
			return
		}
		rec := Record{State: Done, Print: r.result.encode(), By: s.name}
		n.do(s.proc, true, func() Stored {
			if w.bad == overwritesResults {
				return n.put("result."+id, rec)
			}
			return n.create("result."+id, rec)
		}, then)
	case GetResult:
		n.do(s.proc, false, func() Stored { return n.get("result." + id) }, then)
	case PutKey:
		rec := Record{Call: id, Print: e.Nonce}
		n.do(s.proc, true, func() Stored {
			if w.bad == overwritesKeys {
				return n.put("key."+e.Group, rec)
			}
			if w.trap == keyIsStored && w.byID[id].span > 35*time.Second && n.records["key."+e.Group] == nil {
				w.trap = 0
				defer s.kill("it has stored a key and not yet the call")
			}
			return n.create("key."+e.Group, rec)
		}, then)
	case FreeKey:
		n.do(s.proc, true, func() Stored { return s.freeKey(e) }, then)
	case PutHeld:
		if s.diesNow(holdIsDue, w.byID[id]) {
			return
		}
		n.do(s.proc, true, func() Stored { return w.hold(e) }, then)
	case GetHeld:
		n.do(s.proc, false, func() Stored { return w.heldAt(id, e.N) }, then)
	case PutMark:
		if w.bad == marksUnstored {
			s.after(1e6, func() { then(Stored{Result: OK}) })
			return
		}
		n.do(s.proc, true, func() Stored { return n.create(fmt.Sprintf("mark.%s.%d", id, e.N), Record{}) }, then)
	case DropMarks:
		n.do(s.proc, true, func() Stored {
			for i := range e.N {
				delete(n.records, fmt.Sprintf("mark.%s.%d", id, i+1))
			}
			return Stored{Result: OK}
		}, func(Stored) {})
	case PutBegun:
		n.do(s.proc, true, func() Stored { return n.create(recordKey(e), recordOf(e, 0)) }, then)
	case SetBegun:
		n.do(s.proc, true, func() Stored { return n.update(recordKey(e), e.Rev, recordOf(e, 0)) }, then)
	case GetBegun, GetOutcome:
		n.do(s.proc, false, func() Stored { return n.get(recordKey(e)) }, then)
	}
}

// diesNow springs a trap: the process dies when it is about to store something. Nobody comes back with a key.
func (s *simOwner) diesNow(moment int, c *call) bool {
	if s.w.trap != moment || c.key != "" {
		return false
	}
	s.w.trap = 0
	s.kill("it was about to store something")
	return true
}

func (s *simOwner) freeKey(e Effect) Stored {
	n := s.w.nats
	if r := n.records["key."+e.Group]; r != nil && r.Call == e.Call {
		delete(n.records, "key."+e.Group)
	}
	return Stored{Result: OK}
}

func (s *simOwner) putCall(e Effect, then func(Stored)) {
	w := s.w
	c := w.byID[e.Call]
	d := Delivery{Call: e.Call, Generation: e.N, Again: e.Again && w.bad != copiesUnmarked, Until: c.until}
	resumed := w.nats.records["held."+e.Call] != nil
	handsBack := e.N > 0 && s.o.Deliveries.Owns(e.Call)
	if handsBack && w.bad == handsBackUnstored {
		s.carry(Effect{Kind: Ack, Call: e.Call})
	}
	if handsBack && s.diesNow(handingIsDue, c) {
		return
	}
	switch {
	case w.bad == resumesOnce && resumed && e.N > 0:
		then2 := then
		then = func(Stored) { then2(Stored{Result: OK}) }
	case w.bad == neverRevives && e.N == 0 && c.caller.at != s.proc:
		return
	}
	w.nats.do(s.proc, true, func() Stored { return w.nats.publish(d) }, then)
}

// spoil is where defects change what a store said.
func (s *simOwner) spoil(e Effect, st Stored) Stored {
	bad := s.w.bad
	switch {
	case bad == lostAckIsRefusal && e.Kind == PutCall && st.Result == Unclear:
		st.Result = No
	case bad == lostAckIsSuccess && e.Kind == PutCall && st.Result == Unclear,
		bad == voidsUnasked && e.Kind == PutBegun,
		bad == endsUnasked && e.Kind == PutResult && st.Result == Unclear,
		bad == parksUnasked && e.Kind == PutHeld && st.Result == Unclear:
		st.Result = OK
	case bad == keysFreed && e.Kind == PutCall && st.Result == Unclear && s.w.byID[e.Call].key != "":
		s.keep(Effect{Kind: FreeKey, Call: e.Call, Group: s.w.byID[e.Call].key})
	case bad == resultsUnread && e.Kind == GetResult && st.Result == OK:
		st.Result = Missing
	}
	return st
}

// hold creates the record of a hold; somebody decides it after a while.
func (w *world) hold(e Effect) Stored {
	c := w.byID[e.Call]
	st := w.nats.create("held."+c.id, Record{State: Waiting, Nonce: e.N})
	if st.Result == OK {
		c.durable, c.stored = true, true
		w.log("%s is parked", c.id)
		w.after(w.between(300e6, 4e9), func() { w.decide(c) })
	}
	return st
}

func (w *world) heldAt(id string, generation uint64) Stored {
	if r := w.nats.records["held."+id]; r != nil && r.Nonce >= generation {
		return Stored{Result: OK, Record: *r}
	}
	return Stored{Result: Missing}
}

// decide is a person who answers the hold, at any owner, and the sweep that finds what was decided and stayed.
func (w *world) decide(c *call) {
	r := w.nats.records["held."+c.id]
	if w.nats.records["result."+c.id] != nil {
		return
	}
	w.after(10e9, func() {
		if w.bad != resumesOnce {
			w.decide(c)
		}
	})
	p := w.anyOwner()
	if p == nil || !p.reachable() || p.frozen {
		return
	}
	w.nats.do(p, true, func() Stored {
		if r.State == Decided {
			return Stored{Result: OK}
		}
		return w.nats.update("held."+c.id, r.Rev, Record{State: Decided, Nonce: r.Nonce})
	}, func(st Stored) {
		if st.Result == OK {
			p.owner.beat()
			p.owner.out(p.owner.o.Resumes.Resume(p.clock(), c.id, r.Nonce, r.State != Decided, nil))
		}
	})
}
