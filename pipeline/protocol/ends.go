package protocol

import "time"

// End says how a stored call ends: the bus holds the result. It is stored before it is told, and the first one that
// is stored is the call's end, whoever stored it. A call that nobody stored ends at once, with Runs.Ended.
func (s *Deliveries) End(now time.Duration, call string, until time.Duration, out []Effect) []Effect {
	d := s.calls[call]
	if d == nil || d.step == ending || d.step == readingEnd || d.step == acking {
		return out
	}
	d.doubt, d.answers, d.until, d.patience = false, true, until, max(until, now+endWithin)
	return s.store(now, d, ending, Effect{Kind: PutResult}, out)
}

// Ending reports whether the end of the call is still to be stored.
func (s *Deliveries) Ending(call string) bool {
	d := s.calls[call]
	return d != nil && (d.step == ending || d.step == readingEnd)
}

// Park stores the hold of a call, which may have been a bound one until now; then the queue forgets it.
func (s *Deliveries) Park(now time.Duration, call string, out []Effect) []Effect {
	d := s.calls[call]
	if d == nil {
		d = s.add(call)
	}
	return s.store(now, d, parking, Effect{Kind: PutHeld, N: d.generation}, out)
}

// HandBack puts a call into the queue again: this process leaves. Its next owner begins as after a death, but the
// delivery counts from one, so that restarts are not taken for poison.
func (s *Deliveries) HandBack(now time.Duration, call string, out []Effect) []Effect {
	d := s.calls[call]
	if d == nil || d.step != running && !d.doubt {
		return out
	}
	s.runs.Leave(call)
	if d.doubt {
		return s.yield(now, d, out) // the queue has it already, or delivers it again
	}
	return s.putAgain(now, d, out)
}

func (s *Deliveries) putAgain(now time.Duration, d *durable, out []Effect) []Effect {
	return s.store(now, d, handing, Effect{Kind: PutCall, N: d.generation + 1, Again: true}, out)
}

// storedEnd goes on after the stores that take a call away from this process.
func (s *Deliveries) storedEnd(now time.Duration, d *durable, st Stored, out []Effect) []Effect {
	switch d.step {
	case ending:
		if st.Result == Exists {
			return s.store(now, d, readingEnd, Effect{Kind: GetResult}, out)
		}
		return s.tell(now, d, st.Record, out)
	case readingEnd:
		if st.Result == Missing {
			return s.store(now, d, ending, Effect{Kind: PutResult}, out)
		}
		return s.tell(now, d, st.Record, out)
	case parking, handing:
		return s.left(now, d, out)
	case acking:
		return s.next(now, s.leave(d), out)
	}
	return out
}

// left says that the call is stored for whoever goes on with it.
func (s *Deliveries) left(now time.Duration, d *durable, out []Effect) []Effect {
	switch d.step {
	case parking:
		s.runs.Leave(d.call)
		out = append(s.dropMarks(d, out), Effect{Kind: Wake, Call: d.call, Why: Parked})
	case handing:
		out = append(out, Effect{Kind: Wake, Call: d.call, Why: HandedBack})
	default:
		return out
	}
	d.elsewhere = true
	return s.ack(now, d, out)
}

// tell answers with what is stored. Yes says that it may still go to the caller's inbox.
func (s *Deliveries) tell(now time.Duration, d *durable, rec Record, out []Effect) []Effect {
	out = append(out, Effect{Kind: Answer, Call: d.call, Record: rec, Yes: now < d.until})
	out = s.runs.Ended(now, d.call, out)
	return s.ack(now, d, out)
}

func (s *Deliveries) ack(now time.Duration, d *durable, out []Effect) []Effect {
	if !d.stored {
		return s.next(now, s.leave(d), out)
	}
	return s.store(now, d, acking, Effect{Kind: Ack, N: d.generation}, out)
}

// tick marks what is in hand, finds out whose a call is, and tries stores again.
func (s *Deliveries) tick(now time.Duration, out []Effect) []Effect {
	if !s.hearing.up {
		for _, d := range s.order {
			out = s.lateEnd(now, d, out)
		}
		return out
	}
	for i := len(s.order) - 1; i >= 0; i-- {
		if i < len(s.order) {
			out = s.look(now, s.order[i], out)
		}
	}
	return out
}

func (s *Deliveries) look(now time.Duration, d *durable, out []Effect) []Effect {
	if d.stored && d.step != acking && now-d.sentMark >= s.cfg.AckWait/3 {
		out = s.progress(now, d, out)
	}
	switch d.step {
	case running:
		if d.stored && !s.certain(now, d) {
			out = s.runs.doubt(now, d.call, true, out)
			return s.remark(now, d, out)
		}
	case remarking:
		if now-d.sentMark >= time.Second {
			return s.progress(now, d, out)
		}
	case findingOwner:
		if s.hearing.Calm(d.asked) >= ownersWithin {
			return s.nobody(now, d, out)
		}
		if now-d.again >= holdersEvery {
			d.again = now
			return append(out, Effect{Kind: WhoOwns, Call: d.call, Seq: d.delivery})
		}
	case queuedAlone:
	default:
		out = s.lateEnd(now, d, out)
		return s.retry(now, d, out)
	}
	return out
}

// lateEnd tells whoever waits that the outcome is not known, when the end could not be stored in time.
func (s *Deliveries) lateEnd(now time.Duration, d *durable, out []Effect) []Effect {
	if d.answers && !d.unsure && (d.step == ending || d.step == readingEnd) && now >= d.patience {
		d.unsure = true
		out = append(out, Effect{Kind: Unsure, Call: d.call})
	}
	return out
}

// retry repeats the effect of a step whose store gave no clear answer, or none at all.
func (s *Deliveries) retry(now time.Duration, d *durable, out []Effect) []Effect {
	if d.op != 0 && now-d.again < readEvery || now-d.again < backoff(d.tries) {
		return out
	}
	switch d.step {
	case readingResult, readingEnd:
		return s.store(now, d, d.step, Effect{Kind: GetResult}, out)
	case readingHeld:
		return s.store(now, d, d.step, Effect{Kind: GetHeld, N: d.generation}, out)
	case marking:
		return s.store(now, d, d.step, Effect{Kind: PutMark, N: d.mark}, out)
	case parking:
		return s.store(now, d, d.step, Effect{Kind: PutHeld, N: d.generation}, out)
	case handing:
		return s.putAgain(now, d, out)
	case ending:
		return s.store(now, d, d.step, Effect{Kind: PutResult}, out)
	case acking:
		if now-d.asked > 2*s.cfg.AckWait {
			return s.next(now, s.leave(d), out) // a later delivery finds the result
		}
		return s.store(now, d, d.step, Effect{Kind: Ack, N: d.generation}, out)
	}
	return out
}

// restart repeats at once what an outage may have swallowed.
func (s *Deliveries) restart() {
	for _, d := range s.order {
		d.op, d.again, d.tries = 0, 0, 0
	}
}
