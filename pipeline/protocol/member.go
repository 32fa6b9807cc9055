package protocol

import "time"

// Member decides for a process that serves stages and targets.
type Member struct {
	Name     string
	Presence *Presence
	Hearing  *Hearing
	Hands    Hands
	Works    Works
	seen     time.Duration
	ops      uint64
}

// NewMember returns the member of a process. The name is new in each life of the process.
func NewMember(name string, cfg Config) *Member {
	cfg = cfg.withDefaults()
	m := &Member{Name: name, Presence: NewPresence(name), Hearing: &Hearing{after: cfg.AfterOutage}, Hands: newHands()}
	m.Works = newWorks(name, cfg, m.Presence, m.Hearing, &m.Hands, &m.ops)
	return m
}

// Question takes a question of a stage. It reports false for one that is to be dropped: it is in hand already, or its
// time is over. until is by the owner's clock, 0 for none.
func (m *Member) Question(now time.Duration, owner string, n uint64, until time.Duration) bool {
	if until > 0 && now >= m.Presence.Here(owner, until) {
		return false
	}
	return m.Hands.take(now, owner, n)
}

// Answered says that the answer to a question has left.
func (m *Member) Answered(owner string, n uint64) { m.Hands.done(owner, n) }

// Beat is to be called first with every event but those of the fast path, and by Tick: it notices that the process
// was stopped, before anything old is taken for new.
func (m *Member) Beat(now time.Duration, out []Effect) []Effect {
	gap := now - m.seen
	m.seen = now
	if gap > frozenAfter && gap != now {
		m.Hearing.Frozen(now)
		m.Presence.restart(now)
		out = m.Works.unstarted(now, out)
		out = m.Hearing.tick(now, tickFast, out)
	}
	return out
}

// Down says that the connection is lost. It may have been for seconds: repeatable work that has not begun is dropped,
// for its owner may have offered it to others by now.
func (m *Member) Down(now time.Duration, out []Effect) []Effect {
	out = m.Beat(now, out)
	m.Hearing.Down()
	return m.Works.unstarted(now, out)
}

// Up says that the connection is there, again or for the first time. All that is in hand and kept is shown at once.
func (m *Member) Up(now time.Duration, out []Effect) []Effect {
	out = m.Beat(now, out)
	m.Hearing.Up(now)
	m.Presence.restart(now)
	m.Hands.restart()
	m.Works.restart()
	return m.tick(now, out)
}

// Tick looks at the time. It is to be called when Next says so.
func (m *Member) Tick(now time.Duration, out []Effect) []Effect { return m.tick(now, m.Beat(now, out)) }

func (m *Member) tick(now time.Duration, out []Effect) []Effect {
	if !m.Hearing.up {
		return out
	}
	if !m.Hearing.Current() {
		out = m.Hearing.tick(now, tickFast, out)
	} else if m.Presence.watching() {
		out = m.Hearing.tick(now, holdersEvery, out)
	}
	out, _ = m.Presence.tick(now, m.Hearing, out)
	out = m.Hands.tick(now, m.Presence.Gone, out)
	return m.Works.tick(now, out)
}

// Next is when Tick is to be called at the latest.
func (m *Member) Next(now time.Duration) time.Duration {
	if m.Hands.listens(now) || !m.Hearing.Current() {
		return now + tickFast
	}
	return now + tickSlow
}
