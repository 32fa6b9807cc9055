package protocol

import "time"

// tick repeats outcomes and stores, says what is free, and forgets what nobody will ask for any more.
func (s *Works) tick(now time.Duration, out []Effect) []Effect {
	for i := len(s.order) - 1; i >= 0; i-- {
		if i < len(s.order) {
			out = s.look(now, s.order[i], out)
		}
	}
	for _, c := range s.named {
		waited := c.refused > 0 && now-c.refused < freeFor
		if waited && s.room(c) > 0 && now-c.told >= time.Second {
			c.told = now
			out = append(out, Effect{Kind: Free, Group: c.class, Free: int32(s.room(c))})
		}
	}
	if now-s.swept >= rememberFor {
		s.swept = now
		for call, r := range s.refused {
			if now-r.at > rememberFor {
				delete(s.refused, call)
			}
		}
	}
	return out
}

// ownerGone reports whether nobody can want the work any more: its call was bound to an owner that is gone.
func (s *Works) ownerGone(w *work) bool { return w.offer.Bound && s.presence.Gone(w.offer.Owner) }

func (s *Works) look(now time.Duration, w *work, out []Effect) []Effect {
	ownerGone := s.ownerGone(w)
	switch w.step {
	case queued:
		if now >= w.until || ownerGone {
			s.unqueue(w)
			return s.drop(now, w, out)
		}
	case active:
		if ownerGone && !w.offer.Once {
			return s.Cancelled(now, w.offer.Work, out)
		}
	case kept:
		if ownerGone || now >= w.until+keepPast {
			return s.drop(now, w, s.expire(w, out))
		}
		if now-w.again >= backoff(w.tries+1) {
			w.again = now
			return append(out, s.outcome(w))
		}
	default:
		return s.retry(now, w, out)
	}
	return out
}

// retry repeats an effect on a store that gave no clear answer, or none at all.
func (s *Works) retry(now time.Duration, w *work, out []Effect) []Effect {
	if w.op != 0 && now-w.again < readEvery || now-w.again < backoff(w.tries) {
		return out
	}
	switch w.step {
	case before:
		return s.store(now, w, before, Effect{Kind: GetBegun, N: w.offer.N - 1}, out)
	case creating:
		return s.create(now, w, out)
	case taken:
		return s.store(now, w, taken, Effect{Kind: GetBegun, N: w.offer.N}, out)
	case refusing:
		return s.write(now, w, refusing, NotRun, out)
	case writingOutcome:
		return s.write(now, w, writingOutcome, w.state, out)
	case readingOutcome:
		return s.store(now, w, readingOutcome, Effect{Kind: GetBegun, N: w.offer.N}, out)
	default:
		return s.store(now, w, spilling, Effect{Kind: PutOutcome, N: w.offer.N}, out)
	}
}

// restart sends everything again that an outage may have swallowed: stores, and kept outcomes.
func (s *Works) restart() {
	for _, w := range s.order {
		w.tries = 0
		if w.op != 0 || w.step == kept {
			w.op, w.again = 0, 0
		}
	}
}
