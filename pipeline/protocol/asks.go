package protocol

import (
	"slices"
	"time"
)

// Question is one phase of a call that a stage's members are asked to run.
type Question struct {
	Call  string
	Stage string // the queue group
	// Skip says that the stage may be skipped where nobody serves it; otherwise the question waits.
	Skip bool
	// Local says that all members of the stage that are known live in the owner's process: nothing gets lost then but by
	// an outage, and to a process that has subscribed and left no mark yet.
	Local bool
}

// Asks holds the open questions of an owner and asks again what seems lost.
type Asks struct {
	least    time.Duration // how long a question may stay without a sign, at least
	presence *Presence
	hearing  *Hearing
	groups   map[string]*group
	open     map[uint64]ask
	last     uint64
	first    time.Duration // when the oldest question may have left; an early guess is harmless
	second   time.Duration // the second that is being counted
	asked    [2]int        // questions of the last second and of this one
	repeated int           // in this second
	hurry    bool          // some question is to be asked again as soon as possible
	again    []uint64      // scratch of tick
}

// ask has at most 128 bytes: a map allocates each larger value.
type ask struct {
	call   string
	group  *group
	begun  time.Duration
	sent   time.Duration // when it was last asked
	sign   time.Duration // when a list or a chunk last showed it
	holder string        // who showed it
	to     string        // the member that was asked by its own subject, "" for the group
	asks   int32
	absent int32 // how often nobody was there since the last sign
	gone   int8  // members that died while they alone had it
	unread bool  // nobody was there for the last ask
	skip   bool
	local  bool
	forced bool // to be asked again as soon as possible
}

func newAsks(patience time.Duration, p *Presence, h *Hearing) Asks {
	return Asks{least: patience, presence: p, hearing: h, groups: map[string]*group{}, open: map[uint64]ask{}}
}

// Sent registers a question that leaves now and returns its number and the member to ask; "" is the group.
func (a *Asks) Sent(now time.Duration, q Question) (n uint64, to string) {
	g := a.group(q.Stage)
	a.count(now)
	a.asked[1]++
	a.last++
	if len(a.open) == 0 || now < a.first {
		a.first = now
	}
	if !q.Local {
		to = g.route(now, a.presence, "")
	}
	a.open[a.last] = ask{call: q.Call, group: g, begun: now, sent: now, to: to, asks: 1, skip: q.Skip, local: q.Local}
	return a.last, to
}

// Answered closes a question. It reports false for one that is no longer open: that answer is dropped and counted.
func (a *Asks) Answered(now time.Duration, n uint64, member string) bool {
	q, open := a.open[n]
	a.presence.Sign(now, member)
	if !open {
		return false
	}
	if q.asks == 1 { // the time of a lost question says nothing about the stage
		q.group.took(now - q.begun)
	}
	delete(a.open, n)
	return true
}

// Forget closes a question that nobody waits for any more. It returns who may have it in hand and can drop it: the
// member that showed it or was asked by name, or all members of its stage.
func (a *Asks) Forget(n uint64) []string {
	q, open := a.open[n]
	delete(a.open, n)
	switch {
	case !open:
		return nil
	case q.asks == 1 && q.holder != "":
		return []string{q.holder}
	case q.asks == 1 && q.to != "":
		return []string{q.to}
	}
	return slices.Clone(q.group.members)
}

func (a *Asks) group(stage string) *group {
	g := a.groups[stage]
	if g == nil {
		g = &group{name: stage, members: a.presence.Members(stage)}
		a.groups[stage] = g
	}
	return g
}

// shown takes a member's list: the questions in it are in good hands until the next list, others are not.
func (a *Asks) shown(now time.Duration, member string, questions []uint64) {
	for n, q := range a.open {
		if q.holder == member {
			q.holder = ""
			a.open[n] = q
		}
	}
	for _, n := range questions {
		if q, open := a.open[n]; open {
			q.holder, q.sign, q.absent, q.unread = member, now, 0, false
			a.open[n] = q
		}
	}
}

// Chunk is a sign of one question.
func (a *Asks) Chunk(now time.Duration, n uint64, member string) {
	if q, open := a.open[n]; open {
		q.holder, q.sign, q.absent, q.unread = member, now, 0, false
		a.open[n] = q
	}
}

// NoResponders is what the server says of an ask that nobody subscribes to. to is whom it was sent to.
func (a *Asks) NoResponders(now time.Duration, n uint64, to string, out []Effect) []Effect {
	q, open := a.open[n]
	if !open {
		return out
	}
	if to != "" {
		a.presence.PassOver(now, to)
		if q.to != to {
			return out
		}
		q.unasked()
		if q.asks >= askAlone && a.alive(q.group) == 0 {
			q.absent++
			q.unread = true
			a.open[n] = q
			return out
		}
		a.force(n, q)
		return out
	}
	q.unasked()
	return a.absent(n, q, out)
}

// unasked takes the last ask back: nobody has read it, which says nothing about the question. The server may say so
// twice.
func (q *ask) unasked() { q.asks = max(q.asks-1, 0) }

func (a *Asks) absent(n uint64, q ask, out []Effect) []Effect {
	if q.skip {
		delete(a.open, n)
		return append(out, Effect{Kind: Wake, Call: q.call, N: n, Why: Skipped})
	}
	q.absent++
	q.unread = true
	a.open[n] = q
	return out
}

// appeared asks at once what waited for somebody to serve the stage.
func (a *Asks) appeared(group string) {
	for n, q := range a.open {
		if q.unread && q.group.name == group {
			a.force(n, q)
		}
	}
}

func (a *Asks) force(n uint64, q ask) {
	q.forced, a.hurry = true, true
	a.open[n] = q
}

// marksChanged reads anew who serves which stage.
func (a *Asks) marksChanged() {
	for _, g := range a.groups {
		g.members = a.presence.Members(g.name)
	}
}

// reconnected asks again what lives in this process alone: no list tells whether an outage or a full buffer took it.
func (a *Asks) reconnected() {
	for n, q := range a.open {
		if q.local {
			a.force(n, q)
		}
	}
}

// listens reports whether a question is so old that its owner must know whether it hears.
func (a *Asks) listens(now time.Duration) bool {
	if len(a.open) == 0 || now-a.first < showAfter {
		return false
	}
	old := false
	a.first = now
	for _, q := range a.open {
		if !q.local {
			a.first = min(a.first, q.begun)
			old = old || now-q.begun >= showAfter
		}
	}
	return old
}

// tick asks again.
func (a *Asks) tick(now time.Duration, out []Effect) []Effect {
	a.count(now)
	a.again, a.hurry = a.again[:0], false
	for n, q := range a.open {
		if q.local && now-max(q.sent, q.sign) >= listStands { // this process does not have it
			q.local = false
			a.open[n] = q
		}
		if q.forced || now-q.sent >= showAfter && !q.local {
			a.again = append(a.again, n)
		}
	}
	slices.Sort(a.again)
	for _, n := range a.again {
		out = a.look(now, n, a.open[n], out)
	}
	return out
}

func (a *Asks) look(now time.Duration, n uint64, q ask, out []Effect) []Effect {
	quiet := a.hearing.Since(max(q.sent, q.sign))
	switch {
	case q.forced:
		return a.repeat(now, n, q, out)
	case q.holder != "" && quiet < listStands && !a.presence.Gone(q.holder):
		return out
	case q.unread:
		if a.hearing.up && now-q.sent >= backoff(int(q.absent)-1) {
			return a.repeat(now, n, q, out)
		}
		return out
	case q.asks > askAlone:
		return a.lookAlone(now, n, q, out)
	case len(q.group.members) == 0 && quiet >= noSignIsAbsent:
		return a.absent(n, q, out)
	case quiet >= a.patience(q):
		out = a.suspect(now, q, out)
		return a.repeat(now, n, q, out)
	case q.asks > 1 && q.to == "" && quiet >= a.least && a.silentKnown(q.group):
		return a.repeat(now, n, q, out) // meanwhile it is known who was silent: no need to wait for the next turn
	}
	return out
}

// alive counts the members of the group that are not passed over.
func (a *Asks) alive(g *group) int {
	alive := 0
	for _, m := range g.members {
		if a.presence.Alive(m) {
			alive++
		}
	}
	return alive
}

// silentKnown reports whether some members of the group are passed over and others are not.
func (a *Asks) silentKnown(g *group) bool {
	if a.presence.passed == 0 {
		return false
	}
	alive := a.alive(g)
	return alive > 0 && (alive < len(g.members) || a.presence.silentIn(g.name))
}

func (a *Asks) patience(q ask) time.Duration {
	if q.asks <= 1 {
		return q.group.patience(a.least)
	}
	return max(backoff(int(q.asks)), q.group.patience(a.least))
}

// lookAlone waits until the one member that was asked was heard without the question, or is gone.
func (a *Asks) lookAlone(now time.Duration, n uint64, q ask, out []Effect) []Effect {
	if a.presence.Gone(q.to) {
		if q.gone++; q.gone >= goneAlone {
			delete(a.open, n)
			return append(out, Effect{Kind: DeadLetter, Call: q.call, Group: q.group.name, N: n, Why: Undeliverable},
				Effect{Kind: Wake, Call: q.call, N: n, Why: Undeliverable})
		}
		a.open[n] = q
		return a.repeat(now, n, q, out)
	}
	if a.hearing.Since(q.sent) < backoff(int(q.asks)) {
		return out
	}
	if a.presence.Heard(q.to) > q.sent+listEvery || q.holder == q.to {
		return a.repeat(now, n, q, out)
	}
	return a.presence.Suspect(now, q.to, out)
}

// suspect pings all members of the group: the group does not tell who was silent.
func (a *Asks) suspect(now time.Duration, q ask, out []Effect) []Effect {
	for _, m := range q.group.members {
		if now-a.presence.Heard(m) >= a.least {
			out = a.presence.Suspect(now, m, out)
		}
	}
	return out
}

// repeat asks once more, if the budget of repetitions allows it.
func (a *Asks) repeat(now time.Duration, n uint64, q ask, out []Effect) []Effect {
	if !a.hearing.up || a.repeated >= max(repeatsFloor, a.asked[0]/10) {
		return out
	}
	a.repeated++
	alone := q.asks >= askAlone && !q.local
	not := q.to
	if alone && len(q.group.members) == 0 {
		return a.absent(n, q, out)
	}
	switch {
	case q.local:
		q.to = ""
	case alone:
		q.to = a.alone(now, q.group, not)
	default:
		q.to = q.group.route(now, a.presence, not)
	}
	q.sent, q.holder, q.forced, q.unread = now, "", false, false
	q.asks++
	a.open[n] = q
	return append(out, Effect{Kind: Ask, Call: q.call, Group: q.group.name, To: q.to, N: n, Alone: alone})
}

// alone picks one member: the next living one, or any where all are silent.
func (a *Asks) alone(now time.Duration, g *group, not string) string {
	if to := g.route(now, a.presence, not); to != "" {
		return to
	}
	for range g.members {
		g.turn = (g.turn + 1) % len(g.members)
		if a.presence.Alive(g.members[g.turn]) {
			break
		}
	}
	return g.members[g.turn]
}

// count keeps the numbers of the last second and of this one.
func (a *Asks) count(now time.Duration) {
	if s := now / time.Second; s != a.second {
		a.asked[0] = a.asked[1]
		if s != a.second+1 {
			a.asked[0] = 0
		}
		a.asked[1], a.repeated, a.second = 0, 0, s
	}
}
