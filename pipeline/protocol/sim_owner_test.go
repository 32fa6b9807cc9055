package protocol

import "time"

// simOwner carries out what an Owner decides, and runs calls as the bus does.
type simOwner struct {
	*proc
	o       *Owner
	runs    map[string]*simRun
	callers map[string][]*caller // who waits here, by the call that they wait for
	effects []Effect
	pulled  bool
	leaving bool
}

// simRun is a call that this owner runs.
type simRun struct {
	c       *call
	at      int // the phase
	n       uint64
	tries   uint64
	fresh   bool
	since   time.Duration // no other owner has run it since its hold, as was known then
	durable bool
	result  result
	ending  bool
	exec    uint64
	shown   *exec // whose chunks the caller reads
	late    bool  // its deadline has come
}

func (s *simOwner) take() []Effect { return s.effects[:0] }

// beat is what the bus does whenever it takes the owner's lock.
func (s *simOwner) beat() {
	now := s.clock()
	if s.w.bad == ownerNeverFrozen {
		s.o.seen = now
	}
	if s.w.bad == deafCounts {
		s.o.Hearing.up, s.o.Hearing.horizon, s.o.Hearing.base = true, now, 0
	}
	if s.w.bad == neverInDoubt {
		for _, d := range s.o.Deliveries.order {
			d.marked = now
		}
	}
	s.out(s.o.Beat(now, nil))
}

func (s *simOwner) up() {
	s.pulled = false
	s.out(s.o.Up(s.clock(), nil))
	s.pull()
}

// pull asks for a stored call while there is room.
func (s *simOwner) pull() {
	if !s.pulled && !s.leaving && s.reachable() && len(s.runs) < 8 {
		s.pulled = true
		s.w.nats.pull(s.proc)
	}
}

func (s *simOwner) repull() {
	s.pulled = false
	s.pull()
	s.after(5*time.Second, s.repull)
}

func (s *simOwner) died() {
	for _, c := range s.w.calls {
		if c.caller.at == s.proc {
			c.caller.lost()
		}
		if s.runs[c.id] != nil && !c.durable {
			c.dead = true
		}
	}
}

func (s *simOwner) idle() bool {
	o := s.o
	return len(s.runs) == 0 && len(o.Asks.open) == 0 && len(o.Runs.order) == 0 && len(o.Deliveries.order) == 0 &&
		len(o.Resumes.order) == 0
}

// Events.

func (s *simOwner) delivered(m *message, d Delivery) {
	s.tokens[d.Call] = append(s.tokens[d.Call], m)
	s.pulled = false
	if s.w.bad == redeliveryIsFirst {
		d.Count, d.Again = 1, false
	}
	d.Until += s.offset
	s.w.log("%s gets %s.%d, delivery %d", s.name, d.Call, d.Generation, d.Count)
	s.beat()
	s.out(s.o.Deliveries.Delivered(s.clock(), d, nil))
	s.pull()
}

func (s *simOwner) answered(n uint64, member string) {
	if s.o.Asks.Answered(s.clock(), n, member) {
		s.w.judge.answered(s.proc, n)
		for _, r := range s.runs {
			if r.n == n {
				r.n = 0
				r.at++
				s.step(r)
				return
			}
		}
	}
}

func (s *simOwner) shown(member string, questions []uint64, works []Work) {
	s.beat()
	s.out(s.o.Shown(s.clock(), member, questions, works, nil))
}

func (s *simOwner) has(w Work, member string, yes bool) {
	s.beat()
	s.out(s.o.Runs.Has(s.clock(), w, member, yes, nil))
}

func (s *simOwner) busy(w Work, seq uint64, member string) {
	s.beat()
	s.out(s.o.Runs.Busy(s.clock(), w, seq, member, nil))
}

func (s *simOwner) free(class, member string, free int) {
	s.beat()
	s.out(s.o.Runs.Free(s.clock(), class, member, free, nil))
}

func (s *simOwner) chunk(w Work, member string, x *exec) {
	s.beat()
	r := s.runs[w.Call]
	if r == nil || r.ending || r.shown != nil && r.shown != x {
		return
	}
	r.shown = x
	s.out(s.o.Runs.Chunk(s.clock(), w, member, s.w.bad != streamsTwice, nil))
	if run := s.o.Runs.runs[w.Call]; run != nil && run.holder == member {
		s.w.judge.released(s.proc, r.c, x)
	}
}

func (s *simOwner) outcome(w Work, member string, st State, proof bool, id uint64) {
	s.beat()
	final, out := s.o.Runs.Outcome(s.clock(), w, member, st, proof, nil)
	s.out(out)
	r := s.runs[w.Call]
	if !final || r == nil {
		return
	}
	if s.w.bad == confirmsEarly {
		s.carry(Effect{Kind: Confirm, Call: w.Call, To: member, N: w.N})
	}
	s.came(r, w.N, st, id)
}

// came goes on with an outcome. A refusal that proves that nothing happened is tried again, as a retry stage would.
func (s *simOwner) came(r *simRun, n uint64, st State, id uint64) {
	switch {
	case st == NotRun && !r.late:
		r.tries = n
		s.target(r)
	case st == NotRun:
		s.end(r, result{code: NotExecuted})
	case st == Lost:
		s.w.judge.saidUnknown(r.c, r.late)
		s.end(r, result{code: Unknown})
	case r.late: // its outcome came after all, but nothing more is asked for it
		s.end(r, result{code: Ended, exec: id})
	default:
		r.exec = id
		r.at++
		s.step(r)
	}
}

// carry carries one effect out.
func (s *simOwner) carry(e Effect) {
	w := s.w
	if w.trace != nil && e.Kind != Probe && e.Kind != InProgress && e.Kind != Ping {
		w.log("%s: %s", s.name, show(e))
	}
	switch e.Kind {
	case Ping:
		if w.bad == silenceIsFine {
			s.o.Presence.Pong(s.clock(), e.To, e.At, e.At)
		}
		w.ping(s.proc, e)
	case Probe:
		w.probe(s.proc, e)
	case Ask:
		s.ask(w.byID[e.Call], e.Group, e.N, e.To)
	case Offer:
		s.offer(e)
	case WhoHas:
		s.whoHas(e)
	case WhoOwns:
		if w.bad == ownersSilent {
			return
		}
		for _, q := range w.procs {
			if q.owner != nil && q != s.proc && q.connected() {
				w.pass(s.proc, q, func() {
					q.owner.beat()
					q.owner.out(q.owner.o.Deliveries.WhoOwns(q.clock(), e.Call, s.name, e.Seq, nil))
				})
			}
		}
	case Owns:
		w.direct(s.proc, e.To, nil, func(q *proc) {
			q.owner.beat()
			claim := Claim{Call: e.Call, Owner: s.name, Seq: e.Seq, Certain: e.Yes}
			q.owner.out(q.owner.o.Owned(q.clock(), claim, nil))
		})
	case Confirm:
		w.direct(s.proc, e.To, nil, func(q *proc) {
			w.judge.confirmed(e.Call)
			q.member.beat()
			q.member.out(q.member.m.Works.Confirmed(q.clock(), Work{e.Call, e.N}, nil))
		})
	case Cancel:
		s.cancel(e)
	case Wake:
		s.wake(e)
	case Receipt:
		w.byID[e.Call].caller.accepted(e)
	case Run:
		s.runEffect(e)
	case Answer:
		s.answer(e)
	case Found:
		s.tell(e.Call, decode(e.Record.Print))
	case Unsure:
		for _, c := range s.callers[e.Call] {
			c.hear(result{code: Unknown, unsure: true})
		}
		delete(s.callers, e.Call)
	case DeadLetter:
		w.log("dead letter of %s", e.Call)
	default:
		s.keep(e)
	}
}

func (s *simOwner) runEffect(e Effect) {
	c := s.w.byID[e.Call]
	s.w.judge.owned(s.proc, c, e)
	if e.Why == Undeliverable {
		r := &simRun{c: c, durable: true}
		s.runs[c.id] = r
		s.end(r, result{code: Undeliverable})
		return
	}
	s.run(c, true, e.Fresh, e.At)
}

func (s *simOwner) answer(e Effect) {
	delete(s.runs, e.Call)
	s.pull()
	res := decode(e.Record.Print)
	if s.w.nats.records["result."+e.Call] == nil {
		s.w.judge.fail("%s is told an end that is not stored", e.Call)
	}
	s.tell(e.Call, res)
	// An owner that is not where the caller waits sends the end to the accepting process.
	if at := s.w.byID[e.Call].caller.at; e.Yes && at != s.proc {
		s.w.direct(s.proc, at.name, nil, func(q *proc) { q.owner.tell(e.Call, res) })
	}
}

func (s *simOwner) offer(e Effect) {
	w, c := s.w, s.w.byID[e.Call]
	f := Offered{Work: Work{e.Call, e.N}, Owner: s.name, Class: e.Group, Seq: e.Seq, Once: e.Once,
		Bound: !c.durable, Sent: e.At, Until: e.Until}
	if !e.Once {
		defer w.trapped(s.proc, ownerOffers, c)
	}
	nobody := func() {
		s.beat()
		s.out(s.o.Runs.NoResponders(s.clock(), e.Call, e.Seq, e.To, nil))
	}
	take := func(q *proc) {
		w.log("%s is offered %s.%d seq %d", q.name, e.Call, e.N, e.Seq)
		q.member.offered(f)
	}
	if w.trap == offerIsLate && !e.Once && c.until-w.now > 35*time.Second {
		w.trap = 0
		c.targetTime = max(c.targetTime, 8*time.Second)
		now := take
		take = func(q *proc) { q.after(3*time.Second, func() { now(q) }) }
	}
	if e.To != "" {
		w.direct(s.proc, e.To, nobody, take)
		return
	}
	w.group(s.proc, e.Group, nobody, take)
}

func (s *simOwner) whoHas(e Effect) {
	w := s.w
	ask := func(q *proc) {
		q.member.beat()
		q.member.out(q.member.m.Works.WhoHas(q.clock(), Work{e.Call, e.N}, s.name, e.Seq, nil))
	}
	if w.bad == losesUnasked && e.To != "" {
		s.after(time.Millisecond, func() { s.has(Work{e.Call, e.N}, e.To, false) })
		return
	}
	if e.To != "" {
		w.direct(s.proc, e.To, nil, ask)
		return
	}
	for _, q := range w.procs {
		if q.connected() && q.member != nil && q.member.serves(e.Group) {
			w.pass(s.proc, q, func() { ask(q) })
		}
	}
}

func (s *simOwner) cancel(e Effect) {
	w := s.w
	f := func(q *proc) {
		q.member.beat()
		q.member.out(q.member.m.Works.Cancelled(q.clock(), Work{e.Call, e.N}, nil))
	}
	w.judge.cancelled(e.Call)
	if e.To != "" {
		w.direct(s.proc, e.To, nil, f)
		return
	}
	for _, q := range w.procs {
		if q.connected() && q.member != nil && q.member.serves(e.Group) {
			w.pass(s.proc, q, func() { f(q) })
		}
	}
}

func (s *simOwner) out(effects []Effect) {
	for _, e := range effects {
		s.carry(e)
	}
	if cap(effects) > cap(s.effects) {
		s.effects = effects
	}
}
