package protocol

import (
	"fmt"
	"time"
)

// call is one call of the simulation and what its caller knows of it.
type call struct {
	id         string
	key        string
	tenant     string
	durable    bool
	once       bool
	stream     bool
	route      []string
	poison     string // the stage that it kills, or "owner"
	refusals   int    // how often the target proves that it did nothing
	targetTime time.Duration
	slow       bool
	span       time.Duration // how long it may take
	until      time.Duration
	begun      time.Duration
	caller     *caller
	stored     bool // its acceptance was told, or it is parked
	refused    bool
	dead       bool // bound, and its owner died
	kills      int
	runs       int   // how often an owner has begun to run it
	seen       *exec // a part of this one's reply was shown
	seenBy     *proc
	seenIn     *simRun
}

func (c *call) class() string {
	if c.once {
		return "tool"
	}
	return "model"
}

func (c *call) hopTime(w *world) time.Duration {
	if c.slow && w.chance(0.5) {
		return w.between(100*time.Millisecond, 5*time.Second)
	}
	return w.between(time.Millisecond, 20*time.Millisecond)
}

// over reports whether nothing more is to come of the call.
func (c *call) over() bool {
	w := c.caller.w
	if c.stored {
		return w.nats.records["result."+c.id] != nil && (c.caller.done || c.dead)
	}
	return c.caller.done
}

// result is how a call ended.
type result struct {
	code   Why
	exec   uint64
	unsure bool // nobody knows yet what is or will be stored
}

func (r result) encode() uint64 { return uint64(r.code)<<32 | r.exec }

func decode(x uint64) result { return result{code: Why(x >> 32), exec: x & (1<<32 - 1)} }

// caller waits for a call, at the process that accepted it.
type caller struct {
	w     *world
	c     *call
	at    *proc
	waits string // the call whose end it is told
	heard result
	done  bool
	tries int
}

// submit sends a call to an owner.
func (w *world) submit(c *call, tries int) {
	w.calls = append(w.calls, c)
	w.byID[c.id] = c
	c.begun, c.until = w.now, w.now+c.span
	c.caller = &caller{w: w, c: c, waits: c.id, tries: tries}
	p := w.anyOwner()
	c.caller.at = p
	if p == nil || !p.connected() {
		if p == nil {
			p = w.procs[0]
		}
		c.caller.at, c.caller.done, c.refused = p, true, true // known to be down: refused at once
		c.caller.again()
		return
	}
	w.log("%s takes %s: key %q durable=%v once=%v route %v until %.1f target %v poison %q", p.name, c.id, c.key, c.durable,
		c.once, c.route, (c.until - epoch).Seconds(), c.targetTime, c.poison)
	w.after(c.until-w.now+5*time.Second, c.caller.tooLate)
	p.do(func() { c.caller.enter(p) })
}

func (r *caller) enter(p *proc) {
	s := p.owner
	if !r.c.durable {
		s.callers[r.c.id] = append(s.callers[r.c.id], r)
		s.run(r.c, false, true, 0)
		return
	}
	s.beat()
	s.out(s.o.Accepts.Accept(s.clock(), Request{Call: r.c.id, Key: r.c.key, Print: 7, Until: r.c.until + s.offset,
		Waits: true}, nil))
}

// accepted hears what came of the acceptance.
func (r *caller) accepted(e Effect) {
	s, w := r.at.owner, r.w
	w.log("caller of %s hears %d", r.c.id, e.Why)
	switch e.Why {
	case Accepted:
		r.c.stored = true
		r.wait(s, r.c.id, w.bad == neverReads)
	case Attached:
		r.waits = e.Record.Call
		r.wait(s, r.waits, true)
	case Refused:
		r.c.refused, r.done = true, true
		w.judge.refused(r.c)
	case AskAgain:
		r.done = true
		r.again()
	case Unknown:
		r.done, r.heard = true, result{code: Unknown, unsure: true}
	default:
		w.judge.fail("%s: acceptance ended with %d", r.c.id, e.Why)
	}
}

func (r *caller) wait(s *simOwner, id string, atOnce bool) {
	s.callers[id] = append(s.callers[id], r)
	if r.w.bad != neverReads {
		s.out(s.o.Waits.Wait(s.clock(), id, atOnce, nil))
	}
}

// again comes back with the same key, at another process perhaps.
func (r *caller) again() {
	w, old := r.w, r.c
	if old.key == "" || r.tries >= 3 {
		return
	}
	w.after(w.between(500*time.Millisecond, 3*time.Second), func() {
		c := *old
		c.id = fmt.Sprintf("%sr%d", old.id, r.tries+1)
		c.stored, c.refused, c.dead, c.kills, c.runs, c.seen, c.seenBy = false, false, false, 0, 0, nil, nil
		w.submit(&c, r.tries+1)
	})
}

// lost says that the process died at which the caller waits.
func (r *caller) lost() {
	if r.done {
		return
	}
	r.done = true
	r.again()
}

func (r *caller) hear(res result) {
	if r.done {
		return
	}
	r.w.log("caller of %s hears %v of %s", r.c.id, res, r.waits)
	r.done, r.heard = true, res
	r.w.judge.heard(r)
}

// tooLate is when a caller stops waiting.
func (r *caller) tooLate() {
	if r.done {
		return
	}
	r.w.judge.waitedTooLong(r)
	r.done = true
}
