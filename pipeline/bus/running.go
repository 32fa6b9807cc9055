package bus

import (
	"context"
	"sync"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// running holds the calls that this process runs, by id.
type running struct {
	observer pipeline.Observer // nil: nobody listens
	mu       sync.Mutex
	calls    map[string]*owned
}

// own makes a call one that this process runs; release is to be called at its end. There is one of an id at a time:
// own returns nil where the call runs already.
func (r *running) own(c *messages.Call, isDurable, fresh bool) *owned {
	o := &owned{call: c, id: c.ID, tenant: c.Tenant, parent: c.Parent, durable: isDurable, fresh: fresh}
	o.mail.news = make(chan struct{}, 1)
	o.ctx, o.cancel = context.WithCancelCause(context.Background())
	o.stop = func() { o.cancel(nil) }
	if !c.Deadline.IsZero() {
		o.ctx, o.stop = context.WithDeadline(o.ctx, c.Deadline)
	}
	if !r.add(o) {
		o.stop()
		return nil
	}
	o.seen.watch = watchOf(r.observer, c, pipeline.Ownership{Durable: isDurable, Again: !fresh || c.Generation > 0})
	return o
}

func (r *running) add(o *owned) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls[o.id] != nil {
		return false
	}
	if r.calls == nil {
		r.calls = map[string]*owned{}
	}
	r.calls[o.id] = o
	return true
}

func (r *running) release(o *owned) {
	o.stop()
	o.cancel(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.calls, o.id)
}

func (r *running) get(id string) *owned {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[id]
}

// of returns the call and those that were made for it.
func (r *running) of(id string) (out []*owned) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.calls {
		if o.id == id || o.parent == id && id != noParent {
			out = append(out, o)
		}
	}
	return out
}

// cancelBound ends the calls that nobody goes on with when this process has stopped.
func (r *running) cancelBound(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.calls {
		if !o.durable {
			o.cancel(why)
		}
	}
}

// count is how many calls run here.
func (r *running) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.calls)
}
