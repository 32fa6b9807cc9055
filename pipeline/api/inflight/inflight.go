// Package inflight counts work under way and waits for its end.
package inflight

import (
	"sync"
	"time"
)

// Group counts work under way. The zero value is ready for use. Unlike a sync.WaitGroup it may grow while it is waited
// for: a request may come in while a server stops.
type Group struct {
	mu    sync.Mutex
	n     int
	empty chan struct{} // closed when nothing is under way; nil unless there is a waiter
}

// Begin counts one more until end is called.
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

// WaitFor is Wait, but returns after limit at the latest.
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
