package bus

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

// errElsewhere is the cause of a context that ended because the call has left this process.
var errElsewhere = errors.New("another owner goes on with the call")

// storedCalls runs the stored calls that this process owns.
type storedCalls struct {
	decide  decide
	codec   *codec
	queue   *workqueue
	ends    *ends
	calls   *running
	through func(o *owned, told func(end *messages.Call)) outcome
	unasked func(id string) bool
	log     *slog.Logger

	mu      sync.Mutex
	mine    map[string]*mine
	leaving bool
	work    tally
}

// mine is one of them.
type mine struct {
	m   *nats.Msg
	o   *owned // nil until its bodies are here
	off bool   // it has left before
}

// begin runs a call in a goroutine of its own.
func (s *storedCalls) begin(e protocol.Effect) {
	m := s.queue.held(e.Call)
	if m == nil {
		return // it runs because it was delivered; then it was acknowledged meanwhile
	}
	r := &mine{m: m}
	s.mu.Lock()
	s.mine[e.Call] = r
	leaving := s.leaving
	s.mu.Unlock()
	s.work.Go(func() {
		switch {
		case leaving:
			s.handBack(e.Call)
		case e.Why == protocol.Undeliverable:
			s.undeliverable(e.Call, m)
		default:
			s.run(e, r)
		}
	})
}

// run runs the call and says what came of it.
func (s *storedCalls) run(e protocol.Effect, r *mine) {
	c, err := s.open(r.m)
	if err != nil {
		s.end(c)
		s.calls.passed(c)
		return
	}
	c.Generation = e.N
	o := s.own(c, r, e)
	if o == nil {
		return
	}
	told := false
	out := s.through(o, func(end *messages.Call) {
		if told = true; s.isMine(r) {
			s.end(end)
		}
	})
	s.calls.release(o)
	if out == ended && !told && s.isMine(r) {
		s.end(o.call)
	}
	o.leave(out)
}

func (s *storedCalls) isMine(r *mine) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !r.off
}

// open reads the stored call with its bodies. If that cannot be done, it returns an error and the call as far as its
// headers tell, with the fault that it ends in.
func (s *storedCalls) open(m *nats.Msg) (*messages.Call, error) {
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if until, err := time.Parse(time.RFC3339Nano, m.Header.Get(hdrDeadline)); err == nil {
		ctx, cancel = context.WithDeadline(ctx, until.Add(time.Second))
	}
	defer cancel()
	c, err := s.codec.open(ctx, m.Data)
	if err == nil {
		return c, nil
	}
	c = fromHeaders(m)
	if f, ok := errors.AsType[*messages.Fault](err); ok && f.Code != messages.UnsupportedVersion {
		c.Fail(f.From("bus"))
		return c, err
	}
	s.queue.bury(m, "it cannot be read: "+err.Error(), func(found) {})
	c.Fail(messages.NewFault(messages.Undeliverable, "the stored call cannot be read: %v", err).From("bus"))
	return c, err
}

// own makes the call one that runs here; nil if it has left again already. If it ran here before, and what it left
// behind still runs, that is waited for: nobody else will run the call.
func (s *storedCalls) own(c *messages.Call, r *mine, e protocol.Effect) *owned {
	for {
		o, off := s.tryOwn(c, r, e)
		if o != nil || off {
			return o
		}
		_ = wait(context.Background(), 20*time.Millisecond)
	}
}

func (s *storedCalls) tryOwn(c *messages.Call, r *mine, e protocol.Effect) (o *owned, off bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.off {
		return nil, true
	}
	o = s.calls.own(c, true, e.Fresh)
	if o == nil {
		return nil, false
	}
	r.o, o.resumed = o, e.At
	o.waiter = s.ends.follower(o)
	unasked := s.unasked(c.ID) || c.Parent != "" && c.Parent != noParent && s.unasked(c.Parent)
	if unasked && c.Fault == nil { // one that was cancelled while it was held says so itself
		o.cancel(pipeline.ErrCancelled)
	}
	return o, false
}

// undeliverable ends a call that kills its owners. Only its headers are read: the body may be what kills.
func (s *storedCalls) undeliverable(call string, m *nats.Msg) {
	c := fromHeaders(m)
	c.Fail(messages.NewFault(messages.Undeliverable, "the call was given up: its owners died with it, again and again. "+
		"It is kept as dead letter of call %s; look at it with: nats stream view SHALLOT_DEAD", call).From("bus"))
	s.end(c)
	s.calls.passed(c)
}

// fromHeaders is a stored call as far as its headers tell.
func fromHeaders(m *nats.Msg) *messages.Call {
	kind := messages.Kind(m.Header.Get(hdrKind))
	if !kind.Valid() {
		kind = messages.Model
	}
	tenant := m.Header.Get(hdrTenant)
	if plain, ok := messages.Untoken(tenant); ok {
		tenant = plain
	}
	c := messages.NewCall(kind, tenant, []byte("null"))
	c.ID, c.Return.Inbox = m.Header.Get(hdrCall), m.Header.Get(hdrReturn)
	c.Generation, _ = strconv.ParseUint(m.Header.Get(hdrGen), 10, 64)
	c.Deadline, _ = time.Parse(time.RFC3339Nano, m.Header.Get(hdrDeadline))
	c.Slip.At, c.Slip.Back = -1, true
	return c
}

// end gives the call its end: it is stored, then told. Nobody may change c any more.
func (s *storedCalls) end(c *messages.Call) {
	s.ends.prepare(c)
	s.decide(func(o *protocol.Owner, now time.Duration, out []protocol.Effect) []protocol.Effect {
		out = o.Deliveries.End(now, c.ID, from(now, c.Deadline), out)
		if !o.Deliveries.Ending(c.ID) {
			s.ends.discard(c.ID)
		}
		return out
	})
}

// left takes note that a call is this process's no more; if it still runs, it stops.
func (s *storedCalls) left(call string, why protocol.Why) {
	if why != protocol.Ended && why != protocol.Yielded && why != protocol.HandedBack && why != protocol.Parked {
		return // the goroutine of the call is told, and goes on
	}
	s.mu.Lock()
	r := s.mine[call]
	delete(s.mine, call)
	if r != nil {
		r.off = true
	}
	s.mu.Unlock()
	if r == nil {
		return
	}
	if r.o != nil && why != protocol.Ended {
		r.o.cancel(errElsewhere)
	}
}

// drain hands back whatever comes from now on.
func (s *storedCalls) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = true
}

// handBackAll puts all that runs into the queue again.
func (s *storedCalls) handBackAll() {
	s.mu.Lock()
	var calls []string
	for id := range s.mine {
		calls = append(calls, id)
	}
	s.mu.Unlock()
	for _, id := range calls {
		s.handBack(id)
	}
}

func (s *storedCalls) handBack(call string) {
	s.decide(func(o *protocol.Owner, now time.Duration, out []protocol.Effect) []protocol.Effect {
		return o.Deliveries.HandBack(now, call, out)
	})
}

// count is how many stored calls are in this process's hands.
func (s *storedCalls) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mine)
}
