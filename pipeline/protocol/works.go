package protocol

import (
	"cmp"
	"slices"
	"time"
)

// Offered is an offer as a member reads it.
type Offered struct {
	Work
	Owner string
	Class string
	// Tenant is the call's: a member's queue is in turn between them.
	Tenant string
	Seq    uint64
	Once   bool
	First  uint64 // as in Target
	// Bound says that nobody goes on with the call if its owner dies.
	Bound bool
	Sent  time.Duration // by the owner's clock
	Until time.Duration // by the owner's clock
}

type workStep uint8

const (
	queued         workStep = iota + 1 // it waits for a slot
	before                             // of once work: the record of the number before is read
	creating                           // its record is being created
	taken                              // its record may be its own: it is read
	refusing                           // its record says begun, too late: "not run" is being written
	active                             // it runs
	writingOutcome                     // its outcome is being written into the record
	readingOutcome                     // somebody else wrote the record: that is the outcome
	spilling                           // its outcome is being put where owners find it
	kept                               // its outcome is kept until its owner confirms it
)

type work struct {
	offer   Offered
	until   time.Duration // by the own clock
	step    workStep
	created time.Duration // when the first creation was sent
	again   time.Duration
	kept    time.Duration // since when its outcome is
	tries   int
	nonce   uint64
	rev     uint64
	last    uint64 // the revision of the own last write of its record, once nothing follows; 0: none
	op      uint64
	state   State // of the outcome
	proof   bool
	bytes   int
	slot    bool
	cancel  bool // nobody wants it any more
	index   int
	place   place[*work] // in the queue
}

// Works holds the target work of a member: in its queues, running, and kept.
type Works struct {
	own      string
	cfg      Config
	presence *Presence
	hearing  *Hearing
	hands    *Hands
	ops      *uint64
	works    map[Work]*work
	order    []*work
	classes  map[string]*slots
	named    []*slots
	pools    map[string]*shared
	refused  map[string]refusal // by call
	recent   recent             // confirmed work
	bytes    int                // of kept outcomes
	swept    time.Duration
}

// refusal is what a member holds to that said "not mine", or was told to cancel: no earlier offer of the call is taken
// any more.
type refusal struct {
	owner string
	seq   uint64
	at    time.Duration
}

func newWorks(own string, cfg Config, p *Presence, h *Hearing, hands *Hands, ops *uint64) Works {
	return Works{own: own, cfg: cfg, presence: p, hearing: h, hands: hands, ops: ops,
		works: map[Work]*work{}, classes: map[string]*slots{}, refused: map[string]refusal{}}
}

// Holds reports whether the work is in hand or its outcome kept.
func (s *Works) Holds(w Work) bool { return s.works[w] != nil }

// Offered takes an offer: the work starts, waits in the queue, or is answered with Busy. Late and known ones are
// dropped, and a kept outcome is sent again.
func (s *Works) Offered(now time.Duration, f Offered, out []Effect) []Effect {
	if w := s.works[f.Work]; w != nil {
		return s.known(now, w, f, out)
	}
	c := s.classes[f.Class]
	until := s.presence.Here(f.Owner, f.Until)
	if c == nil || now >= until || s.recent.has(f.Work) || s.late(now, f) {
		return out
	}
	room := s.room(c)
	if room <= 1 { // whoever waits in line is to hear when there is room again
		c.wasFull, c.refused = true, now
	}
	if room <= 0 {
		return append(out, Effect{Kind: Busy, Call: f.Call, Group: f.Class, To: f.Owner, N: f.N, Seq: f.Seq,
			Free: 0, Waiting: int32(c.queue.length)})
	}
	w := &work{offer: f, until: until, index: len(s.order)}
	s.works[f.Work] = w
	s.order = append(s.order, w)
	s.hands.work(now, f.Owner, f.Work)
	if c.free() <= 0 {
		w.step = queued
		w.place.of = w
		c.queue.join(f.Tenant, &w.place)
		return out
	}
	return s.begin(now, c, w, out)
}

// late reports whether an offer is so old that its owner may have offered the work to somebody else meanwhile. What is
// read right after an outage or a stop may be old whatever it says.
func (s *Works) late(now time.Duration, f Offered) bool {
	if !s.hearing.Current() && !f.Once || now-s.presence.Here(f.Owner, f.Sent) > offerLate && !f.Once {
		return true
	}
	r, ok := s.refused[f.Call]
	switch {
	case !ok || f.Once:
		return false
	case r.owner == f.Owner:
		return f.Seq <= r.seq
	}
	return s.presence.Here(f.Owner, f.Sent) < r.at
}

// known answers an offer of work that is in hand: it belongs to whoever offered it last.
func (s *Works) known(now time.Duration, w *work, f Offered, out []Effect) []Effect {
	s.move(now, w, f.Owner)
	if w.step == kept {
		return append(out, s.outcome(w))
	}
	return out
}

func (s *Works) move(now time.Duration, w *work, owner string) {
	if w.offer.Owner != owner {
		s.hands.dropWork(w.offer.Owner, w.offer.Work)
		w.offer.Owner = owner
		s.hands.work(now, owner, w.offer.Work)
	}
}

func (s *Works) outcome(w *work) Effect {
	w.tries++
	return Effect{Kind: Outcome, Call: w.offer.Call, To: w.offer.Owner, N: w.offer.N, State: w.state, Yes: w.proof}
}

// begin takes a slot. Work that must not run twice needs its record first.
func (s *Works) begin(now time.Duration, c *slots, w *work, out []Effect) []Effect {
	w.slot = true
	c.used++
	c.with.used++
	switch {
	case !w.offer.Once:
		return s.start(w, out)
	case w.offer.N > max(w.offer.First, 1):
		return s.store(now, w, before, Effect{Kind: GetBegun, N: w.offer.N - 1}, out)
	}
	return s.create(now, w, out)
}

func (s *Works) start(w *work, out []Effect) []Effect {
	w.step = active
	return append(out, Effect{Kind: Start, Call: w.offer.Call, N: w.offer.N, Group: w.offer.Class, Once: w.offer.Once})
}

func (s *Works) store(now time.Duration, w *work, st workStep, e Effect, out []Effect) []Effect {
	*s.ops++
	w.step, w.op, w.again = st, *s.ops, now
	e.Call, e.Op = w.offer.Call, w.op
	return append(out, e)
}

// WhoHas is an owner's question who holds the work. Who answers no takes no earlier offer of it any more.
func (s *Works) WhoHas(now time.Duration, w Work, owner string, seq uint64, out []Effect) []Effect {
	has := s.works[w]
	answer := Effect{Kind: Has, Call: w.Call, To: owner, N: w.N, Yes: has != nil}
	if has == nil {
		s.refused[w.Call] = refusal{owner: owner, seq: seq, at: now}
		return append(out, answer)
	}
	s.move(now, has, owner)
	out = append(out, answer)
	if has.step == kept {
		out = append(out, s.outcome(has))
	}
	return out
}

// Ended says that the work has come to its end here. State is Done, or NotRun with the target's own proof that
// nothing happened; bytes is the size of what is kept until the owner confirms it.
func (s *Works) Ended(now time.Duration, w Work, st State, bytes int, out []Effect) []Effect {
	has := s.works[w]
	if has == nil || has.step != active {
		return out
	}
	out = s.leaveSlot(now, has, out)
	has.state, has.proof, has.bytes = st, st == NotRun, bytes
	if has.offer.Once {
		return s.write(now, has, writingOutcome, st, out)
	}
	return s.keep(now, has, out)
}

// keep sends the outcome and keeps it. Beyond the bound the oldest ones go to a bucket; those that a record holds need
// not be kept at all.
func (s *Works) keep(now time.Duration, w *work, out []Effect) []Effect {
	w.step, w.again, w.op, w.tries, w.kept = kept, now, 0, 0, now
	s.bytes += w.bytes
	out = append(out, s.outcome(w))
	if s.bytes <= s.cfg.KeepBytes {
		return out
	}
	var some []*work
	over := s.bytes - s.cfg.KeepBytes
	for _, o := range s.order {
		switch {
		case o.step == spilling:
			over -= o.bytes
		case o.step == kept && o.bytes > 0:
			some = append(some, o)
		}
	}
	slices.SortFunc(some, func(a, b *work) int { return cmp.Compare(a.kept, b.kept) })
	for _, o := range some {
		if over <= 0 {
			break
		}
		over -= o.bytes
		if o.last != 0 {
			out = s.drop(now, o, out)
		} else {
			out = s.store(now, o, spilling, Effect{Kind: PutOutcome, N: o.offer.N}, out)
		}
	}
	return out
}

// drop forgets work: it did not begin, or its outcome is needed no more.
func (s *Works) drop(now time.Duration, w *work, out []Effect) []Effect {
	if w.step == kept || w.step == spilling {
		s.bytes -= w.bytes
	}
	delete(s.works, w.offer.Work)
	last := len(s.order) - 1
	s.order[last].index = w.index
	s.order[w.index] = s.order[last]
	s.order = s.order[:last]
	s.hands.dropWork(w.offer.Owner, w.offer.Work)
	out = append(out, Effect{Kind: Drop, Call: w.offer.Call, N: w.offer.N})
	return s.leaveSlot(now, w, out)
}

// Confirmed says that the owner has ended the call. Late offers of the work are refused from now on.
func (s *Works) Confirmed(now time.Duration, w Work, out []Effect) []Effect {
	s.recent.add(now, w)
	has := s.works[w]
	if has == nil || has.step != kept && has.step != spilling {
		return out
	}
	return s.drop(now, has, s.expire(has, out))
}

// Cancelled says that nobody wants the work any more. What must not run twice and has begun goes on into its record.
func (s *Works) Cancelled(now time.Duration, w Work, out []Effect) []Effect {
	has := s.works[w]
	if has == nil {
		s.refused[w.Call] = refusal{at: now} // a late offer must not begin what was cancelled
		return out
	}
	switch has.step {
	case queued:
		s.unqueue(has)
		return s.drop(now, has, out)
	case active:
		out = append(out, Effect{Kind: Stop, Call: w.Call, N: w.N})
		if !has.offer.Once { // else its record takes what comes of it
			s.refused[w.Call] = refusal{at: now}
			return s.drop(now, has, out)
		}
	case before, creating, taken:
		has.cancel = true
	}
	return out
}

// unstarted drops repeatable work that waits: this process was stopped or cut off, and its owner has asked others.
func (s *Works) unstarted(now time.Duration, out []Effect) []Effect {
	for i := len(s.order) - 1; i >= 0; i-- {
		if w := s.order[i]; w.step == queued && !w.offer.Once {
			s.unqueue(w)
			out = s.drop(now, w, out)
		}
	}
	return out
}
