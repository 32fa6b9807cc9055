package spine

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// errYielded is the cause of a context that ended because another owner goes on with the call, errHandedBack because
// this process leaves. Nothing is to be ended, cancelled or given up then.
var (
	errYielded    = errors.New("another owner goes on with the call")
	errHandedBack = errors.New("the call was put into the queue again: this process leaves")
)

// owning is what an onion is told of the stored call that it runs.
type owning struct {
	// fresh says that no other owner can have begun with the call.
	fresh bool
	// emit passes a part of the reply on to whoever waits for the call.
	emit func(d pipeline.Delta)
}

// onion runs a call to its end through stages and target. It returns when the call has its end, at the latest when the
// call's time is over: with next at ToReply, or at ToHold with the question. If ctx ended with errYielded or
// errHandedBack as its cause, what it returns does not count; if with pipeline.ErrCancelled, the end is the caller's wish.
type onion interface {
	run(ctx context.Context, c *messages.Call, o owning) pipeline.Next
}

// owned holds the stored calls that this process runs.
type owned struct {
	decide decide
	bodies bodies
	onion  onion
	queue  *queue
	ends   *ends
	holds  *holds
	log    *slog.Logger
	buried func(m *nats.Msg, why string, then func(f found))
	left   func(m *nats.Msg) // a call that came with m has left this process

	mu      sync.Mutex
	calls   map[string]*running
	leaving bool
	work    sync.WaitGroup
}

// running is a stored call in the hands of this process.
type running struct {
	m      *nats.Msg // as it came; nil for a bound call that holds
	cancel context.CancelCauseFunc
	stop   context.CancelFunc
}

func (s *owned) carry(e protocol.Effect) {
	switch e.Kind {
	case protocol.Run:
		s.begin(e)
	case protocol.Wake:
		s.wake(e)
	case protocol.DeadLetter:
		if m := s.queue.held(e.Call); m != nil {
			s.buried(m, "deliveries used up: its owners died with it", func(found) {})
		}
	}
}

// begin runs a call in a goroutine of its own.
func (s *owned) begin(e protocol.Effect) {
	m := s.queue.held(e.Call)
	if m == nil {
		return // cannot be: it runs because it was delivered
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := context.CancelFunc(func() {})
	if until, err := time.Parse(time.RFC3339Nano, m.Header.Get(hdrDeadline)); err == nil {
		ctx, stop = context.WithDeadline(ctx, until)
	}
	r := &running{m: m, cancel: cancel, stop: stop}
	s.mu.Lock()
	s.calls[e.Call] = r
	leaving := s.leaving
	s.mu.Unlock()
	s.work.Go(func() {
		switch {
		case leaving:
			s.handBack(e.Call)
		case e.Why == protocol.Undeliverable:
			s.undeliverable(e.Call, r)
		default:
			s.run(ctx, e, r)
		}
	})
}

// run runs the call and says what came of it.
func (s *owned) run(ctx context.Context, e protocol.Effect, r *running) {
	c, err := s.bodies.decode(ctx, r.m.Data)
	switch {
	case err != nil && (context.Cause(ctx) == errYielded || context.Cause(ctx) == errHandedBack):
		return
	case err != nil:
		c = nameless(r.m)
		if f := messages.AsFault(err, "bus"); ctx.Err() != nil || f.Code == messages.StoreUnavailable {
			c.Fail(messages.NewFault(messages.StoreUnavailable, "the bodies of the call cannot be read: %v", err).From("bus"))
		} else {
			s.buried(r.m, "it cannot be read: "+err.Error(), func(found) {})
			c.Fail(messages.NewFault(messages.Undeliverable, "the stored call cannot be read: %v", err).From("bus"))
		}
		s.end(c)
		return
	}
	c.Generation = e.N
	next := s.onion.run(ctx, c, owning{fresh: e.Fresh, emit: func(d pipeline.Delta) { s.ends.pass(c, d) }})
	if cause := context.Cause(ctx); cause == errYielded || cause == errHandedBack {
		return
	}
	if next.Where == pipeline.ToHold {
		if next, err = s.holds.park(ctx, c, next); err == nil {
			return
		}
		s.log.Error("a held call could not be parked", "call", c.ID, "err", err)
		c.Fail(messages.AsFault(err, "bus"))
	}
	s.end(c)
}

// undeliverable ends a call that kills its owners. Only its headers are read.
func (s *owned) undeliverable(call string, r *running) {
	c := nameless(r.m)
	c.Fail(messages.NewFault(messages.Undeliverable, "the call was given up: its owners died with it, again and again. "+
		"It is kept as dead letter of call %s; look at it with: nats stream view SHALLOT_DEAD", call).From("bus"))
	s.end(c)
}

// nameless is a call of which only the headers are known.
func nameless(m *nats.Msg) *messages.Call {
	c := messages.NewCall(messages.Kind(m.Header.Get(hdrKind)), m.Header.Get(hdrTenant), []byte("null"))
	c.ID = m.Header.Get(hdrCall)
	c.Return.Inbox = m.Header.Get(hdrReturn)
	c.Generation, _ = strconv.ParseUint(m.Header.Get(hdrGen), 10, 64)
	c.Deadline, _ = time.Parse(time.RFC3339Nano, m.Header.Get(hdrDeadline))
	return c
}

// end gives the call its end: it is stored, then told. The call belongs to the ends from now on.
func (s *owned) end(c *messages.Call) {
	c.Slip.At, c.Slip.Back = -1, true
	s.ends.prepare(c)
	s.decide(func(o *protocol.Owner, now time.Duration, out []protocol.Effect) []protocol.Effect {
		return o.Deliveries.End(now, c.ID, at(c.Deadline), out)
	})
}

// wake takes the reasons for which a call leaves this process.
func (s *owned) wake(e protocol.Effect) {
	switch e.Why {
	case protocol.Yielded:
		s.leave(e.Call, errYielded)
		s.queue.forget(e.Call)
	case protocol.HandedBack:
		s.leave(e.Call, errHandedBack)
	case protocol.Parked:
		s.leave(e.Call, nil)
		s.holds.parked(e.Call)
	}
}

// leave ends the running of a call here and makes room.
func (s *owned) leave(call string, cause error) {
	s.mu.Lock()
	r := s.calls[call]
	delete(s.calls, call)
	s.mu.Unlock()
	if r == nil {
		return
	}
	r.cancel(cause)
	r.stop()
	if r.m != nil {
		s.left(r.m)
	}
}

// cancelled ends a running call because its caller does not want it any more.
func (s *owned) cancelled(call string) {
	s.mu.Lock()
	r := s.calls[call]
	s.mu.Unlock()
	if r != nil {
		r.cancel(pipeline.ErrCancelled)
	}
}

// drain hands back what comes from now on.
func (s *owned) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = true
}

// handBackAll puts everything that runs into the queue again.
func (s *owned) handBackAll() {
	s.mu.Lock()
	var calls []string
	for id := range s.calls {
		calls = append(calls, id)
	}
	s.mu.Unlock()
	for _, id := range calls {
		s.handBack(id)
	}
}

func (s *owned) handBack(call string) {
	s.decide(func(o *protocol.Owner, now time.Duration, out []protocol.Effect) []protocol.Effect {
		return o.Deliveries.HandBack(now, call, out)
	})
}

// count is how many stored calls run here.
func (s *owned) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}
