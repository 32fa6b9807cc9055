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

// route names the member to ask by its own subject, or nobody where the group is asked: always while nobody who takes
// part in it is passed over, and where all are. not is to be avoided.
func (g *group) route(p *Presence, not string) string {
	if not == "" && !p.muted(g.name) {
		return ""
	}
	for range g.members {
		g.turn = (g.turn + 1) % len(g.members)
		if name := g.members[g.turn]; name != not && p.Alive(name) {
			return name
		}
	}
	return ""
}
