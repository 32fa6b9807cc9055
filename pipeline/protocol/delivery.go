package protocol

import (
	"slices"
	"time"
)

// step is where a delivered call stands in this process.
type step uint8

const (
	readingResult step = iota + 1 // has it ended already?
	readingHeld                   // is this generation parked?
	findingOwner                  // the owners are asked who has it
	marking                       // a poison mark is stored before it may run
	queuedAlone                   // it waits until another suspicious call has left
	running                       // this process owns it
	remarking                     // in doubt: a mark first, so that it is delivered to nobody else meanwhile
	parking                       // the record of its hold is being created
	handing                       // it is being put into the queue again
	ending                        // its result is being stored
	readingEnd                    // somebody else stored a result first: that one is told
	acking                        // it has ended here; the queue is being told
)

type durable struct {
	call       string
	generation uint64
	delivery   uint64 // the highest count that was delivered here
	step       step
	doubt      bool          // it was running here, and others may have it by now
	parks      bool          // it is to be parked once that is known
	lapsed     bool          // it did not run here yet, and others may have got it since it was looked up
	got        time.Duration // its delivery, or the last look-up
	marked     time.Duration // sending of the last mark that was acknowledged
	sentMark   time.Duration
	asked      time.Duration // beginning of the step
	again      time.Duration // last effect of the step
	tries      int
	mark       uint64
	alone      bool
	only       bool // nobody else can have its generation, if the queue has not given it to them
	copy       bool // somebody put it into the queue once more, as nobody seemed to have it
	stored     bool // it is in the queue: a bound call that holds is not
	until      time.Duration
	patience   time.Duration // until when whoever waits may wait for the end to be stored
	unsure     bool          // whoever waits has heard that the outcome is not known
	elsewhere  bool          // parked or handed back: it is in stores for whoever goes on with it
	answers    bool          // the end is still to be told from here
	op         uint64
	index      int
}

// Deliveries holds the stored calls that this process owns or is about to own.
type Deliveries struct {
	cfg     Config
	hearing *Hearing
	ops     *uint64
	runs    *Runs
	calls   map[string]*durable
	order   []*durable
	alone   string   // the suspicious call that runs
	waiting []string // suspicious calls that wait for it
}

func newDeliveries(cfg Config, h *Hearing, ops *uint64, runs *Runs) Deliveries {
	return Deliveries{cfg: cfg, hearing: h, ops: ops, runs: runs, calls: map[string]*durable{}}
}

// Delivery is a message of the work queue.
type Delivery struct {
	Call       string
	Generation uint64
	Count      uint64 // 1 for the first delivery
	// Again is the mark of a message that may be a second copy, or follow a generation that others may still have.
	Again bool
	Until time.Duration // the call's deadline
	// Old says that the message may have waited in this process for long, so that others may have the call by now.
	Old bool
}

// Delivered takes a message. A first delivery runs at once; whatever may be somebody else's is looked up first.
func (s *Deliveries) Delivered(now time.Duration, m Delivery, out []Effect) []Effect {
	if d := s.calls[m.Call]; d != nil && m.Generation > d.generation && d.leaves() {
		out = s.left(now, d, out) // it came back before the store answered: the queue has it
		if s.calls[m.Call] == d {
			out = s.next(now, s.leave(d), out)
		}
	}
	if d := s.calls[m.Call]; d != nil {
		d.delivery, d.generation = max(d.delivery, m.Count), max(d.generation, m.Generation)
		if d.step == acking {
			return s.ack(now, d, out)
		}
		d.stored = true
		return s.progress(now, d, out)
	}
	d := s.add(m.Call)
	d.generation, d.delivery, d.until, d.stored = m.Generation, m.Count, m.Until, true
	d.copy, d.sentMark, d.got = m.Again && m.Generation == 0, now, now
	if !s.hearing.Current() || m.Count > 1 || m.Again || m.Old {
		out = s.progress(now, d, out)
		return s.readResult(now, d, out)
	}
	d.marked = now
	if m.Generation > 0 { // it was held: the records say that it has neither ended nor been parked once more
		d.only = true
		return s.readResult(now, d, out)
	}
	return s.run(d, true, 0, out)
}

// leaves reports whether this process is done with the call's generation, and the next one is another matter.
func (d *durable) leaves() bool { return d.step == parking || d.step == handing || d.step == acking }

func (s *Deliveries) add(call string) *durable {
	d := &durable{call: call, index: len(s.order)}
	s.calls[call] = d
	s.order = append(s.order, d)
	return d
}

func (s *Deliveries) forget(d *durable) {
	delete(s.calls, d.call)
	last := len(s.order) - 1
	s.order[last].index = d.index
	s.order[d.index] = s.order[last]
	s.order = s.order[:last]
	s.waiting = slices.DeleteFunc(s.waiting, func(call string) bool { return call == d.call })
}

// store sends an effect on a store and waits for its result.
func (s *Deliveries) store(now time.Duration, d *durable, st step, e Effect, out []Effect) []Effect {
	*s.ops++
	if d.step != st {
		d.asked, d.tries = now, 0
	}
	d.step, d.op, d.again = st, *s.ops, now
	e.Call, e.Op = d.call, d.op
	return append(out, e)
}

func (s *Deliveries) readResult(now time.Duration, d *durable, out []Effect) []Effect {
	return s.store(now, d, readingResult, Effect{Kind: GetResult}, out)
}

// progress marks the call, so that the queue delivers it to nobody else. The sending counts, not the acknowledgement.
func (s *Deliveries) progress(now time.Duration, d *durable, out []Effect) []Effect {
	d.sentMark = now
	return append(out, Effect{Kind: InProgress, Call: d.call, At: now})
}

// run makes this process the owner.
func (s *Deliveries) run(d *durable, fresh bool, why Why, out []Effect) []Effect {
	d.step, d.op = running, 0
	return append(out, Effect{Kind: Run, Call: d.call, N: d.generation, Alone: d.alone, Fresh: fresh, Why: why})
}

// certain reports whether the queue cannot have given the call to anybody else. That is less than the ack wait, because
// it is looked at once in a while only; and more than the time between two marks, else no owner were ever certain.
func (s *Deliveries) certain(now time.Duration, d *durable) bool {
	return d.marked > 0 && !s.late(now, d.marked)
}

func (s *Deliveries) late(now, marked time.Duration) bool {
	return now-marked >= s.cfg.AckWait-min(time.Second, s.cfg.AckWait/4)
}

// urgent reports whether other owners are asked for a call.
func (s *Deliveries) urgent() bool {
	return slices.ContainsFunc(s.order, func(d *durable) bool { return d.step == findingOwner })
}

// Owns reports whether this process owns the call, or is ending it.
func (s *Deliveries) Owns(call string) bool {
	d := s.calls[call]
	return d != nil && (d.doubt || d.step >= running)
}

// WhoOwns is another process's question who has the call; seq is the delivery that made it ask. A call that is being
// put into the queue again is not this process's any more: its next owner may ask before the store has answered here.
func (s *Deliveries) WhoOwns(now time.Duration, call, asker string, seq uint64, out []Effect) []Effect {
	d := s.calls[call]
	if d == nil || d.elsewhere || d.step == handing {
		return out
	}
	mine := d.doubt || d.step >= running
	if !mine && seq > d.delivery {
		return s.next(now, s.leave(d), out) // the later delivery counts
	}
	yes := mine && !d.doubt && (!d.stored || s.certain(now, d))
	if yes {
		out = s.progress(now, d, out)
	}
	return append(out, Effect{Kind: Owns, Call: call, To: asker, Seq: d.delivery, Yes: yes})
}

// Claim is an owner's answer to WhoOwns: the delivery under which it has the call, and whether it is certain that
// nobody else can have it.
type Claim struct {
	Call    string
	Owner   string
	Seq     uint64
	Certain bool
}

// Owned takes the claim of another owner. Between two that are not certain, the later delivery counts.
func (s *Deliveries) Owned(now time.Duration, own string, c Claim, out []Effect) []Effect {
	d := s.calls[c.Call]
	switch {
	case d == nil || d.step >= running && !d.doubt:
		return out
	case !c.Certain && (c.Seq < d.delivery || c.Seq == d.delivery && c.Owner > own):
		return out
	}
	return s.yield(now, d, out)
}

// yield leaves the call to another owner or to the result that is stored.
func (s *Deliveries) yield(now time.Duration, d *durable, out []Effect) []Effect {
	if d.doubt {
		s.runs.Leave(d.call)
		out = append(out, Effect{Kind: Wake, Call: d.call, Why: Yielded})
	}
	return s.next(now, s.leave(d), out)
}

// leave forgets the call and reports whether it was the one that ran alone.
func (s *Deliveries) leave(d *durable) bool {
	s.forget(d)
	if s.alone == d.call {
		s.alone = ""
		return true
	}
	return false
}

// next lets the next suspicious call run, unless somebody else has taken or ended it while it waited.
func (s *Deliveries) next(now time.Duration, free bool, out []Effect) []Effect {
	if !free || len(s.waiting) == 0 {
		return out
	}
	d := s.calls[s.waiting[0]]
	s.waiting = s.waiting[1:]
	s.alone = d.call
	return s.readResult(now, d, out)
}

// Stored takes the result of an effect on a store. It reports whether the effect was one of these.
func (s *Deliveries) Stored(now time.Duration, e Effect, st Stored, out []Effect) (bool, []Effect) {
	d := s.calls[e.Call]
	switch {
	case e.Kind == InProgress:
		return true, s.progressed(now, d, e, st, out)
	case d == nil || d.op != e.Op:
		return false, out
	}
	d.op = 0
	if st.Result == Unclear || st.Result == No {
		d.tries++
		return true, out // tick tries again
	}
	return true, s.goOn(now, d, st, out)
}

func (s *Deliveries) progressed(now time.Duration, d *durable, e Effect, st Stored, out []Effect) []Effect {
	if d == nil || st.Result != OK {
		return out
	}
	d.marked = max(d.marked, e.At)
	if d.step == remarking && e.At >= d.asked {
		return s.readResult(now, d, out)
	}
	return out
}

func (s *Deliveries) goOn(now time.Duration, d *durable, st Stored, out []Effect) []Effect {
	switch d.step {
	case readingResult:
		if st.Result == OK {
			return s.endedElsewhere(now, d, out)
		}
		if d.doubt {
			return s.findOwner(now, d, out)
		}
		return s.store(now, d, readingHeld, Effect{Kind: GetHeld, N: d.generation}, out)
	case readingHeld:
		if st.Result == OK {
			return s.ack(now, d, out)
		}
		if d.only && d.delivery == 1 && s.hearing.Current() && s.certain(now, d) && !d.lapsed {
			out = s.run(d, false, 0, out)
			out[len(out)-1].At = now
			return out
		}
		return s.findOwner(now, d, out)
	case marking:
		return s.marked(now, d, st, out)
	}
	return s.storedEnd(now, d, st, out)
}

// endedElsewhere acknowledges a call whose result is stored.
func (s *Deliveries) endedElsewhere(now time.Duration, d *durable, out []Effect) []Effect {
	if d.doubt {
		d.doubt = false
		s.runs.Leave(d.call)
		out = append(out, Effect{Kind: Wake, Call: d.call, Why: Yielded})
	}
	return s.ack(now, d, out)
}

func (s *Deliveries) findOwner(now time.Duration, d *durable, out []Effect) []Effect {
	d.step, d.asked, d.again, d.got, d.lapsed = findingOwner, now, now, now, false
	return append(out, Effect{Kind: WhoOwns, Call: d.call, Seq: d.delivery})
}

// nobody says that no owner has the call: this process runs it, or goes on with it.
func (s *Deliveries) nobody(now time.Duration, d *durable, out []Effect) []Effect {
	switch {
	case d.doubt && !s.certain(now, d):
		return s.remark(now, d, out)
	case d.doubt:
		d.doubt, d.step = false, running
		out = s.runs.doubt(now, d.call, false, out)
		if d.parks {
			d.parks = false
			return s.Park(now, d.call, out)
		}
		return out
	case d.alone: // its mark is stored
		return s.run(d, false, 0, out)
	case d.delivery >= poisonFrom || d.copy: // copies count from one again, so the first of them is late already
		d.mark++
		return s.store(now, d, marking, Effect{Kind: PutMark, N: d.mark}, out)
	}
	return s.run(d, false, 0, out)
}

// marked goes on after a poison mark: with its own the call runs, alone; after three of others it ends.
func (s *Deliveries) marked(now time.Duration, d *durable, st Stored, out []Effect) []Effect {
	switch {
	case st.Result == Exists && d.mark < poisonMarks:
		d.mark++
		return s.store(now, d, marking, Effect{Kind: PutMark, N: d.mark}, out)
	case st.Result == Exists:
		out = append(out, Effect{Kind: DeadLetter, Call: d.call, Why: Undeliverable})
		return s.run(d, false, Undeliverable, out)
	}
	d.alone = true
	if s.alone != "" {
		d.step = queuedAlone
		s.waiting = append(s.waiting, d.call)
		return out
	}
	s.alone = d.call
	if d.lapsed {
		return s.readResult(now, d, out)
	}
	return s.run(d, false, 0, out)
}

// Progress says that the call has come further than with any owner before: whoever died with it had not died of what is
// done again each time. So their marks count no more.
func (s *Deliveries) Progress(call string, out []Effect) []Effect {
	if d := s.calls[call]; d != nil && d.step == running {
		return s.dropMarks(d, out)
	}
	return out
}

func (s *Deliveries) dropMarks(d *durable, out []Effect) []Effect {
	if d.mark == 0 {
		return out
	}
	out = append(out, Effect{Kind: DropMarks, Call: d.call, N: d.mark})
	d.mark = 0
	return out
}

// remark begins to find out whether the call is still this process's.
func (s *Deliveries) remark(now time.Duration, d *durable, out []Effect) []Effect {
	d.step, d.doubt, d.asked, d.again, d.op = remarking, true, now, now, 0
	return s.progress(now, d, out)
}

// Has reports whether this process holds deliveries of the call, whatever it is about to do with them.
func (s *Deliveries) Has(call string) bool { return s.calls[call] != nil }
