package protocol

import "time"

// This file decides by the begun records of work that must not run twice, as its owner sees them. Record n says what
// became of the work under number n; n+1 may begin only where n is Void or NotRun and not the last.

// read reads the record of the run's number.
func (s *Runs) read(now time.Duration, r *run, out []Effect) []Effect {
	if r.phase != reading {
		r.asked = now
	}
	r.phase, r.again = reading, now
	return s.store(r, Effect{Kind: GetBegun, N: r.n}, out)
}

// store sends an effect on a record and waits for its result.
func (s *Runs) store(r *run, e Effect, out []Effect) []Effect {
	*s.ops++
	r.op = *s.ops
	e.Call, e.Op = r.spec.Call, r.op
	return append(out, e)
}

// void gives the work up: it creates the last record, unless no offer ever left.
func (s *Runs) void(now time.Duration, r *run, why Why, out []Effect) []Effect {
	r.gaveUp = why
	if r.phase == voiding {
		return out
	}
	r.stopped = now
	if !r.left && r.n <= max(r.spec.First, 1) {
		r.phase = over
		return append(out, r.wake(NotExecuted))
	}
	r.phase = voiding
	return s.putVoid(now, r, out)
}

func (s *Runs) putVoid(now time.Duration, r *run, out []Effect) []Effect {
	r.again = now
	return s.store(r, Effect{Kind: PutBegun, N: r.n, State: Void, Last: true, By: s.own, Until: r.spec.Until}, out)
}

// lose writes that the work began and that nobody has it any more.
func (s *Runs) lose(r *run, out []Effect) []Effect {
	r.phase = writing
	return s.store(r, Effect{Kind: SetBegun, N: r.n, State: Lost, Rev: r.rev, By: s.own, Until: r.spec.Until}, out)
}

// Stored takes the result of an effect on a begun record or a spilled outcome. It reports whether the effect was one of
// these.
func (s *Runs) Stored(now time.Duration, e Effect, st Stored, out []Effect) (bool, []Effect) {
	r := s.runs[e.Call]
	if r == nil || r.op != e.Op {
		return false, out
	}
	r.op = 0
	return true, s.goOn(now, r, e, st, out)
}

func (s *Runs) goOn(now time.Duration, r *run, e Effect, st Stored, out []Effect) []Effect {
	switch {
	case st.Result == Unclear || st.Result == No:
		return out // tick tries again
	case e.Kind == GetOutcome:
		return s.spilled(now, r, st, out)
	case e.Kind == PutBegun && st.Result == OK:
		return s.end(now, r, NotExecuted, st.Record, out)
	case e.Kind == SetBegun && st.Result == OK:
		return s.end(now, r, Unknown, st.Record, out)
	case e.Kind == GetBegun && st.Result == Missing && r.phase == voiding:
		return s.putVoid(now, r, out)
	case e.Kind == GetBegun && st.Result == Missing:
		return s.admit(now, r, out)
	case e.Kind == GetBegun:
		return s.decide(now, r, st.Record, out)
	}
	return s.store(r, Effect{Kind: GetBegun, N: r.n}, out) // it exists, or another revision does: see what is there
}

// decide goes by what the record says.
func (s *Runs) decide(now time.Duration, r *run, rec Record, out []Effect) []Effect {
	switch rec.State {
	case Done:
		return s.end(now, r, Ended, rec, out)
	case Lost:
		return s.end(now, r, Unknown, rec, out)
	case Void, NotRun:
		if rec.Last {
			return s.end(now, r, NotExecuted, rec, out)
		}
		if r.phase == voiding {
			r.n++
			return s.putVoid(now, r, out)
		}
		r.n++
		r.left = true // who wrote this record may have gone on to the next
		return s.read(now, r, out)
	}
	r.rev, r.holder = rec.Rev, rec.By
	s.presence.Watch(now, rec.By)
	if r.phase == voiding && (r.gaveUp == Deadline || r.gaveUp == Cancelled) {
		out = append(out, Effect{Kind: Cancel, Call: r.spec.Call, Group: r.spec.Class, To: rec.By, N: r.n})
		return s.end(now, r, Unknown, rec, out)
	}
	if r.phase != checking {
		r.asked = now
	}
	r.phase, r.again = checking, now
	return append(out, s.whoHas(now, r, rec.By))
}

// end tells the call what the records say.
func (s *Runs) end(now time.Duration, r *run, why Why, rec Record, out []Effect) []Effect {
	s.settle(now, r)
	if rec.By == s.own && rec.State != Begun {
		r.wrote = rec
	}
	if why == Ended && rec.By != "" {
		r.give(rec.By, r.n) // it keeps what the record holds
	}
	wake := r.wake(why)
	wake.Record = rec
	return append(out, wake)
}

// spilled takes what was found where members put outcomes that they cannot keep.
func (s *Runs) spilled(now time.Duration, r *run, st Stored, out []Effect) []Effect {
	switch {
	case st.Result == OK:
		return s.end(now, r, Ended, st.Record, s.cancelOthers(r, "", out))
	case r.phase == held: // a copy goes on
		return out
	}
	return s.admit(now, r, out)
}
