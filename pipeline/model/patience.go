package model

import (
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// patience remembers, for all calls of this process, which models of which provider asked for a pause. A call that got
// such an answer itself avoids the whole provider (see the stages); other calls avoid only that model, because many
// providers limit by model. It only saves requests: other processes do not know of the pause.
type patience struct {
	mu    sync.Mutex
	until map[string]time.Time
}

const (
	mostPatience = time.Minute            // a provider that names a wrong time is not avoided for long
	clockSkew    = 250 * time.Millisecond // how much the clocks of two processes may differ
	mostRefusals = 10000
)

func routeKey(p Provider, model string) string { return p.Name + "/" + model }

// refuses returns the fault of a run that is too early, or nil.
func (m *patience) refuses(p Provider, model string) *messages.Fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := time.Until(m.until[routeKey(p, model)])
	if left <= clockSkew {
		return nil
	}
	f := messages.NewFault(messages.ProviderLimited, "provider %s limits our requests; try again later", p.Name)
	f.RetryAfter, f.Unsent = left, true
	return p.explain(f, "not asked: it wants no request for model %s for another %s", model,
		left.Round(time.Millisecond))
}

// learn remembers a pause that a provider asked for.
func (m *patience) learn(p Provider, model string, f *messages.Fault) {
	if f.RetryAfter <= clockSkew || f.Unsent || p.Client != nil { // a provider in this process has no limits
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
