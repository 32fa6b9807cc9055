package bus

import (
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// unwanted remembers for a while which calls were cancelled: a cancel may overtake its call.
type unwanted struct {
	mu     sync.Mutex
	calls  map[string]time.Time
	bounds map[string]string // tenants of those that were not stored and ran here
}

func newUnwanted() *unwanted {
	return &unwanted{calls: map[string]time.Time{}, bounds: map[string]string{}}
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
				delete(u.bounds, k)
			}
		}
	}
	if len(u.calls) < unwantedMost {
		u.calls[id] = now
	}
}

// addBound is add for a call that is not stored: nothing else will tell of it.
func (u *unwanted) addBound(id, tenant string, now time.Time) {
	u.add(id, now)
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, ok := u.calls[id]; ok {
		u.bounds[id] = tenant
	}
}

// bound reports whether a call of the tenant, or of any if that is empty, was cancelled here that was not stored.
func (u *unwanted) bound(tenant, id string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	of, ok := u.bounds[id]
	return ok && (tenant == "" || of == tenant) && time.Since(u.calls[id]) <= unwantedFor
}

func (u *unwanted) has(id string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	t, ok := u.calls[id]
	return ok && time.Since(t) <= unwantedFor
}

// cancel ends a stored call that its caller does not want any more, wherever it is.
func (d *durables) cancel(id string) {
	if err := d.opts.nc.Publish(d.subj.Cancel(id), nil); err != nil {
		d.opts.log.Warn("cancel was not sent", "call", id, "err", err)
	}
}

// unasked hears that somebody's caller does not want a call any more.
func (d *durables) unasked(m *nats.Msg) {
	id, ok := messages.Untoken(strings.TrimPrefix(m.Subject, d.subj.Cancel("")[:len(d.subj.Cancel(""))-1]))
	if !ok {
		return
	}
	d.unwanted.add(id, time.Now())
	d.cancelBound("", id)
	d.held.due(id)
	for _, o := range d.calls.of(id) {
		o.cancel(pipeline.ErrCancelled)
	}
}
