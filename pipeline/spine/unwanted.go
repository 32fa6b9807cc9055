package spine

import (
	"sync"
	"time"
)

// unwanted remembers for a while which calls were cancelled: a cancel may overtake its call.
type unwanted struct {
	mu    sync.Mutex
	calls map[string]time.Time
}

const (
	unwantedFor  = 10 * time.Minute
	unwantedMost = 50_000
)

func (u *unwanted) add(id string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.calls) >= unwantedMost {
		for k, t := range u.calls {
			if now.Sub(t) > unwantedFor {
				delete(u.calls, k)
			}
		}
	}
	if len(u.calls) < unwantedMost {
		u.calls[id] = now
	}
}

func (u *unwanted) has(id string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	t, ok := u.calls[id]
	return ok && time.Since(t) <= unwantedFor
}
