// Package inflight counts what is under way.
package inflight

import (
	"sync"
	"time"
)

// Group counts what is under way. The zero value is ready. Unlike sync.WaitGroup it may grow while somebody waits for it
// to be empty: a request may come in while a server stops.
type Group struct {
	mu    sync.Mutex
	n     int
	empty chan struct{} // closed when nothing is under way; nil while nobody waits
}

// Begin counts one more, until its end is called.
func (g *Group) Begin() (end func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.n--; g.n == 0 && g.empty != nil {
			close(g.empty)
			g.empty = nil
		}
	}
}

// Wait returns when nothing is under way.
func (g *Group) Wait() { <-g.whenEmpty() }

// WaitFor is Wait, for limit at the longest.
func (g *Group) WaitFor(limit time.Duration) {
	select {
	case <-g.whenEmpty():
	case <-time.After(limit):
	}
}

func (g *Group) whenEmpty() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n == 0 {
		done := make(chan struct{})
		close(done)
		return done
	}
	if g.empty == nil {
		g.empty = make(chan struct{})
	}
	return g.empty
}
