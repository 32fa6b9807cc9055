package protocol

import "time"

// Target is one run of a call's target.
type Target struct {
	Work
	Class  string // the queue group of the members that can do it
	Tenant string
	// Child says that the call is part of another one: it waits before those that begin something new.
	Child bool
	// Once says that it must not run twice; begun records decide then, beginning with number N.
	Once bool
	// First is the number with which the call's work began anew, because a stage asked for another run although the one
	// before had come to its end; 0 means 1. Numbers below it say nothing about this work.
	First uint64
	Until time.Duration // nothing begins after it
	// Fresh says that no other owner can have offered this call's work.
	Fresh bool
}

// phase is where a run stands.
type phase uint8

const (
	lined    phase = iota + 1 // in line for its class
	offered                   // an offer is out and has no sign yet
	asking                    // the members of the class are asked who holds it
	held                      // a member showed it
	reading                   // a record is read: of once work its begun record, of other work its spilled outcome
	checking                  // the record says begun, and its member is asked whether it still has it
	writing                   // nobody has it: "lost" is written into its record
	voiding                   // given up: a void is created, or the record that is in its place read
	paused                    // another owner may have the call: nothing is offered
	over                      // the outcome is there, or will not be waited for
)

type run struct {
	spec     Target
	phase    phase
	n        uint64 // of the work
	seq      uint64 // of the last offer
	holder   string
	to       string        // whom the last offer went to, "" for the class
	sent     time.Duration // the last offer
	sign     time.Duration // the last sign of the holder
	asked    time.Duration // when asking, checking or reading began
	again    time.Duration // when it was last repeated
	joined   time.Duration // the line
	left     bool          // an offer of n may have left, from here or from another owner
	copied   bool          // it was looked for before it was offered: somebody who was out of reach may have it
	released bool          // a part of the reply was passed on
	gaveUp   Why           // why nobody waits for it any more
	stopped  time.Duration // when it was given up
	op       uint64        // the effect on a store that is waited for, 0: none
	rev      uint64        // of the record that was read
	givers   []giver       // who keeps outcomes of this call
	index    int
	place    place[*run]   // in line
	out      bool          // it counts as under way in its class
	ahead    int           // of those in line, when it was refused
	expected time.Duration // the wait that it was refused for
	wrote    Record        // how this owner ended the record of n, if it did
}

type giver struct {
	member string
	n      uint64
}

// Runs holds the targets' runs of an owner: it offers work, follows who holds it, and offers it anew when that is safe.
type Runs struct {
	own      string
	cfg      Config
	presence *Presence
	hearing  *Hearing
	ops      *uint64
	runs     map[string]*run
	order    []*run
	lines    map[string]*line
	classes  []*line
	doubts   map[string]bool // calls of which it is being found out, or was, whether this owner still has them
	recent   recent          // calls that ended here
	looked   time.Duration
	turn     int // of the copies that are looked after
}

func newRuns(own string, cfg Config, p *Presence, h *Hearing, ops *uint64) Runs {
	return Runs{own: own, cfg: cfg, presence: p, hearing: h, ops: ops,
		runs: map[string]*run{}, lines: map[string]*line{}, doubts: map[string]bool{}}
}

// Start begins a target's run. A call has one at a time; a new one takes the place of one whose outcome was given.
func (s *Runs) Start(now time.Duration, t Target, out []Effect) []Effect {
	r := s.runs[t.Call]
	if r == nil {
		r = &run{index: len(s.order)}
		s.runs[t.Call] = r
		s.order = append(s.order, r)
	}
	s.in(r)
	*r = run{spec: t, n: t.N, left: !t.Fresh, index: r.index, givers: r.givers, seq: r.seq, joined: now}
	if _, doubted := s.doubts[t.Call]; doubted || !t.Fresh { // another owner may have offered it
		r.left = true
		return s.find(now, r, out)
	}
	return s.admit(now, r, out)
}

// find looks for the work among members and records, before it is offered.
func (s *Runs) find(now time.Duration, r *run, out []Effect) []Effect {
	if r.spec.Once {
		return s.read(now, r, out)
	}
	return s.ask(now, r, out)
}

// admit offers the work now or puts it in line.
func (s *Runs) admit(now time.Duration, r *run, out []Effect) []Effect {
	if s.doubts[r.spec.Call] {
		r.phase = paused
		return out
	}
	if r.released && !r.spec.Once {
		return s.cutStream(r, out)
	}
	r.joined = now
	l := s.line(r.spec.Class)
	l.of(r).draw(&r.place)
	if l.open() {
		return s.offer(now, r, s.roomy(now, l), out)
	}
	s.in(r)
	wait := l.wait(now, l.ahead(r))
	if !r.spec.Child && wait > min(s.cfg.MaxQueueWait, r.spec.Until-now) {
		return s.refuse(now, r, out)
	}
	r.phase = lined
	l.join(r)
	return out
}

// roomy names a member of the class that has room for all that is known, in turn. It is empty where none is busy or
// passed over, and the class shares the work itself, and where all are.
func (s *Runs) roomy(now time.Duration, l *line) string {
	if len(l.busy) == 0 && !s.presence.silentIn(l.class) {
		return ""
	}
	l.rest(now)
	var free []string
	for _, member := range s.presence.Members(l.class) {
		if _, busy := l.busy[member]; !busy && s.presence.Alive(member) {
			free = append(free, member)
		}
	}
	if len(free) == 0 {
		return ""
	}
	l.turn++
	return free[l.turn%len(free)]
}

// in says that a run is not under way at a member any more.
func (s *Runs) in(r *run) {
	if r.out {
		r.out = false
		s.line(r.spec.Class).out--
	}
}

// cutStream ends a run whose member is lost after a part of the reply was shown: no other run can go on from there.
func (s *Runs) cutStream(r *run, out []Effect) []Effect {
	s.in(r)
	r.phase, r.op = over, 0
	return append(out, Effect{Kind: Cancel, Call: r.spec.Call, Group: r.spec.Class, To: r.holder, N: r.n},
		Effect{Kind: Wake, Call: r.spec.Call, N: r.n, Why: StreamCut})
}

// refuse ends a run that would wait too long, or has. Its caller is told how many are before it, and for how long.
func (s *Runs) refuse(now time.Duration, r *run, out []Effect) []Effect {
	l := s.line(r.spec.Class)
	s.in(r)
	r.ahead = l.ahead(r)
	r.expected = max(l.wait(now, r.ahead), now-r.joined)
	if r.spec.Once {
		return s.void(now, r, Overloaded, out)
	}
	r.phase, r.gaveUp = over, Overloaded
	return append(out, r.wake(Overloaded))
}

// wake tells the call what came of its work. Of a refusal Waiting is how many are before it, and At the wait expected.
func (r *run) wake(why Why) Effect {
	return Effect{Kind: Wake, Call: r.spec.Call, N: r.n, Why: why, Waiting: int32(r.ahead), At: r.expected}
}

func (s *Runs) line(class string) *line {
	l := s.lines[class]
	if l == nil {
		l = newLine(class)
		s.lines[class] = l
		s.classes = append(s.classes, l)
	}
	return l
}

func (s *Runs) offer(now time.Duration, r *run, to string, out []Effect) []Effect {
	if now >= r.spec.Until {
		r.phase, r.sent = offered, now // its deadline is about to end it; nobody would begin it
		return out
	}
	if r.seq++; !r.out {
		r.out = true
		s.line(r.spec.Class).out++
	}
	r.phase, r.to, r.sent, r.left, r.holder = offered, to, now, true, ""
	return append(out, Effect{Kind: Offer, Call: r.spec.Call, Group: r.spec.Class, To: to, N: r.n, Seq: r.seq,
		Once: r.spec.Once, At: now, Until: r.spec.Until})
}

// ask asks all members of the class who holds the work. Who says that it does not refuses this offer and all before.
func (s *Runs) ask(now time.Duration, r *run, out []Effect) []Effect {
	r.phase, r.asked, r.again, r.op, r.copied = asking, now, now, 0, true
	return append(out, s.whoHas(now, r, ""))
}

func (s *Runs) whoHas(now time.Duration, r *run, to string) Effect {
	return Effect{Kind: WhoHas, Call: r.spec.Call, Group: r.spec.Class, To: to, N: r.n, Seq: r.seq, At: now}
}

// waits reports whether the run waits for a member, so that what members say can move it.
func (r *run) waits() bool {
	return r.phase == offered || r.phase == asking || r.phase == held || r.phase == checking || r.phase == reading
}

// settle ends the run: its outcome is there.
func (s *Runs) settle(now time.Duration, r *run) {
	l := s.line(r.spec.Class)
	l.leave(r)
	if r.out {
		l.ended(now, now-r.sent)
	}
	s.in(r)
	l.absent = 0
	r.phase, r.op = over, 0
}

// GiveUp ends the wait for a run: its caller left, its time is over, or this process leaves. Work that must not run
// twice answers with Wake: NotExecuted, Unknown or Ended; other work is only cancelled.
func (s *Runs) GiveUp(now time.Duration, call string, why Why, out []Effect) []Effect {
	r := s.runs[call]
	if r == nil || r.phase == over || r.phase == voiding && r.gaveUp == why {
		return out
	}
	s.line(r.spec.Class).leave(r)
	s.in(r)
	if r.spec.Once {
		return s.void(now, r, why, out)
	}
	if r.left {
		to := r.holder
		out = append(out, Effect{Kind: Cancel, Call: call, Group: r.spec.Class, To: to, N: r.n})
	}
	r.phase, r.gaveUp, r.op = over, why, 0
	return out
}

// Ended says that the call has ended: of a durable call, that its result is stored. Members forget its outcomes.
func (s *Runs) Ended(now time.Duration, call string, out []Effect) []Effect {
	delete(s.doubts, call)
	r := s.runs[call]
	if r == nil {
		return out
	}
	for _, g := range r.givers {
		out = append(out, Effect{Kind: Confirm, Call: call, To: g.member, N: g.n})
	}
	if w := r.wrote; w.Rev != 0 {
		out = append(out, Effect{Kind: Expire, Call: call, N: r.n, Group: r.spec.Tenant, State: w.State, By: w.By,
			Nonce: w.Nonce, Last: w.Last, Rev: w.Rev, Until: r.spec.Until})
	}
	s.recent.add(now, Work{Call: call})
	s.forget(r)
	return out
}

// Leave forgets a call that another owner goes on with. Nothing is confirmed and nothing cancelled.
func (s *Runs) Leave(call string) {
	delete(s.doubts, call)
	if r := s.runs[call]; r != nil {
		s.forget(r)
	}
}

func (s *Runs) forget(r *run) {
	s.line(r.spec.Class).leave(r)
	s.in(r)
	delete(s.runs, r.spec.Call)
	last := len(s.order) - 1
	s.order[last].index = r.index
	s.order[r.index] = s.order[last]
	s.order = s.order[:last]
}

// doubt stops or resumes offers of a call whose owner this process may no longer be.
func (s *Runs) doubt(now time.Duration, call string, doubt bool, out []Effect) []Effect {
	s.doubts[call] = doubt
	r := s.runs[call]
	switch {
	case r == nil:
	case doubt && r.phase == lined:
		s.line(r.spec.Class).leave(r)
		r.phase = paused
	case !doubt && r.phase == paused:
		r.left = true
		return s.find(now, r, out)
	}
	return out
}

// NoResponders is what the server says of an offer that nobody subscribes to.
func (s *Runs) NoResponders(now time.Duration, call string, seq uint64, to string, out []Effect) []Effect {
	r := s.runs[call]
	if to != "" {
		s.presence.PassOver(now, to)
	}
	if r == nil || r.seq != seq || r.phase != offered {
		return out
	}
	if to != "" {
		return s.admit(now, r, out)
	}
	l := s.line(r.spec.Class)
	l.close(now)
	l.absent++
	return s.back(now, r, l, out)
}

// appeared tries a class again at once when a member of it has come.
func (s *Runs) appeared(class string) {
	if l := s.lines[class]; l != nil {
		l.since = 0
	}
}
