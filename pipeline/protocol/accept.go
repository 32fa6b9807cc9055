package protocol

import (
	"slices"
	"time"
)

// Request is a call that somebody wants stored.
type Request struct {
	Call  string
	Key   string // the idempotency key, "" for none
	Print uint64 // the fingerprint of what is asked under the key
	Until time.Duration
	// Waits says that the caller waits for the end, not only for the acceptance.
	Waits bool
}

type acceptStep uint8

const (
	keying     acceptStep = iota + 1 // the key's record is being created
	putting                          // the call is being put into the queue
	attached                         // another call has the key
	lookingUp                        // does it have a result?
	lookingFor                       // does it have an owner?
	reviving                         // neither: it is put into the queue again
)

type accept struct {
	request Request
	call    string // the call that ends; of an attached request it is the key's
	step    acceptStep
	began   time.Duration
	again   time.Duration
	looked  time.Duration
	copies  int
	tries   int
	done    bool
	op      uint64
}

// Accepts brings calls into the queue. "Not stored" is said only where that is proved.
type Accepts struct {
	cfg     Config
	hearing *Hearing
	ops     *uint64
	order   []*accept
	byOp    map[uint64]*accept
}

// Accept begins to store a call. Receipt says what came of it: Accepted, Refused, AskAgain, Unknown, Mismatch, or
// Attached; its Call is always the request's.
func (s *Accepts) Accept(now time.Duration, r Request, out []Effect) []Effect {
	a := &accept{request: r, call: r.Call, began: now}
	s.order = append(s.order, a)
	if r.Key != "" {
		return s.key(now, a, out)
	}
	return s.put(now, a, out)
}

func (s *Accepts) store(now time.Duration, a *accept, st acceptStep, e Effect, out []Effect) []Effect {
	delete(s.byOp, a.op)
	*s.ops++
	a.step, a.op, a.again = st, *s.ops, now
	s.byOp[a.op] = a
	e.Op = a.op
	return append(out, e)
}

func (s *Accepts) key(now time.Duration, a *accept, out []Effect) []Effect {
	return s.store(now, a, keying,
		Effect{Kind: PutKey, Call: a.call, Group: a.request.Key, Nonce: a.request.Print}, out)
}

func (s *Accepts) put(now time.Duration, a *accept, out []Effect) []Effect {
	a.copies++
	return s.store(now, a, putting, Effect{Kind: PutCall, Call: a.call, Again: a.copies > 1}, out)
}

// receipt tells the caller and, unless more is to be done for the call, forgets it.
func (s *Accepts) receipt(a *accept, why Why, out []Effect) []Effect {
	a.done = why != Attached
	return append(out, Effect{Kind: Receipt, Call: a.request.Call, Why: why, Record: Record{Call: a.call}})
}

// Stored takes the result of an effect. It reports whether the effect was one of these.
func (s *Accepts) Stored(now time.Duration, e Effect, st Stored, out []Effect) (bool, []Effect) {
	a := s.byOp[e.Op]
	if a == nil {
		return false, out
	}
	delete(s.byOp, e.Op)
	if a.op = 0; a.done {
		return true, out
	}
	switch a.step {
	case keying:
		return true, s.keyed(now, a, st, out)
	case putting:
		return true, s.stored(now, a, st, out)
	case lookingUp:
		if st.Result == OK {
			a.done = true // the wait for its end finds it
			return true, out
		}
		if st.Result == Missing {
			a.step, a.looked, a.again = lookingFor, now, now
			return true, append(out, Effect{Kind: WhoOwns, Call: a.call})
		}
	case reviving:
		if st.Result == OK {
			s.rest(now, a)
		}
	}
	return true, out
}

func (s *Accepts) keyed(now time.Duration, a *accept, st Stored, out []Effect) []Effect {
	switch {
	case st.Result == OK, st.Result == Exists && st.Record.Call == a.call:
		return s.put(now, a, out)
	case st.Result == No && a.tries == 0:
		return s.receipt(a, Refused, out)
	case st.Result == Exists && st.Record.Print != a.request.Print:
		return s.receipt(a, Mismatch, out)
	case st.Result == Exists:
		a.call, a.step, a.looked = st.Record.Call, attached, now
		return s.receipt(a, Attached, out)
	}
	a.tries++ // not clear: tick tries again
	return out
}

func (s *Accepts) stored(now time.Duration, a *accept, st Stored, out []Effect) []Effect {
	switch {
	case st.Result == OK:
		return s.receipt(a, Accepted, out)
	case st.Result == No && a.copies == 1 && (a.request.Key == "" || now-a.began < s.cfg.AckWait/2):
		// The only copy was refused, and nobody can have attached to the key for so long that they put it there.
		if a.request.Key != "" {
			out = append(out, Effect{Kind: FreeKey, Call: a.call, Group: a.request.Key})
		}
		return s.receipt(a, Refused, out)
	}
	a.tries++
	return out
}

// Owned says that somebody has the call.
func (s *Accepts) Owned(now time.Duration, call string) {
	for _, a := range s.order {
		if a.call == call && a.step == lookingFor {
			s.rest(now, a)
		}
	}
}

// rest leaves an attached request alone for another ack wait, or for good where its caller does not wait.
func (s *Accepts) rest(now time.Duration, a *accept) {
	a.step, a.looked, a.done = attached, now, a.done || !a.request.Waits
}

// Forget says that whoever handed the request in does not wait any more, for the call that has its key.
func (s *Accepts) Forget(request string) {
	for _, a := range s.order {
		a.done = a.done || a.request.Call == request && a.step >= attached
	}
}

// Ended says that the end of a call is known here, or that it is parked: it need not be looked for.
func (s *Accepts) Ended(call string) {
	for _, a := range s.order {
		a.done = a.done || a.call == call && a.step >= attached
	}
}

func (s *Accepts) tick(now time.Duration, out []Effect) []Effect {
	for _, a := range s.order {
		if !a.done {
			out = s.look(now, a, out)
		}
	}
	s.order = slices.DeleteFunc(s.order, func(a *accept) bool {
		if a.done {
			delete(s.byOp, a.op)
		}
		return a.done
	})
	return out
}

func (s *Accepts) look(now time.Duration, a *accept, out []Effect) []Effect {
	late := now-a.began >= acceptWithin
	if a.step >= attached && now >= a.request.Until {
		a.done = true
		return out
	}
	switch a.step {
	case keying, putting:
		switch {
		case late && a.request.Key != "":
			return s.receipt(a, AskAgain, out)
		case late && !a.request.Waits, now >= a.request.Until:
			return s.receipt(a, Unknown, out)
		}
	case attached:
		if s.hearing.up && now-a.looked >= s.cfg.AckWait {
			return s.store(now, a, lookingUp, Effect{Kind: GetResult, Call: a.call}, out)
		}
		return out
	case lookingFor:
		if s.hearing.Calm(a.looked) >= ownersWithin {
			return s.revive(now, a, out)
		}
		if now-a.again >= holdersEvery && s.hearing.up {
			a.again = now
			return append(out, Effect{Kind: WhoOwns, Call: a.call})
		}
		return out
	}
	return s.retry(now, a, out)
}

func (s *Accepts) revive(now time.Duration, a *accept, out []Effect) []Effect {
	return s.store(now, a, reviving, Effect{Kind: PutCall, Call: a.call, Again: true}, out)
}

func (s *Accepts) retry(now time.Duration, a *accept, out []Effect) []Effect {
	if !s.hearing.up || a.op != 0 && now-a.again < readEvery || now-a.again < backoff(a.tries) {
		return out
	}
	switch a.step {
	case keying:
		return s.key(now, a, out)
	case putting:
		return s.put(now, a, out)
	case lookingUp:
		return s.store(now, a, lookingUp, Effect{Kind: GetResult, Call: a.call}, out)
	default:
		return s.revive(now, a, out)
	}
}

func (s *Accepts) restart() {
	clear(s.byOp)
	for _, a := range s.order {
		a.op, a.again = 0, 0
	}
}

// urgent reports whether owners are asked for a call.
func (s *Accepts) urgent() bool {
	return slices.ContainsFunc(s.order, func(a *accept) bool { return a.step == lookingFor })
}
