package bus

import (
	"context"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// pending is an accepted call as the one who waits for it in this process sees it.
type pending struct {
	id string
	// over is closed when the call's own time is over or its caller left; late is its end then, if the goroutine that
	// runs it is busy in a phase that does not listen to its context. Both are nil where another process runs it.
	over <-chan struct{}
	late func() *messages.Call
	// leave is called once, when the caller left before the end.
	leave func()
	// stop ends the call because its process stops; nil where it goes on elsewhere.
	stop func()
	// patience is how long the call may take to end when its context is over; nil with over.
	patience func() time.Duration
	// pass takes the pieces of the reply at once where who follows the call waits in another process; nil: they wait here.
	pass func(d pipeline.Delta)

	mu     sync.Mutex
	deltas []pipeline.Delta
	bytes  int
	last   pipeline.Delta // the newest that came, without its chunk
	final  *messages.Call
	left   bool
	parked bool
	news   chan struct{} // one slot: a delta came
	space  chan struct{} // one slot: the deltas were taken
	behind bool          // the reader did not come in time for what waited for it
	done   chan struct{} // closed when the call has ended or is parked
}

var _ pipeline.Pending = (*pending)(nil)

const (
	// deltaBytes bounds what is kept for a reader that is slower than its model: some seconds of a fast one, so that a
	// thousand such readers fit into a small process. What is over is dropped: the reader sees a gap then, and gets the
	// rest from the final reply. deltaCost is what a piece takes beside its bytes.
	deltaBytes = 96 << 10
	deltaCost  = 300
	// behindGrace is how long the target waits for a reader in its own process that has deltaBytes to read, once for a
	// call: a target that sends faster than the two change places must not make a gap for a reader that keeps up.
	behindGrace = 100 * time.Millisecond
	// lateGrace is how long a phase whose context is over may take to return.
	lateGrace = 100 * time.Millisecond
	// stopGrace is lateGrace where the process stops, or the target must not run twice: nobody may be told to send a call
	// again before it is known whether its target began.
	stopGrace = 1500 * time.Millisecond
	// tailGrace is how long an end waits for the pieces of the reply that it counts: as long as they may take from a
	// process of a busy machine. Those are lost that did not come until then: the reader sees a gap, and gets the rest
	// from the final reply.
	tailGrace = time.Second
)

func newPending(id string) *pending {
	return &pending{id: id, news: make(chan struct{}, 1), space: make(chan struct{}, 1), done: make(chan struct{})}
}

// ID implements pipeline.Pending.
func (p *pending) ID() string { return p.id }

// addDelta takes a piece of the reply, and reports whether somebody will read it.
func (p *pending) addDelta(d pipeline.Delta) bool {
	if p.pass != nil {
		p.pass(d)
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left || p.parked || p.final != nil && !p.lacks() {
		return false
	}
	p.last = pipeline.Delta{Source: d.Source, N: d.N}
	if p.bytes > deltaBytes {
		return false
	}
	p.bytes += len(d.Chunk) + deltaCost
	p.deltas = append(p.deltas, d)
	select {
	case p.news <- struct{}{}:
	default:
	}
	return true
}

// lacks reports whether pieces of the reply that the end counts have not come yet. Who got none of them follows another
// way, or not at all.
func (p *pending) lacks() bool {
	sent := 0
	return p.final != nil && p.last.N > 0 && p.final.Noted(messages.NoteStreamEmitted, &sent) && p.last.N < sent
}

// end sets the end; false if there was one. Nobody may change c any more.
func (p *pending) end(c *messages.Call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.final != nil {
		return false
	}
	p.final = c
	if !p.parked {
		close(p.done)
	}
	return true
}

// hold says that the call is parked: whoever waits is told so, and asks for the result later.
func (p *pending) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.final == nil && !p.parked {
		p.parked = true
		close(p.done)
	}
}

func (p *pending) take() []pipeline.Delta {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.deltas
	p.deltas, p.bytes = nil, 0
	p.freed()
	return d
}

// freed tells who waits in room. The lock is held.
func (p *pending) freed() {
	select {
	case p.space <- struct{}{}:
	default:
	}
}

// room waits a moment for a reader that is behind. It returns at once where nobody reads, or where the reader has made
// somebody wait in vain.
func (p *pending) room() {
	if !p.full() {
		return
	}
	t := time.NewTimer(behindGrace)
	defer t.Stop()
	for p.full() {
		select {
		case <-p.space:
		case <-t.C:
			p.mu.Lock()
			p.behind = true
			p.mu.Unlock()
			return
		}
	}
}

func (p *pending) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes > deltaBytes && !p.behind && !p.parked && p.final == nil
}

// Wait implements pipeline.Pending. A call that is parked meanwhile ends it with [pipeline.ErrHeld].
func (p *pending) Wait(ctx context.Context, onDelta func(pipeline.Delta)) (*messages.Call, error) {
	show := func() {
		for _, d := range p.take() {
			if onDelta != nil {
				onDelta(d)
			}
		}
	}
	over, done := p.over, p.done
	var grace, tail <-chan time.Time
	for {
		select {
		case <-done:
			show()
			if !p.incomplete() {
				return p.result()
			}
			over, done, tail = nil, nil, time.After(tailGrace)
		case <-p.news:
			show()
			if tail != nil && !p.incomplete() {
				return p.result()
			}
		case <-tail:
			show()
			return p.result()
		case <-over:
			over, grace = nil, time.After(p.patience())
		case <-grace:
			p.end(p.late())
		case <-ctx.Done():
			if tail != nil {
				return p.result()
			}
			return nil, ctx.Err()
		}
	}
}

func (p *pending) incomplete() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.parked && p.lacks()
}

func (p *pending) result() (*messages.Call, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.parked {
		return nil, pipeline.ErrHeld
	}
	return p.final, nil
}

// Stop implements pipeline.Pending.
func (p *pending) Stop() *messages.Call {
	if p.stop == nil {
		return nil
	}
	p.stop()
	c, err := p.Wait(context.Background(), nil) // the context of the call is over, so this is
	if err != nil {
		return nil // held: it is stored
	}
	return c
}

// Leave implements pipeline.Pending.
func (p *pending) Leave() {
	p.mu.Lock()
	was := p.left || p.final != nil || p.parked
	p.left = true
	p.deltas, p.bytes = nil, 0
	p.freed()
	p.mu.Unlock()
	if !was && p.leave != nil {
		p.leave()
	}
}
