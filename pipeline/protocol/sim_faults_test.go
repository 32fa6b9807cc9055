package protocol

import (
	"fmt"
	"time"
)

// build makes the processes, the calls and the faults of a seed.
func (w *world) build() {
	for i := range 2 + w.rng.IntN(2) {
		w.spawn(fmt.Sprintf("o%d", i), true)
	}
	for i := range 2 + w.rng.IntN(2) {
		w.spawn(fmt.Sprintf("m%d", i), false)
	}
	w.calm = w.chance(0.05)
	w.nats.window = 2 * time.Minute
	if w.chance(0.3) { // as after restarts: a duplicate window that does not reach far
		w.nats.window = 5 * time.Second
	}
	last := 25 * time.Second
	if w.chance(0.3) { // all at once: more than the members have slots for
		last = time.Second
	}
	for i := range 4 + w.rng.IntN(11) {
		c := w.newCall(i)
		at := w.between(200*time.Millisecond, last)
		w.after(at, func() { w.submit(c, 0) })
		if c.key != "" && w.chance(0.5) { // the same request once more
			twin := *c
			twin.id += "t"
			w.after(at+w.between(0, c.span), func() { w.submit(&twin, 0) })
		}
	}
	if w.calm {
		return
	}
	for range 1 + w.rng.IntN(5) {
		at := w.between(100*time.Millisecond, faultsEnd-time.Second)
		w.after(at, w.fault(at))
	}
}

func (w *world) newCall(i int) *call {
	c := &call{id: fmt.Sprintf("c%d", i), tenant: "t", durable: w.chance(0.7), once: w.chance(0.5), slow: w.chance(0.4),
		stream: w.chance(0.3)}
	if c.durable && w.chance(0.5) {
		c.key = "k" + c.id
	}
	for range w.rng.IntN(3) {
		c.route = append(c.route, []string{"s1", "s2"}[w.rng.IntN(2)])
	}
	if w.chance(0.2) {
		c.route = append(c.route, "hold")
	}
	c.route = append(c.route, "target")
	if w.chance(0.7) {
		c.route = append(c.route, "s1")
	}
	c.targetTime = w.between(5*time.Millisecond, 12*time.Second)
	if w.chance(0.2) {
		c.targetTime = w.between(10*time.Second, 25*time.Second)
	}
	if w.chance(0.15) && c.once {
		c.refusals = 1
	}
	if !w.calm && w.chance(0.02) {
		c.poison = []string{"s1", "owner"}[w.rng.IntN(2)]
		if !c.durable {
			c.poison = "s1"
		}
	}
	c.span = 8*time.Second + w.between(0, 60*time.Second)
	if c.poison != "" {
		c.span = 140 * time.Second
	}
	return c
}

// fault draws one fault that begins at the given time; all are over at faultsEnd.
func (w *world) fault(at time.Duration) func() {
	long := min(w.between(300*time.Millisecond, 25*time.Second), faultsEnd-at)
	some := 0.05 + 0.4*w.rng.Float64()
	if w.chance(0.2) {
		long = min(25*time.Second, faultsEnd-at)
	}
	switch w.rng.IntN(18) {
	case 0:
		return func() { w.any().kill("a fault") }
	case 1, 2:
		return func() { w.any().freeze(long) }
	case 3, 4:
		return func() { w.any().cutOff(long) }
	case 5:
		if w.chance(0.4) { // longer than marks and deliveries last
			long = min(16*time.Second+w.between(0, 4*time.Second), faultsEnd-at)
		}
		return func() { w.outage(long, w.chance(0.5)) }
	case 6:
		return w.weather(min(long, 6*time.Second), func(n *weather) { n.loss = some / 2 })
	case 7:
		return w.weather(min(long, 6*time.Second), func(n *weather) { n.delay, n.double = some/2, some/2 })
	case 8:
		return w.weather(long, func(n *weather) { n.ackLoss = some })
	case 10, 11, 12, 13, 14, 15, 16:
		return func() { w.trap = 1 + w.rng.IntN(9) }
	case 9:
		return w.weather(min(long, 10*time.Second), func(n *weather) { n.crash = some / 2 })
	default:
		if w.chance(0.5) {
			return func() { w.leave(w.anyOwner()) }
		}
		return w.weather(long, func(n *weather) { n.diskFull = true })
	}
}

// The moments that a trap waits for. The process is stopped or cut off for longer than anybody waits for it; with
// ownerOffers it is the server that stops, before anybody has shown what was offered; with keyIsStored and the
// last three it dies; with offerIsLate an offer takes three seconds.
const (
	ownerAsks    = 1
	memberQueues = 2
	ownerOffers  = 3
	ownerIsGiven = 4 // a stored call
	keyIsStored  = 5 // and its call is not
	offerIsLate  = 6
	resultIsDue  = 7
	holdIsDue    = 8
	handingIsDue = 9
)

// trapped springs the trap that was laid for such a moment.
func (w *world) trapped(p *proc, moment int, c *call) {
	if w.trap != moment || w.now > epoch+faultsEnd-25*time.Second || c.once || c.until-w.now < 35*time.Second {
		return
	}
	if (moment == ownerAsks || moment == ownerIsGiven) && !c.durable {
		return
	}
	w.trap = 0
	c.targetTime = max(c.targetTime, 8*time.Second)
	long := 16*time.Second + w.between(0, 6*time.Second)
	if moment == memberQueues {
		long = 4*time.Second + w.between(0, 4*time.Second)
	}
	switch {
	case moment == ownerOffers:
		w.after(20*time.Millisecond, func() { w.outage(w.between(time.Second, 6*time.Second), false) })
	case moment == ownerIsGiven, w.chance(0.6):
		p.freeze(long)
	default:
		p.cutOff(long)
	}
}

func (w *world) weather(long time.Duration, set func(*weather)) func() {
	return func() {
		old := w.net
		set(&w.net)
		w.log("the network is now %+v for %v", w.net, long)
		w.judge.bad = max(w.judge.bad, w.now+long)
		if w.net.ackLoss > 0 {
			w.judge.acks = max(w.judge.acks, w.now+long)
		}
		w.after(long, func() {
			w.net = weather{}
			w.log("the network is as before: %v", old)
		})
	}
}

// outage stops the server. One that is restarted has forgotten its duplicate window.
func (w *world) outage(long time.Duration, restart bool) {
	if !w.nats.up {
		return
	}
	w.log("the server is away for %v, restart=%v", long, restart)
	w.nats.up = false
	w.judge.down = w.now + long + 4*time.Second
	for _, p := range w.procs {
		if p.alive && !p.known {
			w.after(min(w.between(0, 4*time.Second), long-time.Millisecond), func() {
				if p.alive && !w.nats.up && !p.known {
					p.known = true
					p.do(p.downNow)
				}
			})
		}
	}
	w.after(long, func() {
		w.log("the server is back")
		w.nats.up = true
		w.nats.pulls = nil
		for _, p := range w.procs {
			if m := w.nats.marks[p.name]; m != nil && w.now >= m.expires {
				w.nats.unmark(p.name, false)
			}
		}
		if restart {
			w.nats.ids = map[string]time.Duration{}
		}
		for _, p := range w.procs {
			if p.alive && !p.cut {
				if !p.known {
					p.known = true
					p.do(p.downNow)
				}
				p.reconnect()
			}
		}
		w.nats.dispatch()
	})
}

// leave ends an owner in good order: it hands its stored calls back.
func (w *world) leave(p *proc) {
	if p == nil || !p.reachable() || p.frozen {
		return
	}
	w.log("%s leaves", p.name)
	s := p.owner
	for _, c := range w.calls {
		if r := s.runs[c.id]; r != nil && r.durable {
			s.beat()
			s.out(s.o.Deliveries.HandBack(s.clock(), c.id, nil))
		}
	}
	s.leaving = true
	p.after(2*time.Second, func() {
		w.nats.unmark(p.name, true)
		p.kill("it has left")
	})
}

func (w *world) any() *proc {
	var some []*proc
	for _, p := range w.procs {
		if p.alive {
			some = append(some, p)
		}
	}
	if len(some) == 0 {
		return w.procs[0] // dead, so nothing more can happen to it
	}
	return some[w.rng.IntN(len(some))]
}

func (w *world) anyOwner() *proc {
	var some []*proc
	for _, p := range w.procs {
		if p.alive && p.owner != nil && !p.owner.leaving {
			some = append(some, p)
		}
	}
	if len(some) == 0 {
		return nil
	}
	return some[w.rng.IntN(len(some))]
}

// spawn starts a process, in a new life with a new name.
func (w *world) spawn(base string, owner bool) {
	w.lives++
	p := &proc{w: w, base: base, name: fmt.Sprintf("%s-%d", base, w.lives)}
	p.offset = time.Duration(w.rng.Int64N(int64(4*time.Second))) - 2*time.Second
	if owner {
		p.owner = &simOwner{proc: p, o: NewOwner(p.name, Config{AckWait: simAckWait}), runs: map[string]*simRun{},
			callers: map[string][]*caller{}}
		p.start()
		p.after(5*time.Second, p.owner.repull)
		return
	}
	m := NewMember(p.name, Config{QueueCapacity: 2, KeepBytes: 250})
	n := 1 + w.rng.IntN(5)/4
	m.Works.Serve("model", n)
	m.Works.Serve("tool", n)
	p.member = &simMember{proc: p, m: m, groups: []string{"s1", "s2", "model", "tool"}, results: map[Work]*exec{},
		taken: map[Work]time.Duration{}}
	p.start()
}

// ping carries a ping to any process, and its answer back.
func (w *world) ping(from *proc, e Effect) {
	nobody := func() { from.presence().PassOver(from.clock(), e.To) }
	w.direct(from, e.To, nobody, func(q *proc) {
		theirs := q.clock()
		w.direct(q, from.name, nil, func(p *proc) {
			if p.owner != nil {
				p.owner.beat()
				p.owner.o.Presence.Pong(p.clock(), q.name, e.At, theirs)
				return
			}
			p.member.beat()
			p.member.m.Presence.Pong(p.clock(), q.name, e.At, theirs)
		})
	})
}

func (w *world) probe(p *proc, e Effect) {
	w.pass(p, p, func() {
		if p.owner != nil {
			p.owner.beat()
			p.owner.o.Hearing.Probed(e.At)
			return
		}
		p.member.beat()
		p.member.m.Hearing.Probed(e.At)
	})
}

// keyLost reports whether the record of a key was freed, so that the next request is a new one.
func (w *world) keyLost(string) bool { return false }
