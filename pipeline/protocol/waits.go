package protocol

import "time"

// Waits reads the results of calls whose end is waited for here and may be stored elsewhere: after every outage and
// every readEvery. The answer that arrives by itself is the bus's; it calls Forget then.
type Waits struct {
	hearing *Hearing
	ops     *uint64
	calls   map[string]*wait
	order   []*wait
}

type wait struct {
	call string
	read time.Duration
	op   uint64
}

// Wait begins to wait for the end of a call; at once says that it may have ended already.
func (s *Waits) Wait(now time.Duration, call string, atOnce bool, out []Effect) []Effect {
	w := s.calls[call]
	if w == nil {
		w = &wait{call: call, read: now}
		s.calls[call] = w
		s.order = append(s.order, w)
	}
	if atOnce {
		return s.get(now, w, out)
	}
	return out
}

// Forget ends the wait.
func (s *Waits) Forget(call string) {
	if w := s.calls[call]; w != nil {
		delete(s.calls, call)
		w.call = "" // tick takes it out of the order
	}
}

func (s *Waits) get(now time.Duration, w *wait, out []Effect) []Effect {
	*s.ops++
	w.op, w.read = *s.ops, now
	return append(out, Effect{Kind: GetResult, Call: w.call, Op: w.op})
}

// Stored takes what was read. It reports whether the read was one of these.
func (s *Waits) Stored(e Effect, st Stored, out []Effect) (bool, []Effect) {
	w := s.calls[e.Call]
	if w == nil || w.op != e.Op {
		return false, out
	}
	w.op = 0
	if st.Result == OK {
		s.Forget(e.Call)
		out = append(out, Effect{Kind: Found, Call: e.Call, Record: st.Record})
	}
	return true, out
}

func (s *Waits) tick(now time.Duration, out []Effect) []Effect {
	if !s.hearing.up {
		return out
	}
	kept := s.order[:0]
	for _, w := range s.order {
		if w.call == "" {
			continue
		}
		kept = append(kept, w)
		if now-w.read >= readEvery {
			out = s.get(now, w, out)
		}
	}
	s.order = kept
	return out
}

func (s *Waits) restart() {
	for _, w := range s.order {
		w.read = 0
	}
}
