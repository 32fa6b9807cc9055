package protocol

import "time"

// drainEach is how much work in line is offered in one tick after a class has opened again.
const drainEach = 64

// copiesEach is how many copies are looked after in one tick, however many there are.
const copiesEach = 16

// listens reports whether a run waits for signs, so that its owner must know whether it hears.
func (s *Runs) listens(now time.Duration) bool {
	for _, r := range s.order {
		if r.waits() && now-r.sent >= showAfter {
			return true
		}
	}
	return false
}

// tick looks after runs that are quiet, and after the lines.
func (s *Runs) tick(now time.Duration, changed bool, out []Effect) []Effect {
	if now-s.looked < tickSlow && !changed {
		return out
	}
	s.looked = now
	for _, r := range s.order {
		if r.voidTooLong(now) {
			out = s.end(now, r, Unknown, Record{}, out)
		} else if s.hearing.up {
			out = s.look(now, r, out)
		}
	}
	if !s.hearing.up {
		return out
	}
	for _, l := range s.classes {
		out = s.serve(now, l, out)
	}
	return s.copies(now, out)
}

// copies asks now and then for work that was offered because nobody had it: who had it may have been out of reach, and
// the copy may wait in a queue. A part of them in each tick.
func (s *Runs) copies(now time.Duration, out []Effect) []Effect {
	each := copiesEach
	for i := range s.order {
		at := (s.turn + i) % len(s.order)
		r := s.order[at]
		if !r.copied || r.phase != held || r.released || now-r.again < copyEvery {
			continue
		}
		if each--; each < 0 {
			s.turn = at
			return out
		}
		r.again = now
		out = append(out, s.whoHas(now, r, ""))
		out = s.store(r, Effect{Kind: GetOutcome, N: r.n}, out)
	}
	return out
}

func (s *Runs) look(now time.Duration, r *run, out []Effect) []Effect {
	switch r.phase {
	case lined:
		if now-r.joined > s.cfg.MaxQueueWait {
			s.line(r.spec.Class).leave(r)
			return s.refuse(now, r, out)
		}
	case offered:
		if s.hearing.Since(r.sent) >= s.cfg.HopPatience {
			out = s.suspect(now, r, out)
		}
		if s.hearing.Calm(r.sent) >= offerSilent && now < r.spec.Until {
			return s.find(now, r, out)
		}
	case asking:
		return s.lookAsking(now, r, out)
	case held:
		return s.lookHeld(now, r, out)
	case reading, writing, voiding:
		return s.lookStore(now, r, out)
	case checking:
		return s.lookChecking(now, r, out)
	}
	return out
}

// suspect pings the members of the class that have not been heard since the offer: one of them may stand still, and the
// class would go on to choose it.
func (s *Runs) suspect(now time.Duration, r *run, out []Effect) []Effect {
	for _, m := range s.presence.Members(r.spec.Class) {
		if s.presence.Heard(m) < r.sent {
			out = s.presence.Suspect(now, m, out)
		}
	}
	return out
}

// lookAsking repeats the question, and goes on when nobody had an answer.
func (s *Runs) lookAsking(now time.Duration, r *run, out []Effect) []Effect {
	if s.hearing.Calm(r.asked) >= holdersWithin {
		r.phase, r.asked, r.again = reading, now, now
		return s.store(r, Effect{Kind: GetOutcome, N: r.n}, out)
	}
	if now-r.again >= holdersEvery {
		r.again = now
		return append(out, s.whoHas(now, r, ""))
	}
	return out
}

// lookHeld finds the holder lost: gone, or in no list for the member timeout.
func (s *Runs) lookHeld(now time.Duration, r *run, out []Effect) []Effect {
	gone := s.presence.Gone(r.holder)
	if !gone && s.hearing.Calm(r.sign) < s.cfg.MemberTimeout {
		if s.hearing.Since(r.sign) >= listStands {
			return s.presence.Suspect(now, r.holder, out)
		}
		return out
	}
	if r.released && !r.spec.Once {
		return s.cutStream(r, out)
	}
	return s.find(now, r, out)
}

// voidTooLong reports whether a caller waits for what a record will say, and cannot wait any longer.
func (r *run) voidTooLong(now time.Duration) bool {
	waits := r.gaveUp == Deadline || r.gaveUp == Cancelled
	return r.phase == voiding && waits && now-r.stopped >= voidWithin
}

// lookStore tries a store again that gave no clear answer.
func (s *Runs) lookStore(now time.Duration, r *run, out []Effect) []Effect {
	if r.op != 0 && now-r.again < readEvery || now-r.again < silentAfter {
		return out
	}
	switch {
	case r.phase == voiding:
		return s.putVoid(now, r, out)
	case r.phase == reading && !r.spec.Once:
		r.again = now
		return s.store(r, Effect{Kind: GetOutcome, N: r.n}, out)
	default:
		return s.read(now, r, out)
	}
}

// lookChecking asks the member that the record names until it answers or is gone.
func (s *Runs) lookChecking(now time.Duration, r *run, out []Effect) []Effect {
	if s.presence.Gone(r.holder) {
		return s.lose(r, out)
	}
	if now-r.again >= pingEvery {
		r.again = now
		out = append(out, s.whoHas(now, r, r.holder))
		return s.presence.Suspect(now, r.holder, out)
	}
	return out
}

// serve tries a class again that was full or absent, and empties a line that is open.
func (s *Runs) serve(now time.Duration, l *line, out []Effect) []Effect {
	if l.length() == 0 {
		return out
	}
	each := drainEach
	if s.roomy(now, l) != "" || len(l.busy) == 0 {
		l.full = false
	}
	if l.full || l.absent > 0 {
		wait := time.Second
		if l.absent > 0 {
			wait = backoff(l.absent - 1)
		}
		if now-l.since < wait {
			return out
		}
		each, l.since = 1, now
	}
	for range each {
		if r := l.next(); r != nil {
			out = s.offer(now, r, s.roomy(now, l), out)
		}
	}
	return out
}

// restart repeats what an outage may have swallowed. Silence begins anew by itself, with hearing.
func (s *Runs) restart() {
	for _, r := range s.order {
		if r.op != 0 {
			r.op, r.again = 0, 0
		}
	}
}

// urgent reports whether members are asked who holds something, or an offer has had no sign for longer than one takes.
func (s *Runs) urgent(now time.Duration) bool {
	for _, r := range s.order {
		if r.phase == asking || r.phase == checking || r.phase == offered && now-r.sent >= 2*showAfter {
			return true
		}
	}
	return false
}
