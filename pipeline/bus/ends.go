package bus

import (
	"bytes"
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// ends stores how calls ended and tells those who wait. The record is created first, and the first one is the call's
// end: whoever comes second tells what is stored.
type ends struct {
	records records
	decide  decide
	codec   *codec
	inbox   string // of calls that this process has accepted, with the last dot
	replies string // where all inboxes lie, with the last dot
	release func(c *messages.Call, then func())
	fold    func(kind messages.Kind, s messages.Slip)
	callers Callers
	allowed func(inbox string) bool
	log     *slog.Logger
	outbox  *outbox

	mu      sync.Mutex
	ending  map[string]*ending
	read    map[string]*reading
	waiting map[string][]waiter
}

// ending is a call whose end is to be stored.
type ending struct {
	call *messages.Call
	wire []byte // nil: its large bodies are not stored yet
}

// reading is a stored end while it is being told.
type reading struct {
	data  []byte
	users int
}

// prepare takes the end of a call that PutResult will store.
func (s *ends) prepare(c *messages.Call) {
	e := &ending{call: c}
	ctx, cancel := context.WithTimeout(context.Background(), objectTime)
	defer cancel()
	var err error
	if e.wire, err = s.codec.encode(ctx, c.Clone()); err != nil {
		s.log.Warn("the end of a call could not be written yet; that is tried again", "call", c.ID, "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending[c.ID] = e
}

// discard forgets an end that is not stored: the call was another owner's by then.
func (s *ends) discard(call string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ending, call)
}

func (s *ends) get(call string) *ending {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending[call]
}

// put creates the result record.
func (s *ends) put(e protocol.Effect) {
	x := s.get(e.Call)
	switch {
	case x == nil:
		s.decide.stored(e, protocol.Stored{Result: protocol.Unclear})
		return
	case x.wire == nil:
		go func() {
			s.prepare(x.call)
			if y := s.get(e.Call); y != nil && y.wire != nil {
				s.create(e, y)
			} else {
				s.decide.stored(e, protocol.Stored{Result: protocol.Unclear})
			}
		}()
		return
	}
	s.create(e, x)
}

func (s *ends) create(e protocol.Effect, x *ending) {
	s.records.update(jet.ResultsBucket, messages.Key(x.call.Tenant, x.call.ID), x.wire, 0, func(f found) {
		s.stored(e, f, x.wire)
	})
}

// fetch reads the result record.
func (s *ends) fetch(e protocol.Effect, key string) {
	s.records.get(jet.ResultsBucket, key, func(f found) { s.stored(e, f, f.data) })
}

// key is where the result of a call is recorded, as far as this process knows the call.
func (s *ends) key(call string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.waiting[call]; len(w) > 0 {
		return messages.Key(w[0].tenant, call)
	}
	if x := s.ending[call]; x != nil {
		return messages.Key(x.call.Tenant, call)
	}
	return ""
}

// stored tells the protocol, which may tell the end at once.
func (s *ends) stored(e protocol.Effect, f found, data []byte) {
	if f.result == protocol.OK {
		defer s.keep(e.Call, data)()
	}
	s.decide.stored(e, protocol.Stored{Result: f.result, Record: protocol.Record{State: protocol.Done, Rev: f.rev}})
}

// keep has a stored end at hand until done is called.
func (s *ends) keep(call string, data []byte) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.read[call]
	if r == nil {
		r = &reading{data: data}
		s.read[call] = r
	}
	r.users++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.users--; r.users == 0 {
			delete(s.read, call)
		}
	}
}

// told tells the end of a call that this process has ended: to whoever waits here, and where it was accepted. inbox
// says that its caller's own inbox may still be answered.
func (s *ends) told(call string, inbox bool) {
	s.mu.Lock()
	r, x := s.read[call], s.ending[call]
	delete(s.ending, call)
	s.mu.Unlock()
	if r == nil {
		return
	}
	tell := func() {
		if x != nil && !strings.HasPrefix(x.call.Return.Inbox, s.inbox) && strings.HasPrefix(x.call.Return.Inbox, s.replies) {
			s.send(x.call.Return.Inbox, r.data, inbox)
		}
		s.found(call)
	}
	if x == nil || !bytes.Equal(r.data, x.wire) { // another owner's end: that one has freed the key
		tell()
		return
	}
	s.fold(x.call.Kind, x.call.Slip)
	done := s.keep(call, r.data)
	s.release(x.call, func() { tell(); done() })
}

// found tells the stored end of a call to whoever waits for it here. If this process is ending it too, that goes on:
// the queue still has the call.
func (s *ends) found(call string) {
	s.mu.Lock()
	r, n := s.read[call], len(s.waiting[call])
	s.mu.Unlock()
	if r == nil || n == 0 {
		return
	}
	s.open(r.data, func(c *messages.Call) {
		if c == nil {
			s.await(call, false)
			return
		}
		s.hand(call, c)
	})
}

// open reads an end; in the background if its large bodies are to be fetched. then hears nil if they cannot be read
// now.
func (s *ends) open(data []byte, then func(c *messages.Call)) {
	c, err := messages.Unmarshal(data)
	switch {
	case err != nil:
		s.log.Error("a stored end cannot be read", "err", err)
	case len(c.Refs()) == 0:
		then(c)
	default:
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 3*objectTime)
			defer cancel()
			c, err := s.codec.open(ctx, data)
			if err != nil {
				s.log.Warn("the bodies of a stored end cannot be read; whoever waits reads it again", "err", err)
				c = nil
			}
			then(c)
		}()
	}
}

// send tells the end where the call was accepted, after the pieces of the reply.
func (s *ends) send(to string, data []byte, inbox bool) {
	s.outbox.post(len(data), func() { s.sendNow(to, data, inbox) })
}

// sendNow is send in its turn. If nobody is there any more, the caller is answered from here.
func (s *ends) sendNow(to string, data []byte, inbox bool) {
	m := &nats.Msg{Subject: to, Data: data, Header: nats.Header{hdrEnd: {"1"}}}
	err := s.records.ask.send(m, func(m *nats.Msg) {
		if m == nil || m.Header.Get("Status") == "" || !inbox {
			return
		}
		s.open(data, func(c *messages.Call) {
			if c != nil {
				s.answer(c)
			}
		})
	})
	if err != nil {
		s.log.Debug("an end was not sent; whoever waits reads the record", "err", err)
	}
}

// answer tells the end to a caller whose accepting process died. Who got a part of a stream from that process must not
// take what follows for the rest.
func (s *ends) answer(c *messages.Call) {
	if c.Return.Caller == "" || !s.allowed(c.Return.Caller) {
		return
	}
	if _, emitted := c.Notes[messages.NoteStreamEmitted]; emitted && c.Stream && c.Fault == nil {
		c.Fail(messages.NewFault(messages.StreamCut,
			"the process that streamed the reply died; call %s has the whole reply", c.ID).From("bus"))
	}
	s.callers.Answer(c)
}

// hand gives the end to those who wait in this process.
func (s *ends) hand(call string, c *messages.Call) {
	s.mu.Lock()
	waiting := s.waiting[call]
	delete(s.waiting, call)
	s.mu.Unlock()
	for _, p := range waiting {
		p.end(c.Clone())
	}
	if len(waiting) > 0 {
		s.known(call)
	}
}

// unsure tells whoever waits that the end could not be stored in time. What is stored later counts.
func (s *ends) unsure(call string) {
	x := s.get(call)
	if x == nil {
		return
	}
	c := x.call.Clone()
	c.Fail(messages.NewFault(messages.OutcomeUnknown, "the call has ended, but its end could not be stored in time; "+
		"ask for the result of call %s later", call).From("bus"))
	s.hand(call, c)
	if to := x.call.Return.Inbox; strings.HasPrefix(to, s.replies) && !strings.HasPrefix(to, s.inbox) {
		if data, err := c.Marshal(); err == nil {
			s.send(to, data, false)
		}
	}
}

// follower is who takes the parts of a streamed reply: whoever waits here, or a relay to where the call was accepted.
func (s *ends) follower(o *owned) *pending {
	if !o.call.Stream {
		return nil
	}
	to := o.call.Return.Inbox
	if strings.HasPrefix(to, s.inbox) || !strings.HasPrefix(to, s.replies) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if w := s.waiting[o.id]; len(w) > 0 {
			return w[0].pending
		}
		return nil
	}
	relay := newPending(o.id)
	relay.pass = func(d pipeline.Delta) { s.pass(to, d) } // in order, so that the end leaves after it
	return relay
}

// pass sends a part of a reply on, or drops it where too much waits: a gap is filled by the end.
func (s *ends) pass(to string, d pipeline.Delta) {
	if s.outbox.full() {
		return
	}
	h := nats.Header{hdrDelta: {d.Source + " " + strconv.Itoa(d.N)}}
	d.Marks.Each(func(name, value string) { h[name] = []string{headerValue(value)} })
	s.outbox.post(len(d.Chunk), func() {
		_ = s.records.ask.nc.PublishMsg(&nats.Msg{Subject: to, Header: h, Data: d.Chunk})
	})
}

// held tells whoever waits that the call is parked: they ask for the result later.
func (s *ends) held(call, inbox string) {
	s.mu.Lock()
	waiting := s.waiting[call]
	delete(s.waiting, call)
	s.mu.Unlock()
	for _, p := range waiting {
		p.hold()
	}
	s.known(call)
	if strings.HasPrefix(inbox, s.replies) && !strings.HasPrefix(inbox, s.inbox) {
		s.outbox.post(0, func() {
			_ = s.records.ask.nc.PublishMsg(&nats.Msg{Subject: inbox, Header: nats.Header{hdrHeld: {"1"}}})
		})
	}
}

// heard takes what owners say about calls that were accepted here.
func (s *ends) heard(m *nats.Msg) {
	call, ok := messages.Untoken(strings.TrimPrefix(m.Subject, s.inbox))
	if !ok {
		return
	}
	switch {
	case m.Header.Get(hdrHeld) != "":
		s.held(call, "")
	case m.Header.Get(hdrEnd) != "":
		s.open(m.Data, func(c *messages.Call) {
			if c != nil && c.ID == call {
				s.hand(call, c)
			}
		})
	default:
		source, n, ok := strings.Cut(m.Header.Get(hdrDelta), " ")
		k, err := strconv.Atoi(n)
		if !ok || err != nil {
			return
		}
		s.mu.Lock()
		waiting := s.waiting[call]
		s.mu.Unlock()
		if len(waiting) > 0 {
			waiting[0].addDelta(pipeline.Delta{Source: source, N: k, Chunk: m.Data, Marks: marksOf(m.Header)})
		}
	}
}
