package protocol

import (
	"slices"
	"time"
)

// simMember carries out what a Member decides.
type simMember struct {
	*proc
	m       *Member
	groups  []string
	results map[Work]*exec // of work that runs or is kept
	taken   map[Work]time.Duration
	effects []Effect
}

func (s *simMember) serves(group string) bool { return slices.Contains(s.groups, group) }

func (s *simMember) take() []Effect { return s.effects[:0] }

// beat is what the bus does whenever it takes the member's lock.
func (s *simMember) beat() {
	if s.w.bad == memberNeverFrozen {
		s.m.seen = s.clock()
	}
	s.out(s.m.Beat(s.clock(), nil))
}

func (s *simMember) idle() bool {
	for _, w := range s.m.Works.order {
		if w.step != kept {
			return false
		}
	}
	for _, h := range s.m.Hands.order {
		if len(h.questions) > 0 {
			return false
		}
	}
	return true
}

// question takes a question of a stage.
func (s *simMember) question(from *proc, n uint64, c *call, stage string, until time.Duration) {
	if !s.m.Question(s.clock(), from.name, n, until) {
		return
	}
	s.w.judge.asked(s.proc, from, n, c)
	d := c.hopTime(s.w)
	if c.poison == stage {
		s.after(10*time.Millisecond, func() {
			c.kills++
			s.kill("poison of " + c.id)
		})
		return
	}
	s.after(d, func() {
		s.m.Answered(from.name, n)
		s.w.direct(s.proc, from.name, nil, func(to *proc) { to.owner.answered(n, s.name) })
	})
}

func (s *simMember) offered(f Offered) {
	if s.w.bad == lateOffersTaken {
		f.Sent = s.clock()
		if p := s.m.Presence.processes[f.Owner]; p != nil {
			f.Sent += p.offset
		}
		delete(s.m.Works.refused, f.Call)
	}
	s.beat()
	if s.m.Works.works[f.Work] == nil {
		s.taken[f.Work] = s.w.now
	}
	s.out(s.m.Works.Offered(s.clock(), f, nil))
	if w := s.m.Works.works[f.Work]; w != nil && w.step == queued && !f.Once {
		s.w.trapped(s.proc, memberQueues, s.w.byID[f.Call])
	}
}

func (s *simMember) out(effects []Effect) {
	for _, e := range effects {
		s.carry(e)
	}
	if cap(effects) > cap(s.effects) {
		s.effects = effects
	}
}

func (s *simMember) carry(e Effect) {
	w := s.w
	switch e.Kind {
	case Ping:
		w.ping(s.proc, e)
	case Probe:
		w.probe(s.proc, e)
	case List:
		questions, works := s.m.Hands.Shown(e.To)
		questions, works = slices.Clone(questions), slices.Clone(works)
		if w.bad == noLists {
			return
		}
		w.direct(s.proc, e.To, nil, func(to *proc) { to.owner.shown(s.name, questions, works) })
	case Has:
		yes := e.Yes && w.bad != membersDeny
		w.direct(s.proc, e.To, nil, func(to *proc) { to.owner.has(Work{e.Call, e.N}, s.name, yes) })
	case Busy:
		w.direct(s.proc, e.To, nil, func(to *proc) { to.owner.busy(Work{e.Call, e.N}, e.Seq, s.name) })
	case Free:
		for _, q := range w.procs {
			if q.owner != nil && q.connected() {
				w.pass(s.proc, q, func() { q.owner.free(e.Group, s.name, int(e.Free)) })
			}
		}
	case Outcome:
		s.outcome(e)
	case Start:
		s.begin(e)
	case Stop, Drop:
		if e.Kind == Stop && s.m.Works.Holds(Work{e.Call, e.N}) {
			return // it ends as it likes
		}
		if x := s.results[Work{e.Call, e.N}]; x != nil {
			x.stopped = x.stopped || e.Kind == Stop
			if x.member == s.proc {
				x.dropped = true
			}
			delete(s.results, Work{e.Call, e.N})
		}
	default:
		s.keep(e)
	}
}

// keep carries out effects on stores.
func (s *simMember) keep(e Effect) {
	w, n := s.w, s.w.nats
	key := recordKey(e)
	then := func(st Stored) {
		if e.Kind == GetBegun && w.bad == nonceIgnored && st.Record.State == Begun {
			st.Record.By, st.Record.Nonce = s.name, s.nonceOf(e)
		}
		s.beat()
		s.out(s.m.Works.Stored(s.clock(), e, st, nil))
	}
	if e.Kind == PutBegun && w.bad == beginsUnasked {
		s.after(time.Millisecond, func() { then(Stored{Result: OK}) })
		return
	}
	switch e.Kind {
	case PutBegun:
		n.do(s.proc, true, func() Stored { return n.create(key, recordOf(e, 0)) }, then)
	case SetBegun:
		var x uint64
		if r := s.results[Work{e.Call, e.N}]; r != nil {
			x = r.id
		}
		n.do(s.proc, true, func() Stored { return n.update(key, e.Rev, recordOf(e, x)) }, then)
	case GetBegun:
		n.do(s.proc, false, func() Stored { return n.get(key) }, then)
	case PutOutcome:
		var x uint64
		if r := s.results[Work{e.Call, e.N}]; r != nil {
			x = r.id
		}
		n.do(s.proc, true, func() Stored { return n.put(key, Record{State: Done, Print: x}) }, then)
	}
}

func (s *simMember) nonceOf(e Effect) uint64 {
	if w := s.m.Works.works[Work{e.Call, e.N}]; w != nil {
		return w.nonce
	}
	return 0
}

// begin runs the work of a target: this is the effect on the world that must not happen twice.
func (s *simMember) begin(e Effect) {
	c := s.w.byID[e.Call]
	w := s.m.Works.works[Work{e.Call, e.N}]
	if w == nil {
		return // it was stopped in the same breath
	}
	owner := w.offer.Owner
	x := s.w.judge.started(s.proc, c, e.N, owner, e.Once, s.taken[Work{e.Call, e.N}])
	s.results[Work{e.Call, e.N}] = x
	if c.stream && !e.Once {
		s.after(50*time.Millisecond, func() {
			owner := s.m.Works.works[Work{e.Call, e.N}]
			if owner == nil || x.dropped {
				return
			}
			s.w.direct(s.proc, owner.offer.Owner, nil, func(to *proc) { to.owner.chunk(Work{e.Call, e.N}, s.name, x) })
		})
	}
	s.after(c.targetTime, func() {
		if x.stopped || x.dropped {
			return
		}
		x.ended = true
		st := Done
		if c.refusals > 0 && e.Once {
			c.refusals--
			st, x.nothing = NotRun, true
		}
		s.w.log("%s ends %s.%d", s.name, e.Call, e.N)
		s.beat()
		s.out(s.m.Works.Ended(s.clock(), Work{e.Call, e.N}, st, 100, nil))
	})
}

func (s *simMember) outcome(e Effect) {
	var id uint64
	if x := s.results[Work{e.Call, e.N}]; x != nil {
		id = x.id
	}
	if s.w.bad == forgetsOutcomes {
		s.after(time.Millisecond, func() { s.out(s.m.Works.Confirmed(s.clock(), Work{e.Call, e.N}, nil)) })
	}
	s.w.direct(s.proc, e.To, nil, func(to *proc) {
		to.owner.outcome(Work{e.Call, e.N}, s.name, e.State, e.Yes, id)
	})
}
