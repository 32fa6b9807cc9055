package protocol

import "time"

// Busy is a member's answer to an offer that it has no room for.
func (s *Runs) Busy(now time.Duration, w Work, seq uint64, member string, out []Effect) []Effect {
	s.presence.Sign(now, member)
	r := s.runs[w.Call]
	if r == nil || r.n != w.N || r.seq != seq || r.phase != offered {
		return out
	}
	l := s.line(r.spec.Class)
	l.busy[member] = now
	if to := s.roomy(now, l); to != "" && !s.doubts[r.spec.Call] {
		return s.offer(now, r, to, out)
	}
	l.close(now)
	l.full = true
	return s.back(now, r, l, out)
}

// back puts a run that was offered and not taken into the line again, where it stood.
func (s *Runs) back(now time.Duration, r *run, l *line, out []Effect) []Effect {
	switch {
	case s.doubts[r.spec.Call]:
		return s.admit(now, r, out)
	case now-r.joined > s.cfg.MaxQueueWait:
		return s.refuse(now, r, out)
	}
	s.in(r)
	r.phase = lined
	l.join(r)
	return out
}

// Free says that a member has room: work in line is offered to it, at most this owner's share.
func (s *Runs) Free(now time.Duration, class, member string, share int, out []Effect) []Effect {
	s.presence.Sign(now, member)
	l := s.line(class)
	for range share {
		r := l.next()
		if r == nil {
			l.full, l.absent = false, 0
			delete(l.busy, member)
			return out
		}
		out = s.offer(now, r, member, out)
	}
	if share > 0 {
		l.busy[member] = now // that was its room
	}
	return out
}

// Has is a member's answer to WhoHas.
func (s *Runs) Has(now time.Duration, w Work, member string, yes bool, out []Effect) []Effect {
	s.presence.Sign(now, member)
	r := s.runs[w.Call]
	switch {
	case r == nil || r.n != w.N || !r.waits():
		return out
	case yes:
		return s.show(now, r, member, false, out)
	case r.phase == checking && member == r.holder:
		return s.lose(r, out)
	case r.phase == held && member == r.holder && r.sign < now:
		return s.find(now, r, out)
	}
	return out
}

// show takes a sign of the member that has the work. Where two have it, the one that was heard first keeps it, unless
// it is silent or the caller has read from the other; the work is taken back from the one that does not. A copy gives
// way to whoever had the work before it, once.
func (s *Runs) show(now time.Duration, r *run, member string, read bool, out []Effect) []Effect {
	if r.phase == held && r.holder != member && !r.spec.Once {
		other := member
		if read || (now-r.sign >= listStands || r.copied) && !r.released {
			other = r.holder
		}
		r.copied = false
		out = append(out, Effect{Kind: Cancel, Call: r.spec.Call, Group: r.spec.Class, To: other, N: r.n})
		if other == member {
			return out
		}
	}
	r.phase, r.holder, r.sign, r.op = held, member, now, 0
	return out
}

// shown takes a member's list.
func (s *Runs) shown(now time.Duration, member string, list []Work, out []Effect) []Effect {
	for _, w := range list {
		if r := s.runs[w.Call]; r != nil && r.n == w.N && r.waits() {
			out = s.show(now, r, member, false, out)
		}
	}
	for _, r := range s.order {
		if r.phase == held && r.holder == member && r.sign < now {
			out = s.find(now, r, out) // it was in the list before and is not any more, and no outcome came
		}
	}
	return out
}

// Chunk is a sign of the work; released says that a part of the reply was passed on to the caller from it, so that
// nothing else may stand in for it. Chunks of one member only are passed on.
func (s *Runs) Chunk(now time.Duration, w Work, member string, released bool, out []Effect) []Effect {
	s.presence.Sign(now, member)
	r := s.runs[w.Call]
	if r == nil || r.n != w.N || !r.waits() {
		return out
	}
	r.released = r.released || released
	return s.show(now, r, member, released, out)
}

// Outcome is a member's outcome. It reports whether this is what the call waits for; the state is Done, NotRun or
// Lost. proof says that a NotRun carries the fault that the call gets: the target itself said that it did nothing.
func (s *Runs) Outcome(now time.Duration, w Work, member string, st State, proof bool, out []Effect) (bool, []Effect) {
	s.presence.Sign(now, member)
	r := s.runs[w.Call]
	if r == nil {
		if s.recent.has(Work{Call: w.Call}) {
			out = append(out, Effect{Kind: Confirm, Call: w.Call, To: member, N: w.N})
		}
		return false, out
	}
	r.give(member, w.N)
	switch {
	case r.phase == over || r.phase == voiding || r.n != w.N:
		return false, out
	case st == NotRun && !proof:
		r.n, r.left = r.n+1, false
		return false, s.admit(now, r, out)
	}
	out = s.cancelOthers(r, member, out)
	s.settle(now, r)
	return true, out
}

// cancelOthers takes the work back from whoever else may have it.
func (s *Runs) cancelOthers(r *run, member string, out []Effect) []Effect {
	if r.spec.Once || r.holder == member || r.holder == "" && r.seq <= 1 {
		return out
	}
	return append(out, Effect{Kind: Cancel, Call: r.spec.Call, Group: r.spec.Class, To: r.holder, N: r.n})
}

func (r *run) give(member string, n uint64) {
	for _, g := range r.givers {
		if g.member == member && g.n == n {
			return
		}
	}
	r.givers = append(r.givers, giver{member, n})
}
