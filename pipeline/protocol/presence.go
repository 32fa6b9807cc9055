package protocol

import (
	"slices"
	"strings"
	"time"
)

// Presence knows the other processes: who has a mark, who is silent and therefore passed over, who is gone, and how
// far their clocks are off. Owners keep one of members and owners, members keep one of owners.
type Presence struct {
	own       string
	processes map[string]*process
	order     []*process // by name, so that a simulation repeats itself
	passed    int        // how many are passed over
	swept     time.Duration
	refreshed time.Duration
	steady    time.Duration // since when the own mark is refreshed without a gap
}

type process struct {
	name    string
	groups  []string
	marked  bool
	passed  bool
	gone    bool
	deleted bool
	off     bool // the server says that it does not listen
	heard   time.Duration
	silent  time.Duration // when the first unanswered ping left; 0: none is out
	pinged  time.Duration
	pings   int
	// offset is what to subtract from the process's clock to get ours, and trip the round trip that measured it.
	offset, trip time.Duration
}

// NewPresence returns what a process with the given name knows at its start: nobody.
func NewPresence(own string) *Presence {
	return &Presence{own: own, processes: map[string]*process{}}
}

// Refreshed says that the own mark was stored. Absence of other marks counts only while the own one holds.
func (p *Presence) Refreshed(now time.Duration) {
	if now-p.refreshed > steadyGap || p.refreshed == 0 {
		p.steady = now
	}
	p.refreshed = now
}

// Marked says that a process's mark is there, and for which stages and classes. New processes are pinged once, which
// measures their clocks; so are those whose marks had ended, for a machine that was suspended comes back with another
// clock. It reports whether the mark is new, or says something else than before.
func (p *Presence) Marked(now time.Duration, name string, groups []string, out []Effect) ([]Effect, bool) {
	m, known := p.processes[name]
	if !known {
		m = p.add(name)
	}
	if known && !m.marked {
		m.trip = 0
	}
	appeared := !m.marked || !slices.Equal(m.groups, groups)
	m.marked, m.deleted, m.gone, m.groups = true, false, false, groups
	m.off = m.off && !appeared
	if m.trip == 0 {
		out = append(out, Effect{Kind: Ping, To: name, At: now})
	}
	return out, appeared
}

// Unmarked says that a mark is missing: deleted by its own process, or expired.
func (p *Presence) Unmarked(now time.Duration, name string, deleted bool) {
	m := p.processes[name]
	if m == nil {
		m = p.add(name)
	}
	m.marked, m.deleted = false, deleted
	if m.silent == 0 {
		m.silent = now
	}
	if m.deleted || m.off {
		p.pass(m, false) // nothing can come to it
	}
}

// Watch makes sure that it will be found out whether the named process is gone, also if it never had a mark here.
func (p *Presence) Watch(now time.Duration, name string) {
	if p.processes[name] == nil {
		p.add(name).silent = now
	}
}

func (p *Presence) add(name string) *process {
	m := &process{name: name}
	p.processes[name] = m
	at, _ := slices.BinarySearchFunc(p.order, name, func(m *process, name string) int {
		return strings.Compare(m.name, name)
	})
	p.order = slices.Insert(p.order, at, m)
	return m
}

// Sign says that something of the process was heard.
func (p *Presence) Sign(now time.Duration, name string) {
	if m := p.processes[name]; m != nil {
		m.heard, m.off = now, false
		if m.silent != 0 && !m.deleted {
			m.silent, m.pings, m.gone = 0, 0, false
			p.pass(m, false)
		}
	}
}

// Pong is the answer to a ping that left at sent; theirs is the answering process's clock.
func (p *Presence) Pong(now time.Duration, name string, sent, theirs time.Duration) {
	p.Sign(now, name)
	m := p.processes[name]
	if m == nil {
		return
	}
	if trip := now - sent; m.trip == 0 || trip <= m.trip {
		m.trip, m.offset = max(trip, 1), theirs-(sent+trip/2)
	}
}

// Here converts a time on another process's clock. A clock that was never measured is taken to be right, and the own
// one is.
func (p *Presence) Here(name string, theirs time.Duration) time.Duration {
	if m := p.processes[name]; m != nil && name != p.own {
		return theirs - m.offset
	}
	return theirs
}

// Suspect begins to ping a process that should have been heard.
func (p *Presence) Suspect(now time.Duration, name string, out []Effect) []Effect {
	m := p.processes[name]
	if m == nil || m.silent != 0 {
		return out
	}
	m.silent, m.pinged, m.pings = now, now, 1
	return append(out, Effect{Kind: Ping, To: name, At: now})
}

// PassOver passes a process over at once: the server said that it does not listen.
func (p *Presence) PassOver(now time.Duration, name string) {
	if m := p.processes[name]; m != nil {
		if m.silent == 0 {
			m.silent = now
		}
		m.off = true
		p.pass(m, m.marked)
	}
}

// silentIn reports whether a member of the group is passed over that may still get what is sent to the group. The end
// of its mark does not change that: the server takes a process that stands still for one that listens, for minutes.
func (p *Presence) silentIn(group string) bool {
	return p.passed > 0 && slices.ContainsFunc(p.order, func(m *process) bool {
		return m.passed && !m.off && slices.Contains(m.groups, group)
	})
}

// slow reports whether a process is passed over that was heard not long ago.
func (p *Presence) slow(now time.Duration, name string) bool {
	m := p.processes[name]
	return m != nil && m.marked && m.passed && !m.off && now-m.heard < listStands
}

func (p *Presence) pass(m *process, passed bool) {
	if m.passed != passed {
		m.passed = passed
		if passed {
			p.passed++
		} else {
			p.passed--
		}
	}
}

// EmbeddedName is what the names of processes begin with that hold the lock of the server's data directory: to each of
// them, all others are certainly gone.
const EmbeddedName = "embedded-"

// Gone reports whether a process is known not to live any more.
func (p *Presence) Gone(name string) bool {
	if strings.HasPrefix(p.own, EmbeddedName) && strings.HasPrefix(name, EmbeddedName) {
		return name != p.own
	}
	m := p.processes[name]
	return m != nil && (m.gone || m.deleted)
}

// Alive reports whether the process has a mark and is not passed over.
func (p *Presence) Alive(name string) bool {
	m := p.processes[name]
	return m != nil && m.marked && !m.passed
}

// Heard is when the process was last heard, 0 for never.
func (p *Presence) Heard(name string) time.Duration {
	if m := p.processes[name]; m != nil {
		return m.heard
	}
	return 0
}

// Members lists the marked processes of a group by name.
func (p *Presence) Members(group string) []string {
	var names []string
	for _, m := range p.order {
		if m.marked && slices.Contains(m.groups, group) {
			names = append(names, m.name)
		}
	}
	return names
}

// Others reports whether a process other than this one serves the group, or may still get what is sent to the group
// although its mark has ended.
func (p *Presence) Others(group string) bool {
	return slices.ContainsFunc(p.order, func(m *process) bool {
		return m.name != p.own && (m.marked || !m.deleted && !m.off) && slices.Contains(m.groups, group)
	})
}

func (p *Presence) isSteady(now time.Duration) bool {
	return p.refreshed != 0 && now-p.refreshed <= steadyGap && now-p.steady >= steadyFor
}

// watching reports whether a process is silent, so that somebody must listen for it.
func (p *Presence) watching() bool {
	for _, m := range p.order {
		if m.silent != 0 && !m.gone && !m.deleted {
			return true
		}
	}
	return false
}

// tick pings the silent, passes over who does not answer, and finds out who is gone. changed reports that somebody
// was passed over or found gone now.
func (p *Presence) tick(now time.Duration, h *Hearing, out []Effect) (_ []Effect, changed bool) {
	if now-p.swept > time.Minute {
		p.sweep(now)
	}
	for _, m := range p.order {
		every := pingEvery
		switch {
		case m.silent == 0 || m.deleted || m.gone && !m.passed:
			continue
		case m.gone: // it is asked only to hear that it does not listen any more
			every = readEvery
		default:
			changed = p.judge(now, m, h) || changed
		}
		if h.up && now-m.pinged >= every && (!m.gone || m.passed) {
			m.pinged = now
			m.pings++
			out = append(out, Effect{Kind: Ping, To: m.name, At: now})
		}
	}
	return out, changed
}

// judge passes a silent process over that does not answer, and finds out whether it is gone. It reports a change.
func (p *Presence) judge(now time.Duration, m *process, h *Hearing) (changed bool) {
	if m.pings > 0 && !m.passed && (m.marked || !m.off) && h.Since(m.pinged) >= pongWithin {
		p.pass(m, true)
		changed = true
	}
	if !m.marked && p.isSteady(now) && m.pings >= gonePings && h.Since(m.silent) >= goneAfter {
		m.gone, changed = true, true
	}
	return changed
}

// sweep forgets processes that have been gone for long: a name never comes back.
func (p *Presence) sweep(now time.Duration) {
	p.swept = now
	p.order = slices.DeleteFunc(p.order, func(m *process) bool {
		old := (m.gone || m.deleted) && now-m.silent > time.Hour
		if old {
			p.pass(m, false)
			delete(p.processes, m.name)
		}
		return old
	})
}

// restart forgets pings that an outage may have swallowed.
func (p *Presence) restart(now time.Duration) {
	for _, m := range p.processes {
		if m.silent != 0 {
			m.silent, m.pings, m.pinged = now, 0, 0
		}
	}
}
