package bus

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// subscribeInbox listens on the process's one long-lived inbox: ends and deltas of the calls that it accepted, and the
// server's "no responders" for what it sent.
func (n *Node) subscribeInbox() error {
	if err := n.listen(n.inbox+".>", n.heard); err != nil {
		return err
	}
	return n.heardSubs[len(n.heardSubs)-1].SetPendingLimits(-1, 512<<20)
}

func (n *Node) heard(m *nats.Msg) {
	kind, id, _ := strings.Cut(m.Subject[len(n.inbox)+1:], ".")
	switch kind {
	case "h":
		if m.Header.Get("Status") == "503" {
			if absent, ok := n.unheard.take(id); ok {
				absent()
			}
		}
	case "c":
		n.heardCall(id, m)
	}
}

func (n *Node) heardCall(id string, m *nats.Msg) {
	p := n.waiters.get(id)
	switch {
	case m.Header.Get(hdrDelta) != "":
		if d, ok := parseDelta(m.Header.Get(hdrDelta), m.Data); ok && p != nil {
			d.Degraded, d.Edited = m.Header.Get(hdrDegraded), m.Header.Get(hdrEdited)
			p.addDelta(d)
		}
	case m.Header.Get(hdrProgress) != "":
		if p != nil {
			p.setWhere(m.Header.Get(hdrProgress))
		}
	case m.Header.Get(hdrHeld) != "":
		if p != nil {
			p.hold()
		}
	default:
		n.work.Go(func() { n.heardEnd(p, m) })
	}
}

// heardEnd takes the first end of a call; later ones are acknowledged and dropped.
//
// What cannot be read ends nothing and settles nothing: it may be anybody's garbage, and if it was the true end (its
// large body could not be fetched), the lease brings the call back and its end is recorded then.
func (n *Node) heardEnd(p *pending, m *nats.Msg) {
	settle := func() {
		if l, err := ParseLease(m.Header.Get(hdrLease)); err == nil {
			n.settleLater(l)
		}
	}
	if p == nil || p.ended() {
		settle()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := n.codec.decode(m.Data)
	if err == nil && (c.ID != p.call.ID || c.Tenant != p.call.Tenant || !c.Slip.Done()) {
		err = errors.New("it is another call's, or one that has not ended")
	}
	if err == nil {
		err = n.codec.fill(ctx, c)
	}
	if err != nil {
		n.log.Error("what came as the end of a call cannot be read; it is dropped", "call", p.call.ID, "err", err)
		return
	}
	n.finish(p, c)
	settle()
}

// finish hands out the end of a call that this process accepted, once.
func (n *Node) finish(p *pending, c *messages.Call) {
	if p.end(c, func() { n.opts.Manager.Fold(c.Kind, c.Slip) }) {
		n.waiters.drop(p.call.ID)
	}
}

func parseDelta(header string, data []byte) (pipeline.Delta, bool) {
	i := strings.LastIndexByte(header, '.')
	if i < 0 {
		return pipeline.Delta{}, false
	}
	count, err := strconv.Atoi(header[i+1:])
	return pipeline.Delta{Source: header[:i], N: count, Chunk: data}, err == nil
}

// waiters are the calls that this process accepted and that have not ended.
type waiters struct {
	mu sync.Mutex
	by map[string]*pending
}

func newWaiters() *waiters { return &waiters{by: map[string]*pending{}} }

func (w *waiters) get(id string) *pending {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.by[id]
}

func (w *waiters) put(p *pending) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.by[p.call.ID] = p
}

func (w *waiters) drop(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.by, id)
}

// sweep forgets calls that nobody waits for and whose time is long over.
func (w *waiters) sweep(ctx context.Context) {
	for ctx.Err() == nil {
		pause(ctx, 10*time.Second)
		w.mu.Lock()
		for id, p := range w.by {
			if time.Since(p.call.Deadline) > time.Minute {
				delete(w.by, id)
			}
		}
		w.mu.Unlock()
	}
}
