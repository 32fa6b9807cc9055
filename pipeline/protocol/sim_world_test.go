package protocol

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// The simulation: processes that carry out what owners and members decide, against a model of NATS, in simulated time.
// One seed is one run, and the same seed is always the same run.

// faultsEnd is when the last fault is over. quiet is how long the rest may take then.
const (
	faultsEnd = 45 * time.Second
	quiet     = 150 * time.Second
	epoch     = time.Hour // simulated time begins here, so that offsets of clocks stay above zero
)

type world struct {
	rng    *rand.Rand
	bad    defect
	now    time.Duration
	events events
	serial int
	nats   *server
	procs  []*proc // all that ever lived, those that live first found by lives
	calls  []*call
	byID   map[string]*call
	judge  *judge
	net    weather
	trace  *strings.Builder
	calm   bool // no faults at all
	lives  int
	trap   int
}

// weather is how bad the network is now.
type weather struct {
	loss, delay, double, ackLoss float64
	crash                        float64 // of whoever writes to a store, before or after that
	diskFull                     bool
}

func newWorld(seed uint64, bad defect, trace *strings.Builder) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 41)), bad: bad, now: epoch, trace: trace, byID: map[string]*call{}}
	w.nats = newServer(w)
	w.judge = &judge{w: w, execs: map[string][]*exec{}, told: map[string]result{}}
	return w
}

type event struct {
	at time.Duration
	n  int
	f  func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].n < q[j].n
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

func (w *world) after(d time.Duration, f func()) {
	w.serial++
	heap.Push(&w.events, event{at: w.now + d, n: w.serial, f: f})
}

// run lets time pass until everything is done, or until the time is over.
func (w *world) run() {
	end := epoch + faultsEnd + quiet
	next := epoch + faultsEnd
	for len(w.events) > 0 {
		e := heap.Pop(&w.events).(event)
		if e.at > end || w.judge.failed != "" {
			return
		}
		if e.at > next {
			if next += time.Second; w.idle() {
				return
			}
		}
		w.now = e.at
		e.f()
	}
}

// idle reports whether nothing is left to do.
func (w *world) idle() bool {
	if len(w.nats.queue) > 0 {
		return false
	}
	for _, c := range w.calls {
		if !c.over() {
			return false
		}
	}
	for _, p := range w.procs {
		if p.alive && !p.idle() {
			return false
		}
	}
	return true
}

func (w *world) log(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%9.3f ", (w.now - epoch).Seconds())
		fmt.Fprintf(w.trace, format, args...)
		w.trace.WriteByte('\n')
	}
}

func (w *world) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

// between draws a time, small ones more often.
func (w *world) between(lo, hi time.Duration) time.Duration {
	f := w.rng.Float64()
	return lo + time.Duration(f*f*float64(hi-lo))
}

// proc is one life of a process.
type proc struct {
	w        *world
	name     string
	base     string
	owner    *simOwner
	member   *simMember
	alive    bool
	frozen   bool
	cut      bool // no packet passes
	own      bool // the outage is its own, not the server's
	known    bool // the client and the server know that the connection is lost
	offset   time.Duration
	buffered []func()
	troubled time.Duration   // when the last freeze or cut of its own ended
	hurt     []time.Duration // when messages from or to it were lost or delayed
	tokens   map[string][]*message
	born     time.Duration
}

func (p *proc) clock() time.Duration { return p.w.now + p.offset }

// reachable reports whether a packet gets to or from the process now.
func (p *proc) reachable() bool { return p.alive && !p.cut && p.w.nats.up }

// connected reports whether the client and the server hold the connection for good.
func (p *proc) connected() bool { return p.alive && !p.known }

// do runs something in the process: now, when it wakes, or never.
func (p *proc) do(f func()) {
	switch {
	case !p.alive:
	case p.frozen:
		p.buffered = append(p.buffered, f)
	default:
		f()
	}
}

func (p *proc) after(d time.Duration, f func()) { p.w.after(d, func() { p.do(f) }) }

// pass carries a core message from one process to another. It may be lost, late or doubled.
func (w *world) pass(from, to *proc, f func()) {
	if !from.reachable() {
		return
	}
	late := w.between(200*time.Microsecond, 2*time.Millisecond)
	if w.chance(w.net.loss) {
		from.hurtNow()
		to.hurtNow()
		return
	}
	if w.chance(w.net.delay) {
		from.hurtNow()
		to.hurtNow()
		late += w.between(0, 4*time.Second)
	}
	arrive := func() {
		if to.reachable() {
			to.do(f)
		}
	}
	w.after(late, arrive)
	if w.chance(w.net.double) {
		w.after(late+w.between(0, 3*time.Second), arrive)
	}
}

func (p *proc) hurtNow() {
	p.hurt = append(p.hurt, p.w.now)
	if len(p.hurt) > 64 {
		p.hurt = p.hurt[32:]
	}
}

// hurtSince counts the messages that were lost or late since t.
func (p *proc) hurtSince(t time.Duration) int {
	n := 0
	for _, at := range p.hurt {
		if at >= t {
			n++
		}
	}
	return n
}

// group sends to one process that the server takes for a subscriber, or says that there is none.
func (w *world) group(from *proc, group string, nobody func(), f func(to *proc)) {
	if !from.reachable() {
		return
	}
	var subscribers []*proc
	for _, p := range w.procs {
		if p.connected() && p.member != nil && p.member.serves(group) {
			subscribers = append(subscribers, p)
		}
	}
	if len(subscribers) == 0 {
		w.pass(from, from, nobody)
		return
	}
	to := subscribers[w.rng.IntN(len(subscribers))]
	w.pass(from, to, func() { f(to) })
}

// direct sends to the process of the name, or says that it does not listen.
func (w *world) direct(from *proc, name string, nobody func(), f func(to *proc)) {
	to := w.byName(name)
	if to == nil || !to.connected() {
		if nobody != nil {
			w.pass(from, from, nobody)
		}
		return
	}
	w.pass(from, to, func() { f(to) })
}

func (w *world) byName(name string) *proc {
	for i := len(w.procs) - 1; i >= 0; i-- {
		if w.procs[i].name == name {
			return w.procs[i]
		}
	}
	return nil
}

func (p *proc) idle() bool {
	if p.owner != nil {
		return p.owner.idle()
	}
	return p.member.idle()
}
