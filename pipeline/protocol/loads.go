package protocol

import (
	"slices"
	"strings"
)

// Load is how full a class is: its line here, what is away from here, and the slots here.
type Load struct {
	Class                  string
	Waiting, Tenants, Away int
	Busy, Free, Queued     int
}

// Loads appends a load for each class that this owner has had work for.
func (s *Runs) Loads(to []Load) []Load {
	for _, l := range s.classes {
		to = append(to, Load{Class: l.class, Waiting: l.length(), Tenants: len(l.kids.tenants) + len(l.turns.tenants),
			Away: l.out})
	}
	return to
}

// Loads appends a load for each class that this member serves.
func (s *Works) Loads(to []Load) []Load {
	for _, c := range s.named {
		to = append(to, Load{Class: c.class, Busy: c.used, Free: c.free(), Queued: c.queue.length})
	}
	return to
}

// Sum makes one load of those of a class, and orders them by name. It changes loads.
func Sum(loads []Load) []Load {
	slices.SortFunc(loads, func(a, b Load) int { return strings.Compare(a.Class, b.Class) })
	out := loads[:0]
	for _, l := range loads {
		if len(out) == 0 || out[len(out)-1].Class != l.Class {
			out = append(out, l)
			continue
		}
		sum := &out[len(out)-1]
		sum.Waiting += l.Waiting
		sum.Tenants += l.Tenants
		sum.Away += l.Away
		sum.Busy += l.Busy
		sum.Free += l.Free
		sum.Queued += l.Queued
	}
	return out
}
