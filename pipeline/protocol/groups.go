package protocol

import (
	"slices"
	"time"
)

// group is what an owner knows of one stage's members.
type group struct {
	name    string
	members []string // marked, by name
	turn    int
	times   [100]time.Duration // of the last answers
	answers int
}

// took remembers how long an answer took.
func (g *group) took(d time.Duration) {
	g.times[g.answers%len(g.times)] = d
	g.answers++
}

// patience is how long a question to the group may stay without a sign: four times the 99th percentile of the last
// answers, at least the least. It has a bound, because slow work is shown in lists: what has no sign at all for so
// long is lost, however slow the stage is.
func (g *group) patience(least time.Duration) time.Duration {
	n := min(g.answers, len(g.times))
	if n == 0 {
		return least
	}
	sorted := g.times
	slices.Sort(sorted[:n])
	return max(least, min(4*sorted[(n-1)*99/100], silentMost))
}

// route names the member to ask by its own subject, or nobody where the group is asked: always while no member is
// passed over, and where all are. Of those that are passed over one that was heard a moment ago is better than the
// group, which may choose one that stands still, and so is asking not, which is to be avoided, once more.
func (g *group) route(now time.Duration, p *Presence, not string) string {
	if p.passed == 0 || not == "" && !p.silentIn(g.name) {
		return ""
	}
	slow := -1
	for i := range g.members {
		at := (g.turn + 1 + i) % len(g.members)
		switch name := g.members[at]; {
		case name == not:
		case p.Alive(name):
			g.turn = at
			return name
		case slow < 0 && p.slow(now, name):
			slow = at
		}
	}
	switch {
	case slow >= 0:
		g.turn = slow
		return g.members[slow]
	case p.silentIn(g.name) && p.Alive(not):
		return not
	}
	return ""
}
