package bus

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// pending is an accepted call in the process that accepted it.
type pending struct {
	n        *Node
	call     *messages.Call
	attached bool // another process, or an earlier connection, accepted it
	unsure   bool // attached to a call that was not known to be stored; the waiter's own

	mu     sync.Mutex
	deltas []pipeline.Delta
	bytes  int
	where  string
	final  *messages.Call
	left   bool
	poll   bool          // the end may go to another process's inbox: look at the record often
	news   chan struct{} // 1 slot: something changed
	done   chan struct{}
	held   chan struct{} // closed when the call is parked
}

var _ pipeline.Pending = (*pending)(nil)

// deltaBytes bounds what is kept for a reader that is slower than its model. What is over is dropped: the reader then
// sees a gap, and gets the rest from the final reply.
const deltaBytes = 8 << 20

func newPending(n *Node, c *messages.Call) *pending {
	return &pending{n: n, call: c, news: make(chan struct{}, 1), done: make(chan struct{}), held: make(chan struct{})}
}

// ID implements pipeline.Pending.
func (p *pending) ID() string { return p.call.ID }

func (p *pending) addDelta(d pipeline.Delta) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left || p.final != nil || p.bytes > deltaBytes {
		return
	}
	p.bytes += len(d.Chunk)
	p.deltas = append(p.deltas, d)
	select {
	case p.news <- struct{}{}:
	default:
	}
}

func (p *pending) pollRecord() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.poll = true
}

func (p *pending) setWhere(where string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.where = where
}

// end sets the final call; false if there was one. fold, if not nil, is run first: whoever is told the end and then
// asks for the statistics finds it there.
func (p *pending) end(c *messages.Call, fold func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.final != nil {
		return false
	}
	if fold != nil {
		fold()
	}
	p.final = c
	close(p.done)
	return true
}

// hold says that the call is parked: whoever waits is told so, and asks for the result later.
func (p *pending) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.held:
	default:
		close(p.held)
	}
}

func (p *pending) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.final != nil
}

func (p *pending) take() []pipeline.Delta {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.deltas
	p.deltas, p.bytes = nil, 0
	return d
}

// guest waits for a call that somebody in this process waits for already, under the same idempotency key. The pieces of
// a stream are that one's: a guest reads none of them, gets the result whole at its end, and stops nothing by leaving.
type guest struct{ p *pending }

// ID implements pipeline.Pending.
func (g guest) ID() string { return g.p.ID() }

// Wait implements pipeline.Pending.
func (g guest) Wait(ctx context.Context, _ func(pipeline.Delta)) (*messages.Call, error) {
	return g.p.wait(ctx, nil, nil)
}

// Leave implements pipeline.Pending.
func (guest) Leave() {}

// Wait implements pipeline.Pending.
func (p *pending) Wait(ctx context.Context, onDelta func(pipeline.Delta)) (*messages.Call, error) {
	return p.wait(ctx, p.news, onDelta)
}

// wait waits for the end, and takes the deltas where news is given. While it waits it looks at the result record after each reconnect and every 5 s
// past the ack wait, and often if the call was accepted elsewhere.
func (p *pending) wait(ctx context.Context, news <-chan struct{}, onDelta func(pipeline.Delta)) (*messages.Call, error) {
	reconnected := p.n.nc.StatusChanged(nats.CONNECTED)
	defer p.n.nc.RemoveStatusListener(reconnected)
	look := time.NewTimer(p.lookAfter(true))
	defer look.Stop()
	over := time.NewTimer(time.Until(p.call.Deadline) + time.Second)
	defer over.Stop()
	for {
		select {
		case <-p.done:
			if onDelta != nil {
				for _, d := range p.take() {
					onDelta(d)
				}
			}
			return p.final.Clone(), nil
		case <-p.held:
			if onDelta != nil { // what came before it is shown before it
				for _, d := range p.take() {
					onDelta(d)
				}
			}
			p.n.waiters.drop(p.call.ID)
			return nil, pipeline.ErrHeld
		case <-news:
			for _, d := range p.take() {
				if onDelta != nil {
					onDelta(d)
				}
			}
		case <-reconnected:
			p.look(ctx)
		case <-look.C:
			p.look(ctx)
			if p.unsure && !p.ended() {
				p.restore(ctx)
			}
			look.Reset(p.lookAfter(false))
		case <-over.C:
			p.timeOut()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *pending) lookAfter(first bool) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.attached || p.poll:
		return 100 * time.Millisecond
	case first:
		return p.n.cfg.AckWait + 5*time.Second
	}
	return 5 * time.Second
}

func (p *pending) look(ctx context.Context) {
	try, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := p.n.recorded(try, p.call.Tenant, p.call.ID)
	if err != nil {
		p.n.log.Debug("result record not readable yet", "call", p.call.ID, "err", err)
	}
	if c == nil {
		if p.attached || p.polls() {
			if _, open := p.n.heldNow(try, p.call.Tenant, p.call.ID); open {
				p.hold()
			}
		}
		return
	}
	if p.attached {
		if p.end(c, nil) {
			p.n.waiters.drop(p.call.ID)
		}
		return
	}
	p.n.finish(p, c)
}

func (p *pending) polls() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.poll
}

// timeOut ends a call whose deadline is over and from which nothing came: the fault names where it was last heard of.
// The end is recorded, so that no other end can be given later.
func (p *pending) timeOut() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if p.n.wasHeld(ctx, p.call.Tenant, p.call.ID) { // its clock stands still, or did
		p.hold()
		return
	}
	p.mu.Lock()
	where := p.where
	p.mu.Unlock()
	c := p.call.Clone()
	if where == "" {
		where = "the entry queue, or a stage that does not answer"
	}
	c.Fail(p.n.doubt(c, p.n.overdue(c, where)))
	if p.attached {
		p.end(c, nil) // the call itself has a deadline of its own, and may be under way still
		return
	}
	final, _, err := p.n.record(c)
	if err != nil {
		final = c
	}
	p.n.Cancel(c.ID)
	p.n.finish(p, final)
}

// Leave implements pipeline.Pending.
func (p *pending) Leave() {
	p.mu.Lock()
	was := p.left || p.final != nil
	select {
	case <-p.held: // he was told where the result will be
		was = true
	default:
	}
	p.left = true
	p.deltas, p.bytes = nil, 0
	p.mu.Unlock()
	if !was && !p.attached && p.call.IdempotencyKey == "" && !p.call.Return.Record {
		p.n.Cancel(p.call.ID)
	}
}

// overdue is the fault of a call from which nothing came until its deadline. In a work queue that nobody pulls it was
// provably not executed.
func (n *Node) overdue(c *messages.Call, where string) *messages.Fault {
	if queue, ok := strings.CutPrefix(where, queuePlace); ok {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if cons, err := n.js.Consumer(ctx, jet.HopsStream, queue); err == nil && cons.CachedInfo().NumWaiting == 0 && cons.CachedInfo().NumAckPending == 0 {
			return messages.NewFault(messages.TargetAbsent, "no worker serves the work queue %s; the call waited there until its deadline and was not executed; start one with: worker --serve %s",
				queue, c.Kind).From(messages.TargetOrigin)
		}
	}
	return messages.NewFault(messages.DeadlineExceeded, "the call's time was over; it was last at %s", where).From("deadline")
}

// queuePlace begins the news that a call waits in a work queue.
const queuePlace = "the work queue "
