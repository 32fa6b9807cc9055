package bus

import (
	"fmt"
	"time"

	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// Health is what this process knows of its part of the installation. It asks nobody.
type Health struct {
	// Stored is nil if the store took the last mark of this process, and not long ago: it takes one every few seconds.
	Stored error
	// Draining says that the process takes nothing new.
	Draining bool
	// Groups counts the processes that serve each <kind>.<stage or class>, this one included.
	Groups map[string]int
}

// Health tells how this process finds the installation.
func (n *Node) Health() Health {
	return Health{Stored: n.presence.stored(time.Now()), Draining: n.draining.Load(), Groups: n.presence.groups()}
}

// Group is how Health names a stage or a class of targets.
func (n *Node) Group(kind, name string) string { return kind + "." + name }

// markLate is how old the last mark may be: one refresh may fail without a word.
const markLate = 2*markEvery + storeTime

// noted remembers what came of storing the marks.
func (p *presence) noted(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed = err; err == nil {
		p.last = time.Now()
	}
}

func (p *presence) stored(now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.failed != nil:
		return fmt.Errorf("the store does not take the mark of this process: %w", jet.Said(p.failed))
	case now.Sub(p.last) > markLate:
		return fmt.Errorf("the store has taken no mark of this process for %s", now.Sub(p.last).Round(time.Second))
	}
	return nil
}

func (p *presence) groups() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]int{}
	for _, m := range p.marks {
		if !m.member {
			continue
		}
		for _, g := range m.groups {
			out[g]++
		}
	}
	return out
}
