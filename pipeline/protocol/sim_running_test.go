package protocol

import "time"

func (s *simOwner) run(c *call, durable, fresh bool, since time.Duration) *simRun {
	r := &simRun{c: c, durable: durable, fresh: fresh, since: since}
	s.runs[c.id] = r
	left := c.until - s.w.now
	s.after(max(0, left), func() { s.deadline(r) })
	if c.poison == "owner" && left > 0 {
		s.after(10*time.Millisecond, func() {
			c.kills++
			s.kill("poison of " + c.id)
		})
		return r
	}
	s.step(r)
	return r
}

// step asks the next stage, offers the target, or ends the call.
func (s *simOwner) step(r *simRun) {
	if s.runs[r.c.id] != r || r.ending {
		return
	}
	switch {
	case r.at >= len(r.c.route):
		s.end(r, result{code: Ended, exec: r.exec})
	case r.c.route[r.at] == "hold":
		if h := s.w.nats.records["held."+r.c.id]; h != nil && h.State == Decided {
			r.at++
			s.step(r)
			return
		}
		s.w.log("%s holds %s", s.name, r.c.id)
		if s.w.bad == parksUnstored {
			s.carry(Effect{Kind: Ack, Call: r.c.id})
		}
		s.beat()
		s.out(s.o.Deliveries.Park(s.clock(), r.c.id, nil))
	case r.c.route[r.at] == "target":
		s.target(r)
	default:
		stage := r.c.route[r.at]
		n, to := s.o.Asks.Sent(s.clock(), Question{Call: r.c.id, Stage: stage})
		r.n = n
		s.w.judge.sent(s.proc, n, stage)
		s.ask(r.c, stage, n, to)
		s.w.trapped(s.proc, ownerAsks, r.c)
	}
}

func (s *simOwner) target(r *simRun) {
	r.tries++
	until := r.c.until + s.offset
	fresh := r.fresh || r.tries > 1
	t := Target{Work: Work{r.c.id, r.tries}, Class: r.c.class(), Tenant: r.c.tenant, Once: r.c.once, Until: until,
		Fresh: fresh}
	switch {
	case r.c.once:
		t.Fresh = r.fresh
	case !fresh && r.since > 0:
		t.Fresh, t.Since = true, r.since
	}
	s.beat()
	s.out(s.o.Runs.Start(s.clock(), t, nil))
}

func (s *simOwner) ask(c *call, stage string, n uint64, to string) {
	w, until := s.w, c.until+s.offset
	f := func(q *proc) { q.member.question(s.proc, n, c, stage, until) }
	nobody := func() { s.beat(); s.out(s.o.Asks.NoResponders(s.clock(), n, to, nil)) }
	if to == "" {
		w.group(s.proc, stage, nobody, f)
		return
	}
	w.direct(s.proc, to, nobody, f)
}

// deadline is the call's own timer in this process.
func (s *simOwner) deadline(r *simRun) {
	if s.runs[r.c.id] != r || r.ending {
		return
	}
	s.w.log("%s: the time of %s is over", s.name, r.c.id)
	r.late = true
	s.beat()
	if r.at < len(r.c.route) && r.c.route[r.at] == "target" && s.o.Runs.runs[r.c.id] != nil {
		s.out(s.o.Runs.GiveUp(s.clock(), r.c.id, Deadline, nil))
		if r.c.once {
			return
		}
	}
	s.o.Asks.Forget(r.n)
	s.end(r, result{code: Deadline})
}

func (s *simOwner) end(r *simRun, res result) {
	r.result, r.ending = res, true
	s.w.log("%s ends %s: %v", s.name, r.c.id, res)
	s.beat()
	if !r.durable && !s.o.Deliveries.Owns(r.c.id) {
		s.out(s.o.Runs.Ended(s.clock(), r.c.id, nil))
		delete(s.runs, r.c.id)
		s.tell(r.c.id, res)
		return
	}
	if s.w.bad == tellsFirst {
		s.tell(r.c.id, res)
	}
	if s.w.bad == acksFirst {
		s.carry(Effect{Kind: Ack, Call: r.c.id})
	}
	s.out(s.o.Deliveries.End(s.clock(), r.c.id, r.c.until+s.offset, nil))
}

// tell answers whoever waits in this process or at an inbox.
func (s *simOwner) tell(id string, res result) {
	s.w.judge.tell(id, res)
	s.o.Waits.Forget(id)
	for _, c := range s.callers[id] {
		c.hear(res)
	}
	delete(s.callers, id)
}

func (s *simOwner) wake(e Effect) {
	r := s.runs[e.Call]
	if r == nil {
		return
	}
	switch e.Why {
	case Skipped:
		r.n = 0
		r.at++
		s.step(r)
	case Ended:
		s.came(r, e.N, e.Record.State, e.Record.Print)
	case Yielded, HandedBack, Parked:
		s.w.log("%s leaves %s (%d)", s.name, e.Call, e.Why)
		s.o.Asks.Forget(r.n)
		delete(s.runs, e.Call)
		if !r.durable && e.Why == Parked { // it is a stored call from now on
			s.out(s.o.Waits.Wait(s.clock(), e.Call, false, nil))
		}
		s.pull()
	case Unknown:
		s.w.judge.saidUnknown(r.c, r.late)
		s.end(r, result{code: Unknown})
	default:
		s.end(r, result{code: e.Why})
	}
}
