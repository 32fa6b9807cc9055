package stages

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

const (
	toolFlightPrefix = "flight."
	// flightGrace is what a call that runs a tool for others may take beyond the tool's time limit.
	flightGrace = 2 * time.Second
	// maxWaiting bounds the calls that wait for another one's result in this process, so that some places of the stage
	// are always free for other tools; the next ones run the tool.
	maxWaiting = 240
)

// flight says which call runs a tool for all equal ones, and until when that is believed.
type flight struct {
	Call  string    `json:"call"`
	Until time.Time `json:"until"`
}

// flights are the results that calls in this process wait for, by the key of their mark. However many wait for one,
// only one of them looks.
type flights struct {
	mu      sync.Mutex
	waiting int
	by      map[string]*lookout
}

// lookout is one look after a result, for all in this process that wait for it.
type lookout struct {
	waiting int
	end     context.CancelFunc
	over    chan struct{}
	result  *toolResult // once over is closed; nil if it did not come
}

// await returns the result that look finds within the time, or nil. ok is false if too many wait already. look is asked
// until it says done, or the longest time is over, or the last of those who wait has gone.
func (f *flights) await(
	ctx context.Context, key string, limit, longest time.Duration,
	look func(context.Context) (r *toolResult, done bool),
) (r *toolResult, ok bool) {
	f.mu.Lock()
	if f.waiting >= maxWaiting {
		f.mu.Unlock()
		return nil, false
	}
	f.waiting++
	o := f.by[key]
	if o == nil {
		shared, end := context.WithCancel(context.WithoutCancel(ctx)) // one who leaves must not end it for the others
		o = &lookout{end: end, over: make(chan struct{})}
		if f.by == nil {
			f.by = map[string]*lookout{}
		}
		f.by[key] = o
		go func() {
			defer close(o.over)
			poll(shared, longest, func(ctx context.Context) (done bool) {
				o.result, done = look(ctx)
				return done
			})
		}()
	}
	o.waiting++
	f.mu.Unlock()
	defer f.leave(key, o)
	patience := time.NewTimer(limit)
	defer patience.Stop()
	select {
	case <-o.over:
		return o.result, true
	case <-patience.C:
	case <-ctx.Done():
	}
	return nil, true
}

// leave ends the look-out with the last one who waits, and waits for its end.
func (f *flights) leave(key string, o *lookout) {
	f.mu.Lock()
	f.waiting--
	o.waiting--
	last := o.waiting == 0
	if f.by[key] == o && (last || done(o.over)) {
		delete(f.by, key) // who comes now looks anew
	}
	f.mu.Unlock()
	if last {
		o.end()
		<-o.over
	}
}

func done(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// join returns the result of an equal call that is under way, if it comes in time; else whether this call is now the
// one that others wait for.
func (t *toolCache) join(
	ctx context.Context, c *messages.Call, id callIdentity, timeout time.Duration,
) (r *toolResult, leads bool) {
	key := toolFlightPrefix + id.key()
	limit := timeout + flightGrace
	mine, theirs := t.take(ctx, c, key, limit)
	if mine { // the one before may have ended between the look and this: its result is there before its mark goes
		if r = t.look(ctx, c.ID, id); r != nil {
			t.land(ctx, c, toolCacheState{Key: id.key()})
			return r, false
		}
	}
	if mine || theirs == nil {
		return nil, mine
	}
	wait := min(time.Until(theirs.Until), limit)
	if !c.Deadline.IsZero() {
		left := time.Until(c.Deadline)
		wait = min(wait, max(left-timeout, left/2))
	}
	r, ok := t.flights.await(ctx, key+" "+theirs.Call, wait, limit, func(ctx context.Context) (*toolResult, bool) {
		if r := t.look(ctx, c.ID, id); r != nil {
			return r, true
		}
		e, err := t.store("cache").Get(ctx, key)
		var now flight
		return nil, err != nil || json.Unmarshal(e.Value, &now) != nil || now.Call != theirs.Call // nobody waits twice
	})
	if ok && r == nil && ctx.Err() == nil {
		// It may have come between the last look and the end of the mark.
		if r = t.look(ctx, c.ID, id); r == nil {
			leads, _ = t.take(ctx, c, key, limit)
		}
	}
	return r, leads
}

// take makes this call the one that runs the tool for others, unless another one does. A redelivery finds its own mark.
// Neither means that the store does not answer.
func (t *toolCache) take(
	ctx context.Context, c *messages.Call, key string, limit time.Duration,
) (mine bool, theirs *flight) {
	ctx, cancel := context.WithTimeout(ctx, openStoreWait)
	defer cancel()
	when := pipeline.IfAbsent()
	for range 2 {
		n := flight{Call: c.ID, Until: time.Now().Add(limit).UTC()}
		_, err := t.store("cache").Put(ctx, key, rawjson.Encode(n), limit, when)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, pipeline.ErrExists) && !errors.Is(err, pipeline.ErrChanged) {
			return false, nil
		}
		e, err := t.store("cache").Get(ctx, key)
		var old flight
		switch {
		case errors.Is(err, pipeline.ErrNotFound):
			when = pipeline.IfAbsent()
		case err != nil:
			return false, nil
		case json.Unmarshal(e.Value, &old) == nil && old.Call == c.ID:
			return true, nil
		case time.Now().Before(old.Until):
			return false, &old
		default:
			when = pipeline.IfRevision(e.Revision) // its holder is late or dead
		}
	}
	return false, nil
}

// land lets those who wait look. What it cannot remove ends by itself.
func (t *toolCache) land(ctx context.Context, c *messages.Call, st toolCacheState) {
	key := toolFlightPrefix + st.Key
	e, err := t.store("cache").Get(ctx, key)
	var f flight
	if err != nil || json.Unmarshal(e.Value, &f) != nil || f.Call != c.ID {
		return
	}
	if err := t.store("cache").Delete(ctx, key); err != nil {
		t.log.WarnContext(ctx, "mark of a running tool not removed; equal calls wait until it ends",
			"call", c.ID, "err", err)
	}
}
