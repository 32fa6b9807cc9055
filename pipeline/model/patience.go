package model

import (
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// patience remembers, for all calls of this process, which models of which provider asked not to be asked for a while.
// A call that was told so itself leaves the whole provider alone (see the stages); for the others only what was refused
// is out, because many providers limit by model. It is a saving and no promise: another process does not know.
type patience struct {
	mu    sync.Mutex
	until map[string]time.Time
}

const (
	mostPatience = time.Minute            // a time that was named by mistake shuts nobody out for long
	clockSkew    = 250 * time.Millisecond // what the clocks of two of our processes may differ by
	mostRefusals = 10000
)

func routeKey(p Provider, model string) string { return p.Name + "/" + model }

// refuses returns the fault of a run that would come too early, or nil.
func (m *patience) refuses(p Provider, model string) *messages.Fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := time.Until(m.until[routeKey(p, model)])
	if left <= clockSkew {
		return nil
	}
	f := messages.NewFault(messages.ProviderLimited, "provider %s limits our requests; try again later", p.Name)
	f.RetryAfter, f.Unsent = left, true
	return p.explain(f, "not asked: it wants no request for model %s for another %s", model, left.Round(time.Millisecond))
}

// learn takes what a provider asked for.
func (m *patience) learn(p Provider, model string, f *messages.Fault) {
	if f.RetryAfter <= clockSkew || f.Unsent || p.Client != nil { // a provider within this process has no limits
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if len(m.until) >= mostRefusals {
		for key, until := range m.until {
			if until.Before(now) {
				delete(m.until, key)
			}
		}
	}
	if m.until == nil || len(m.until) >= mostRefusals {
		m.until = map[string]time.Time{}
	}
	m.until[routeKey(p, model)] = now.Add(min(f.RetryAfter, mostPatience))
}
