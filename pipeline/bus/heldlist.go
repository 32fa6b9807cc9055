package bus

import (
	"context"
	"errors"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

const (
	// soon is when a decision is looked at that nobody may have carried out, and a look that failed is tried again.
	soon = 3 * time.Second
	// reread is how often the records of held calls are read again, whatever the watch says.
	reread = 5 * time.Minute
)

// heldlist knows which calls wait for an answer and when each must be looked at, without a goroutine or a stored
// message for any of them. The records are the truth; this is read from them, in every process with the entry role. So
// a question whose time ended while no process was there ends when one comes.
type heldlist struct {
	holds     *holds
	cancelled func(id string) bool

	mu sync.Mutex
	at map[string]time.Time // record -> when to look at it
	// awaited is, for the record of a held call, that of the call which waits for its end.
	awaited map[string]string
}

func newHeldlist(h *holds, cancelled func(id string) bool) *heldlist {
	return &heldlist{holds: h, cancelled: cancelled, at: map[string]time.Time{}, awaited: map[string]string{}}
}

func (l *heldlist) set(key string, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at[key] = at
}

func (l *heldlist) drop(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.at, key)
}

// over says that the call of a record has ended: the record is cleared away, and who waits for that end goes on.
func (l *heldlist) over(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now(key)
	l.now(l.awaited[key])
	delete(l.awaited, key)
}

func (l *heldlist) now(key string) {
	if _, ok := l.at[key]; ok {
		l.at[key] = time.Time{}
	}
}

// await has a record looked at when the call of another one has ended, and at once, because it may have.
func (l *heldlist) await(key, other string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.awaited[other], l.at[key] = key, time.Time{}
}

// due has a call looked at now, if it waits.
func (l *heldlist) due(call string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.at {
		if strings.HasSuffix(key, "."+messages.Token(call)) {
			l.at[key] = time.Time{}
		}
	}
}

func (l *heldlist) ready(now time.Time) (keys []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, at := range l.at {
		if !now.Before(at) {
			keys = append(keys, key)
		}
	}
	return keys
}

// watch keeps the list as the records are.
func (l *heldlist) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := l.follow(ctx); err != nil && ctx.Err() == nil {
			l.holds.log.Debug("watch of the held calls ended; it begins again", "err", err)
			_ = wait(ctx, time.Second)
		}
	}
}

func (l *heldlist) follow(ctx context.Context) error {
	w, err := l.holds.store.Watch(ctx, "*.*") // deeper keys are pieces of large bodies
	if err != nil {
		return err
	}
	defer func() { _ = w.Stop() }()
	again := time.NewTimer(reread)
	defer again.Stop()
	for {
		select {
		case e, ok := <-w.Updates():
			switch {
			case !ok:
				return errors.New("watch closed")
			case e != nil:
				l.note(e)
			default: // all that were there are read
				l.shed()
			}
		case <-again.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// many is how many records make it worth while to give back at once the memory in which they were read: the list keeps
// hardly a hundredth of it.
const many = 1000

func (l *heldlist) shed() {
	l.mu.Lock()
	n := len(l.at)
	l.mu.Unlock()
	if n >= many {
		debug.FreeOSMemory()
	}
}

func (l *heldlist) note(e jetstream.KeyValueEntry) {
	if e.Operation() != jetstream.KeyValuePut {
		l.over(e.Key())
		l.drop(e.Key())
		return
	}
	switch p, _, err := readParked(e.Value()); {
	case err != nil:
		l.drop(e.Key())
	case p.Resumed:
		l.set(e.Key(), time.Now().Add(time.Minute))
	case p.Decided != nil:
		l.set(e.Key(), p.Decided.At.Add(soon))
	case p.Awaits != "":
		l.await(e.Key(), messages.Key(p.Tenant, p.Awaits))
	default:
		l.wait(e.Key(), p.Call, p.Expires)
	}
}

// wait has a record looked at when its time is over, or now if its call was cancelled. It asks for that last: a cancel
// that comes now finds the record in the list, see due.
func (l *heldlist) wait(key, call string, until time.Time) {
	l.set(key, until)
	if l.cancelled(call) {
		l.set(key, time.Time{})
	}
}

// tend looks at the held calls whose time has come.
func (l *heldlist) tend(ctx context.Context) {
	for _, key := range l.ready(time.Now()) {
		if ctx.Err() != nil {
			return
		}
		again := time.Now().Add(soon)
		l.set(key, again)
		limit, cancel := context.WithTimeout(ctx, objectTime)
		next, err := l.holds.lookAfter(limit, key, l.cancelled)
		cancel()
		if err != nil && !errors.Is(err, pipeline.ErrChanged) {
			l.holds.log.Warn("a held call could not be looked after; that is tried again", "call", key, "err", err)
		}
		l.looked(key, again, next)
	}
}

// looked says that a record was looked at, and when that is to be done again; zero: never. Whatever has come meanwhile,
// such as a cancel, counts: then was is not its time any more, and only an earlier time replaces the other.
func (l *heldlist) looked(key string, was, next time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.at[key]
	switch {
	case ok && at.Equal(was) && next.IsZero():
		delete(l.at, key)
	case ok && (at.Equal(was) || !next.IsZero() && next.Before(at)):
		l.at[key] = next
	}
}
