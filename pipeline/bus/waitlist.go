package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// waitlist knows which calls wait for an answer and when each must be looked at, without a goroutine or a stored message
// for any of them. The records are the truth; this is read from them, in every process with the entry role, and read
// again after every reconnect. So a question whose time ended while no process was there ends when one comes.
type waitlist struct {
	mu sync.Mutex
	at map[string]time.Time // record -> when to look at it
}

const (
	// soon is when a decision is looked at that nobody may have carried out, and a look that failed is tried again.
	soon = 3 * time.Second
	// tend is how often the list is looked at.
	tend = 200 * time.Millisecond
	// reread is how often the records are read again, whatever the watch says.
	reread = 5 * time.Minute
)

func (w *waitlist) set(key string, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at == nil {
		w.at = map[string]time.Time{}
	}
	w.at[key] = at
}

func (w *waitlist) drop(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.at, key)
}

// due lets a call be looked at now, if it waits.
func (w *waitlist) due(call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.at {
		if strings.HasSuffix(key, "."+messages.Token(call)) {
			w.at[key] = time.Time{}
		}
	}
}

func (w *waitlist) ready(now time.Time) (keys []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, at := range w.at {
		if !now.Before(at) {
			keys = append(keys, key)
		}
	}
	return keys
}

// watchHeld keeps the list as the records are.
func (n *Node) watchHeld(ctx context.Context) {
	reconnected := n.nc.StatusChanged(nats.CONNECTED)
	defer n.nc.RemoveStatusListener(reconnected)
	for ctx.Err() == nil {
		if err := n.followHeld(ctx, reconnected); err != nil && ctx.Err() == nil {
			n.log.Debug("watch of the held calls ended; it begins again", "err", err)
			pause(ctx, time.Second)
		}
	}
}

func (n *Node) followHeld(ctx context.Context, reconnected <-chan nats.Status) error {
	w, err := n.approvals.Watch(ctx, ">")
	if err != nil {
		return err
	}
	defer func() { _ = w.Stop() }()
	again := time.NewTimer(reread)
	defer again.Stop()
	for {
		select {
		case e, ok := <-w.Updates():
			if !ok {
				return errors.New("watch closed")
			}
			if e != nil && strings.Count(e.Key(), ".") == 1 { // others are pieces of large bodies
				n.noteHeld(e)
			}
		case <-reconnected:
			return nil
		case <-again.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (n *Node) noteHeld(e jetstream.KeyValueEntry) {
	var p Parked
	first, _, _ := bytes.Cut(e.Value(), []byte{'\n'})
	switch {
	case e.Operation() != jetstream.KeyValuePut || json.Unmarshal(first, &p) != nil:
		n.waitlist.drop(e.Key())
	case p.Decided != nil:
		n.waitlist.set(e.Key(), p.Decided.At.Add(soon))
	case n.cancels.cancelled(p.Call):
		n.waitlist.set(e.Key(), time.Time{})
	default:
		n.waitlist.set(e.Key(), p.Expires)
	}
}

// tendHeld looks at the held calls whose time has come.
func (n *Node) tendHeld(ctx context.Context) {
	for ctx.Err() == nil {
		for _, key := range n.waitlist.ready(time.Now()) {
			if ctx.Err() != nil {
				return
			}
			n.waitlist.set(key, time.Now().Add(soon))
			if err := n.lookAfter(ctx, key); err != nil && !errors.Is(err, pipeline.ErrChanged) {
				n.log.Warn("a held call could not be looked after; that is tried again", "call", key, "err", err)
			}
		}
		pause(ctx, tend)
	}
}

// lookAfter ends the question of a call whose time is over or that was cancelled, and carries out a decision that its
// process did not live to carry out. Of several processes that do it at once one is first; the others find that.
func (n *Node) lookAfter(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	p, e, wire, err := n.parked(ctx, key)
	switch {
	case errors.Is(err, pipeline.ErrNotFound):
		n.waitlist.drop(key)
		return nil
	case err != nil:
		return err
	case p.Decided != nil:
		return n.goOn(ctx, p, wire)
	case n.cancels.cancelled(p.Call):
		return n.decide(ctx, &p, e, wire, Decided{By: "the caller", Fault: messages.NewFault(messages.Cancelled,
			"the caller cancelled while the call waited for an answer at stage %s; %s", p.Stage, p.ran()).From("caller")})
	case !time.Now().Before(p.Expires):
		return n.decide(ctx, &p, e, wire, Decided{By: "nobody", Fault: expired(p)})
	}
	n.waitlist.set(key, p.Expires)
	return nil
}
