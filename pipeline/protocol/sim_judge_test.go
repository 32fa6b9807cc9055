package protocol

import (
	"fmt"
	"time"
)

// judge knows everything that happened, and what must never happen.
type judge struct {
	w      *world
	failed string
	execs  map[string][]*exec
	serial uint64
	told   map[string]result
	hops   map[hopKey]*hop
	down   time.Duration // when the server was last down
	bad    time.Duration // when the network was last bad
	acks   time.Duration // when acknowledgements were last lost
}

// exec is one run of a target: what it did to the world stays.
type exec struct {
	taken    time.Duration // when the offer was taken; it may have been queued since
	id       uint64
	c        *call
	n        uint64
	once     bool
	member   *proc
	begun    time.Duration
	ended    bool
	nothing  bool // it proved that it did nothing
	stopped  bool // cancelled at its member
	unwanted bool // its owner said that nobody wants it
	dropped  bool // its member keeps it no more
}

type hopKey struct {
	owner string
	n     uint64
}

type hop struct {
	stage string
	sent  time.Duration
	by    []*proc // who took it
}

func (j *judge) fail(format string, args ...any) {
	if j.failed == "" {
		j.failed = fmt.Sprintf(format, args...)
		j.w.log("VIOLATION: %s", j.failed)
	}
}

// sound reports whether a process was in good order since t: neither stopped nor cut off, and hardly any message lost.
func (j *judge) sound(p *proc, t time.Duration) bool {
	return p.alive && !p.frozen && !p.cut && !p.known && (p.troubled == 0 || p.troubled < t) && p.hurtSince(t) < 3
}

func (j *judge) started(p *proc, c *call, n uint64, owner string, once bool, taken time.Duration) *exec {
	j.serial++
	x := &exec{id: j.serial, c: c, n: n, once: once, member: p, taken: taken, begun: j.w.now}
	j.w.log("%s begins %s.%d as run %d", p.name, c.id, n, x.id)
	switch {
	case c.refused:
		j.fail("%s runs, although it was refused", c.id)
	case j.told[c.id].code == NotExecuted:
		j.fail("%s runs after it was said that nothing ran", c.id)
	}
	at, spilled := j.w.nats.made[fmt.Sprintf("outcome.%s.%d", c.id, n)]
	if spilled && !once && j.w.now-at > 5*time.Second {
		j.fail("%s is bought again although its outcome lies in the bucket", c.id)
	}
	for _, o := range j.w.calls {
		if o != c && (c.key == "" || o.key != c.key) {
			continue
		}
		for _, y := range j.execs[o.id] {
			j.second(x, y)
		}
	}
	if c.seen != nil && !once && c.seenBy.name == owner && c.seenBy.owner.runs[c.id] == c.seenIn {
		j.fail("%s begins again at %s after a part of its reply was shown", c.id, p.name)
	}
	j.execs[c.id] = append(j.execs[c.id], x)
	return x
}

// second judges two runs for one call or for one key.
func (j *judge) second(x, y *exec) {
	switch {
	case y.nothing:
	case x.once:
		j.fail("%s runs a second time at %s, first at %s", x.c.id, x.member.name, y.member.name)
	case x.c != y.c:
		if !j.w.keyLost(x.c.key) {
			j.fail("one key, two calls: %s and %s", x.c.id, y.c.id)
		}
	case x.member.cut && !x.member.known: // it cannot know yet that others have taken its place
	case x.n == y.n && !y.stopped && !y.unwanted && (!y.dropped || j.w.bad == forgetsOutcomes) &&
		j.sound(y.member, max(y.begun, x.taken-14*time.Second)):
		j.fail("%s is bought again at %s although %s holds or keeps it", x.c.id, x.member.name, y.member.name)
	}
}

func (j *judge) released(p *proc, c *call, x *exec) {
	if c.seen == nil {
		c.seen, c.seenBy, c.seenIn = x, p, p.owner.runs[c.id]
	}
}

func (j *judge) confirmed(id string) {
	if c := j.w.byID[id]; c.durable && j.w.nats.records["result."+id] == nil {
		j.fail("the outcome of %s is confirmed before the result is stored", id)
	}
}

func (j *judge) cancelled(id string) {
	for _, x := range j.execs[id] {
		x.unwanted = true
	}
}

// saidUnknown judges an owner that gives up knowing what came of work.
func (j *judge) saidUnknown(c *call, late bool) {
	for _, x := range j.execs[c.id] {
		if !late && !x.nothing && j.sound(x.member, x.begun) {
			j.fail("the outcome of %s is unknown although %s lives and has it", c.id, x.member.name)
		}
	}
}

func (j *judge) owned(p *proc, c *call, e Effect) {
	w := j.w
	c.runs++
	for _, q := range w.procs {
		if q == p || q.owner == nil || !j.sound(q, w.now-20*time.Second) ||
			p.hurtSince(w.now-5*time.Second) > 2 {
			continue
		}
		if r := q.owner.runs[c.id]; r != nil && !r.ending && w.now-j.down > 20*time.Second && w.now-j.acks > 20*time.Second {
			j.fail("%s is run by %s although %s has it", c.id, p.name, q.name)
		}
	}
}

// tell takes what anybody is told about the end of a call.
func (j *judge) tell(id string, r result) {
	if old, ok := j.told[id]; ok && old != r {
		j.fail("%s is told two ends: %v and %v", id, old, r)
	}
	j.told[id] = r
	c := j.w.byID[id]
	if rec := j.w.nats.records["result."+id]; c.durable && (rec == nil || decode(rec.Print) != r) {
		j.fail("%s is told %v, which is not what is stored", id, r)
	}
	for _, x := range j.execs[id] {
		if r.code == NotExecuted && !x.nothing {
			j.fail("%s: it is said that nothing ran, but %s ran it", id, x.member.name)
		}
	}
}

func (j *judge) refused(c *call) {
	for _, m := range j.w.nats.queue {
		if m.delivery.Call == c.id {
			j.fail("%s is refused and lies in the queue", c.id)
		}
	}
	if len(j.execs[c.id]) > 0 {
		j.fail("%s is refused and has run", c.id)
	}
}

// heard judges when a caller was answered.
func (j *judge) heard(r *caller) {
	if late := j.w.now - r.c.until; late > 3*time.Second && !r.c.durable && j.sound(r.at, r.c.until-2*time.Second) {
		j.fail("%s: its caller is answered %v after the deadline", r.c.id, late)
	}
}

// waitedTooLong judges a caller who heard nothing until well past the deadline.
func (j *judge) waitedTooLong(r *caller) {
	w, c := j.w, r.c
	since := c.until - 12*time.Second
	if !j.sound(r.at, since) || j.down > since || j.bad > since {
		return
	}
	if !c.durable {
		j.fail("%s: nobody answers its caller", c.id)
	}
	if r.waits != c.id && c.span > 2*simAckWait && j.sound(r.at, c.begun) && !j.moves(r.waits) {
		j.fail("%s: its caller waits for %s, which does not run", c.id, r.waits)
	}
	if at, ok := w.nats.made["result."+r.waits]; ok && at < since {
		j.fail("%s: its result is stored, and its caller does not hear", r.waits)
	}
}

// moves reports whether a call has ended, is parked, or is on its way.
func (j *judge) moves(id string) bool {
	for _, m := range j.w.nats.queue {
		if m.delivery.Call == id {
			return true
		}
	}
	records := j.w.nats.records
	return records["result."+id] != nil || records["held."+id] != nil
}

// Hops.

func (j *judge) sent(p *proc, n uint64, stage string) {
	if j.hops == nil {
		j.hops = map[hopKey]*hop{}
	}
	j.hops[hopKey{p.name, n}] = &hop{stage: stage, sent: j.w.now}
}

func (j *judge) asked(member, from *proc, n uint64, c *call) {
	h := j.hops[hopKey{from.name, n}]
	h.by = append(h.by, member)
	if len(h.by) > 1 && j.w.calm {
		j.fail("%s: a stage runs twice without any fault", c.id)
	}
}

// answered judges how long a question took while at least one member was well.
func (j *judge) answered(from *proc, n uint64) {
	h := j.hops[hopKey{from.name, n}]
	took := j.w.now - h.sent
	if took < 14*time.Second || !j.sound(from, h.sent) || j.bad > h.sent || j.down > h.sent {
		return
	}
	for _, q := range j.w.procs {
		if q.member != nil && q.member.serves(h.stage) && j.sound(q, h.sent) && q.born < h.sent {
			j.fail("a question to %s took %v although %s was well", h.stage, took, q.name)
		}
	}
}

// end judges what is left when nothing moves any more.
func (j *judge) end() {
	w := j.w
	for _, m := range w.nats.queue {
		j.fail("%s.%d lies in the queue for ever", m.delivery.Call, m.delivery.Generation)
	}
	for _, c := range w.calls {
		switch {
		case c.stored && w.nats.records["result."+c.id] == nil:
			j.fail("%s was accepted and never ends", c.id)
		case !c.caller.done && !c.dead:
			j.fail("the caller of %s still waits", c.id)
		case c.kills > 5*(c.runs+1)+4, c.kills > 8 && c.poison == "owner":
			j.fail("%s has killed %d processes", c.id, c.kills)
		}
		if n := len(j.execs[c.id]); n > 1 && w.calm && c.refusals == 0 && !c.once {
			j.fail("%s runs %d times without any fault", c.id, n)
		}
	}
	for _, p := range w.procs {
		if p.alive && !p.idle() {
			j.fail("%s still has something to do", p.name)
		}
	}
}
