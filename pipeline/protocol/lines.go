package protocol

import "time"

// line is where an owner's work waits for a class of members that is full or absent: in turn between tenants. Each
// class has its own, so that one that is dead or slow holds up no other.
type line struct {
	class  string
	kids   turns[*run] // parts of other calls: they go before those that begin something new
	turns  turns[*run]
	full   bool                     // every member said that it is busy; until one says that it has room
	absent int                      // how often nobody was there
	since  time.Duration            // of the last try while full or absent
	busy   map[string]time.Duration // members that had no room, and when they said so
	turn   int                      // whose turn it is among the members that have room
	out    int                      // runs that are offered or held
	filled time.Duration            // since when the class is full or absent
	done   time.Duration            // when work of this class last ended here
	took   time.Duration            // smoothed time from the offer to the end
}

func newLine(class string) *line {
	return &line{class: class, kids: newTurns[*run](), turns: newTurns[*run](), busy: map[string]time.Duration{}}
}

func (l *line) open() bool { return !l.full && l.absent == 0 && l.length() == 0 }

// length is how much work waits.
func (l *line) length() int { return l.kids.length + l.turns.length }

// of is the line in which the run waits.
func (l *line) of(r *run) *turns[*run] {
	if r.spec.Child {
		return &l.kids
	}
	return &l.turns
}

// ahead is how many are served before what the run's tenant would add now.
func (l *line) ahead(r *run) int {
	if r.spec.Child {
		return l.kids.ahead(r.spec.Tenant)
	}
	return l.kids.length + l.turns.ahead(r.spec.Tenant)
}

func (l *line) join(r *run) {
	r.place.of = r
	l.of(r).join(r.spec.Tenant, &r.place)
}

// next takes the run whose turn it is; nil: nobody waits.
func (l *line) next() *run {
	r, ok := l.kids.next()
	if !ok {
		r, _ = l.turns.next()
	}
	return r
}

func (l *line) leave(r *run) { l.of(r).leave(&r.place) }

// close notes that nobody has room.
func (l *line) close(now time.Duration) {
	if !l.full && l.absent == 0 {
		l.filled = now
	}
	l.since = now
}

// ended measures how long work of the class takes.
func (l *line) ended(now, took time.Duration) {
	if l.done = now; l.took == 0 {
		l.took = took
		return
	}
	l.took += (took - l.took) / 8
}

// wait is how long work that would be served after ahead others is expected to wait: as many are served in the time
// that one takes as are under way now. Where nothing has ended since the class was full, one takes at least as long as
// that. Without a measure it is 0: nobody is refused on a guess.
func (l *line) wait(now time.Duration, ahead int) time.Duration {
	if l.out == 0 || !l.full {
		return 0
	}
	one := max(l.took, now-max(l.done, l.filled))
	return time.Duration(float64(one) * float64(ahead+1) / float64(l.out))
}

// rest lets busy marks go that nobody has repeated.
func (l *line) rest(now time.Duration) {
	for member, said := range l.busy {
		if now-said >= freeFor {
			delete(l.busy, member)
		}
	}
}

// Enter counts work of this owner that is not offered, because this process does it. It reports false where others wait
// in line, or a member of the class has no room. [Runs.Exit] ends it.
func (s *Runs) Enter(class string) bool {
	l := s.line(class)
	if !l.open() || len(l.busy) > 0 {
		return false
	}
	l.out++
	return true
}

// Exit ends the work that Enter counted; took is how long it took, 0 if it did not begin.
func (s *Runs) Exit(now time.Duration, class string, took time.Duration) {
	l := s.line(class)
	l.out--
	if took > 0 {
		l.ended(now, took)
		l.absent = 0
	}
}
