package protocol

import (
	"slices"
	"time"
)

// Owner decides for a process that runs calls. It wires its parts to one clock, one hearing and one presence; events
// that concern a single part go to that part directly.
type Owner struct {
	Name       string
	Presence   *Presence
	Hearing    *Hearing
	Asks       Asks       // hops
	Runs       Runs       // targets
	Deliveries Deliveries // stored calls, until their end
	Accepts    Accepts    // calls that are to be stored
	Waits      Waits      // ends that may come from elsewhere
	Resumes    Resumes    // holds that were decided
	seen       time.Duration
	ops        uint64
}

// NewOwner returns the owner of a process. The name is new in each life of the process.
func NewOwner(name string, cfg Config) *Owner {
	cfg = cfg.withDefaults()
	o := &Owner{Name: name, Presence: NewPresence(name), Hearing: &Hearing{after: cfg.AfterOutage}}
	o.Asks = newAsks(cfg.HopPatience, o.Presence, o.Hearing)
	o.Runs = newRuns(name, cfg, o.Presence, o.Hearing, &o.ops)
	o.Deliveries = newDeliveries(cfg, o.Hearing, &o.ops, &o.Runs)
	o.Accepts = Accepts{cfg: cfg, hearing: o.Hearing, ops: &o.ops, byOp: map[uint64]*accept{}}
	o.Waits = Waits{hearing: o.Hearing, ops: &o.ops, calls: map[string]*wait{}}
	o.Resumes = Resumes{hearing: o.Hearing, ops: &o.ops}
	return o
}

// Beat is to be called first with every event but those of the fast path (Asks.Sent, Asks.Answered, Asks.Forget). It
// notices that the process was stopped, before anything old is taken for new. Tick includes it.
func (o *Owner) Beat(now time.Duration, out []Effect) []Effect {
	gap := now - o.seen
	first := o.seen == 0
	o.seen = now
	if first || gap <= frozenAfter {
		return out
	}
	o.Hearing.Frozen(now)
	o.Presence.restart(now)
	out = o.Hearing.tick(now, tickFast, out)
	return o.Deliveries.tick(now, out) // which calls may be somebody else's by now
}

// Up says that the connection is there, again or for the first time.
func (o *Owner) Up(now time.Duration, out []Effect) []Effect {
	out = o.Beat(now, out)
	o.Hearing.Up(now)
	o.Presence.restart(now)
	o.Asks.reconnected()
	o.Runs.restart()
	o.Deliveries.restart()
	o.Accepts.restart()
	o.Waits.restart()
	return o.tick(now, out)
}

// Down says that the connection is lost.
func (o *Owner) Down() { o.Hearing.Down() }

// Dropped says that the client lost messages, because its buffer was full.
func (o *Owner) Dropped(now time.Duration) {
	o.Hearing.Frozen(now)
	o.Asks.reconnected()
	o.Waits.restart()
}

// Marked says that a process's mark was seen, with the stages and classes that it serves.
func (o *Owner) Marked(now time.Duration, name string, groups []string, out []Effect) []Effect {
	out, appeared := o.Presence.Marked(now, name, groups, out)
	if appeared {
		o.Asks.marksChanged()
		for _, g := range groups {
			o.Asks.appeared(g)
			o.Runs.appeared(g)
		}
	}
	return out
}

// Unmarked says that a mark is missing: deleted by its own process, or expired.
func (o *Owner) Unmarked(now time.Duration, name string, deleted bool) {
	o.Presence.Unmarked(now, name, deleted)
	o.Asks.marksChanged()
}

// Shown takes a member's list.
func (o *Owner) Shown(now time.Duration, member string, questions []uint64, works []Work, out []Effect) []Effect {
	o.Presence.Sign(now, member)
	o.Asks.shown(now, member, questions)
	return o.Runs.shown(now, member, works, out)
}

// Owned takes an owner's answer to WhoOwns.
func (o *Owner) Owned(now time.Duration, c Claim, out []Effect) []Effect {
	o.Presence.Sign(now, c.Owner)
	o.Accepts.Owned(now, c.Call)
	return o.Deliveries.Owned(now, o.Name, c, out)
}

// Stored takes what came of an effect on a store. Late and double results are ignored.
func (o *Owner) Stored(now time.Duration, e Effect, st Stored, out []Effect) []Effect {
	mine, out := o.Deliveries.Stored(now, e, st, out)
	if mine || e.Op == 0 { // a key that was freed: nothing waits for it
		return out
	}
	if mine, out = o.Runs.Stored(now, e, st, out); mine {
		return out
	}
	if mine, out = o.Waits.Stored(e, st, out); mine {
		return out
	}
	if mine, out = o.Accepts.Stored(now, e, st, out); !mine {
		o.Resumes.Stored(e, st)
	}
	return out
}

// Tick looks at the time. It is to be called when Next says so.
func (o *Owner) Tick(now time.Duration, out []Effect) []Effect { return o.tick(now, o.Beat(now, out)) }

func (o *Owner) tick(now time.Duration, out []Effect) []Effect {
	if every := o.listens(now); every > 0 {
		out = o.Hearing.tick(now, every, out)
	}
	out, changed := o.Presence.tick(now, o.Hearing, out)
	out = o.Asks.tick(now, out)
	out = o.Deliveries.tick(now, out) // before Runs: no offer of a call that may be somebody else's
	out = o.Runs.tick(now, changed, out)
	out = o.Accepts.tick(now, out)
	out = o.Waits.tick(now, out)
	return o.Resumes.tick(now, out)
}

// listens is how often the owner must find out whether it hears, 0 for not at all.
func (o *Owner) listens(now time.Duration) time.Duration {
	switch {
	case o.Asks.listens(now) || !o.Hearing.Current():
		return tickFast
	case o.Runs.urgent(now) || o.Deliveries.urgent() || o.Accepts.urgent() || o.Presence.watching():
		return holdersEvery
	case o.Runs.listens(now):
		return time.Second
	}
	return 0
}

// Next is when Tick is to be called at the latest. A question that is sent meanwhile need not change it.
func (o *Owner) Next(now time.Duration) time.Duration {
	switch o.listens(now) {
	case tickFast:
		return now + tickFast
	case 0, time.Second:
		if o.Asks.hurry {
			return now + tickFast
		}
		return now + tickSlow
	}
	return now + 2*tickFast
}

// Idle reports whether nothing of any call is left in this process's hands.
func (o *Owner) Idle() bool {
	waits := slices.ContainsFunc(o.Waits.order, func(w *wait) bool { return w.call != "" })
	return !waits && len(o.Deliveries.order)+len(o.Accepts.order)+len(o.Resumes.order) == 0
}
