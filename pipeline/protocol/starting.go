package protocol

import "time"

// This file decides by the begun records of work that must not run twice, as the member sees them that does it.

// create claims the record of the work's number.
func (s *Works) create(now time.Duration, w *work, out []Effect) []Effect {
	if w.nonce == 0 {
		w.created = now
		w.nonce = *s.ops + 1
	}
	return s.store(now, w, creating,
		Effect{Kind: PutBegun, N: w.offer.N, State: Begun, By: s.own, Nonce: w.nonce, Until: w.until}, out)
}

// write writes the record by the revision that this process created.
func (s *Works) write(now time.Duration, w *work, st workStep, state State, out []Effect) []Effect {
	e := Effect{Kind: SetBegun, N: w.offer.N, State: state, Rev: w.rev, By: s.own, Nonce: w.nonce, Until: w.until}
	return s.store(now, w, st, e, out)
}

// Stored takes the result of an effect on a store.
func (s *Works) Stored(now time.Duration, e Effect, st Stored, out []Effect) []Effect {
	w := s.byOp(e)
	if w == nil {
		return out
	}
	w.op = 0
	if st.Result == Unclear || st.Result == No {
		w.tries++
		if w.step == creating && st.Result == Unclear && now-w.created <= beginWithin { // there is time to look
			return s.store(now, w, taken, Effect{Kind: GetBegun, N: w.offer.N}, out)
		}
		return out // tick tries again
	}
	switch w.step {
	case before:
		return s.before(now, w, st, out)
	case creating:
		if st.Result == OK {
			return s.created(now, w, st.Record.Rev, out)
		}
		return s.store(now, w, taken, Effect{Kind: GetBegun, N: w.offer.N}, out)
	case taken:
		return s.taken(now, w, st, out)
	case refusing:
		if st.Result != OK {
			return s.drop(now, w, out) // somebody wrote over it: they know what it says
		}
		w.state, w.last = NotRun, st.Record.Rev
		out = s.leaveSlot(now, w, out)
		return s.keep(now, w, out)
	case writingOutcome:
		if st.Result != OK {
			return s.store(now, w, readingOutcome, Effect{Kind: GetBegun, N: w.offer.N}, out)
		}
		w.last = st.Record.Rev
		return s.keep(now, w, out)
	case readingOutcome:
		return s.readBack(now, w, st, out)
	case spilling:
		return s.drop(now, w, append(out, s.outcome(w))) // its owner need not look for it, if it hears this
	}
	return out
}

// expire lets the record go of work that nobody will ask for any more, if this process wrote it last. Others, whose
// writers died, are swept away.
func (s *Works) expire(w *work, out []Effect) []Effect {
	if w.last == 0 {
		return out
	}
	return append(out, Effect{Kind: Expire, Call: w.offer.Call, N: w.offer.N, Group: w.offer.Tenant, State: w.state,
		By: s.own, Nonce: w.nonce, Rev: w.last, Until: w.until})
}

func (s *Works) byOp(e Effect) *work {
	for n := e.N; ; n++ { // the record before the work's own number is read too
		if w := s.works[Work{e.Call, n}]; w != nil && w.op == e.Op {
			return w
		}
		if n > e.N {
			return nil
		}
	}
}

// before goes on only where nothing ran under the number before, and where numbers go on.
func (s *Works) before(now time.Duration, w *work, st Stored, out []Effect) []Effect {
	r := st.Record
	if st.Result == OK && !r.Last && (r.State == Void || r.State == NotRun) {
		return s.create(now, w, out)
	}
	return s.drop(now, w, out)
}

// created starts the work, unless so much time has passed that its owner has given up.
func (s *Works) created(now time.Duration, w *work, rev uint64, out []Effect) []Effect {
	w.rev = rev
	if w.cancel || now-w.created > beginWithin || now >= w.until {
		return s.write(now, w, refusing, NotRun, out)
	}
	return s.start(w, out)
}

// taken decides after a creation that met a record: only the own nonce counts.
func (s *Works) taken(now time.Duration, w *work, st Stored, out []Effect) []Effect {
	switch {
	case st.Result == Missing:
		return s.create(now, w, out)
	case st.Record.By == s.own && st.Record.Nonce == w.nonce && st.Record.State == Begun:
		return s.created(now, w, st.Record.Rev, out)
	}
	return s.drop(now, w, out)
}

// readBack takes what stands in the record instead of the own outcome.
func (s *Works) readBack(now time.Duration, w *work, st Stored, out []Effect) []Effect {
	switch r := st.Record; {
	case st.Result == Missing:
		return s.drop(now, w, out)
	case r.State == Begun: // an earlier write of the outcome was not clear and has not come through
		w.rev = r.Rev
		return s.write(now, w, writingOutcome, w.state, out)
	case r.By != s.own:
		w.state, w.proof = r.State, false
	default:
		w.last = r.Rev
	}
	return s.keep(now, w, out)
}
