package bus

import (
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// workqueue is this process's side of the work queue: it puts calls into it and holds the messages that were delivered
// here until they are acknowledged. Its methods are called under the lock of the decisions, or take none.
type workqueue struct {
	records records
	decide  decide
	log     *slog.Logger
	bury    func(m *nats.Msg, why string, then func(f found)) // makes a dead letter
	stored  func(e protocol.Effect)                           // a call was put into the queue
	gone    func(m *nats.Msg)                                 // the call that came with m takes no room any more

	mu      sync.Mutex
	letters map[string]*copied     // what can be put into the queue, by message id
	tokens  map[string][]delivered // what is held, by call
	refused map[string]string      // why the last put of a call was refused
}

// copied is a letter that several may want to put into the queue.
type copied struct {
	m     *nats.Msg
	users int
}

// delivered is a message of the queue that is not acknowledged.
type delivered struct {
	m          *nats.Msg
	generation uint64
	seq        uint64 // in the stream
	at         time.Time
}

func newQueue(r records, d decide, log *slog.Logger) *workqueue {
	return &workqueue{records: r, decide: d, log: log, letters: map[string]*copied{}, tokens: map[string][]delivered{},
		refused: map[string]string{}}
}

// ready lays a letter ready for PutCall, until done is called.
func (q *workqueue) ready(m *nats.Msg) (done func()) {
	id := m.Header.Get(hdrMsgID)
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.letters[id]
	if c == nil {
		c = &copied{m: m}
		q.letters[id] = c
	}
	c.users++
	return sync.OnceFunc(func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if c.users--; c.users == 0 {
			delete(q.letters, id)
		}
	})
}

// put puts a call into the queue. A generation that nobody laid ready is made of the message that is held here: it is
// handed back as it came.
func (q *workqueue) put(e protocol.Effect) {
	m := q.letter(e)
	if m == nil {
		q.decide.stored(e, protocol.Stored{Result: protocol.Unclear})
		return
	}
	q.records.publish(m, func(f found) {
		q.mu.Lock()
		if f.result == protocol.No {
			q.refused[e.Call] = f.why
		}
		q.mu.Unlock()
		q.decide.stored(e, protocol.Stored{Result: f.result, Record: protocol.Record{Rev: f.rev}})
		if f.result == protocol.OK {
			q.stored(e)
		}
	})
}

func (q *workqueue) letter(e protocol.Effect) *nats.Msg {
	q.mu.Lock()
	defer q.mu.Unlock()
	id := messageID(e.Call, e.N)
	var from *nats.Msg
	if c := q.letters[id]; c != nil {
		from = c.m
	} else if held := q.tokens[e.Call]; len(held) > 0 {
		from = held[len(held)-1].m
	} else {
		return nil
	}
	m := &nats.Msg{Subject: from.Subject, Data: from.Data, Header: nats.Header{}}
	for _, k := range []string{hdrWire, hdrCall, hdrKind, hdrTenant, hdrDeadline, hdrReturn, hdrTrace} {
		if v := from.Header.Get(k); v != "" {
			m.Header[k] = []string{v}
		}
	}
	m.Header[hdrMsgID] = []string{id}
	m.Header[hdrGen] = []string{strconv.FormatUint(e.N, 10)}
	if e.Again {
		m.Header[hdrAgain] = []string{"1"}
	}
	return m
}

// why is why the last put of a call was refused.
func (q *workqueue) why(call string) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	why := q.refused[call]
	delete(q.refused, call)
	return why
}

// mark acknowledges the deliveries of a call, or says that they are in progress. It is OK when the server has
// confirmed each of them.
func (q *workqueue) mark(e protocol.Effect) {
	what := "+ACK"
	if e.Kind == protocol.InProgress {
		what = "+WPI"
	}
	q.mu.Lock()
	var held []delivered
	for _, t := range q.tokens[e.Call] {
		if e.Kind == protocol.InProgress || t.generation <= e.N {
			held = append(held, t)
		}
	}
	q.mu.Unlock()
	if len(held) == 0 {
		q.decide.stored(e, protocol.Stored{Result: protocol.OK})
		return
	}
	left := len(held) // all answers come on one subscription, one after the other
	for _, t := range held {
		err := q.records.ask.send(&nats.Msg{Subject: t.m.Reply, Data: []byte(what)}, func(m *nats.Msg) {
			if m == nil || m.Header.Get("Status") != "" {
				return // the protocol tries again
			}
			if e.Kind == protocol.Ack {
				q.drop(e.Call, t.seq)
			}
			if left--; left == 0 {
				q.decide.stored(e, protocol.Stored{Result: protocol.OK})
			}
		})
		if err != nil {
			q.log.Debug("a delivery was not marked; that is tried again", "call", e.Call, "err", err)
		}
	}
}

// drop lets go of a message that is acknowledged.
func (q *workqueue) drop(call string, seq uint64) {
	q.mu.Lock()
	var kept []delivered
	var last *nats.Msg
	for _, t := range q.tokens[call] {
		if last = t.m; t.seq != seq {
			kept = append(kept, t)
		}
	}
	if q.tokens[call] = kept; len(kept) == 0 {
		delete(q.tokens, call)
	}
	q.mu.Unlock()
	if last != nil && len(kept) == 0 {
		q.gone(last)
	}
}

// forget lets go of the messages of a call that another process goes on with.
func (q *workqueue) forget(call string) {
	q.mu.Lock()
	held := q.tokens[call]
	delete(q.tokens, call)
	q.mu.Unlock()
	if len(held) > 0 {
		q.gone(held[0].m)
	}
}

// held is the message with the highest generation of a call that is held here.
func (q *workqueue) held(call string) *nats.Msg {
	q.mu.Lock()
	defer q.mu.Unlock()
	var m *nats.Msg
	var most uint64
	for _, t := range q.tokens[call] {
		if m == nil || t.generation >= most {
			m, most = t.m, t.generation
		}
	}
	return m
}

// arrived takes a message of the queue. What cannot be read becomes a dead letter: no message kills the process, and
// none is dropped in silence. The call takes room until gone hears of it. old says that the message may
// have waited in this process for long, so that the call may be another owner's.
func (q *workqueue) arrived(m *nats.Msg, old bool) {
	meta, err := m.Metadata()
	if err != nil {
		q.log.Warn("a message came that is not from the work queue; it is ignored", "subject", m.Subject)
		q.gone(m)
		return
	}
	d, until, why := readLetter(m)
	if why != "" {
		q.bury(m, why, func(f found) {
			if f.result == protocol.OK {
				_ = m.Ack()
			}
		})
		q.gone(m)
		return
	}
	d.Count, d.Old = meta.NumDelivered, old
	q.mu.Lock()
	held := q.tokens[d.Call]
	at, fresh := len(held), len(held) == 0
	for i, t := range held {
		if t.seq == meta.Sequence.Stream {
			at = i
		}
	}
	t := delivered{m: m, generation: d.Generation, seq: meta.Sequence.Stream, at: time.Now()}
	if at < len(held) {
		held[at] = t
	} else {
		held = append(held, t)
	}
	q.tokens[d.Call] = held
	q.mu.Unlock()
	if !fresh {
		q.gone(m) // it has room already
	}
	q.decide(func(o *protocol.Owner, now time.Duration, out []protocol.Effect) []protocol.Effect {
		d.Until = from(now, until)
		return o.Deliveries.Delivered(now, d, out)
	})
}

// sweep lets go of messages whose calls have left this process without a word. What has just come is not yet known to
// the protocol.
func (q *workqueue) sweep(now time.Time, has func(call string) bool) {
	q.mu.Lock()
	var calls []string
	for call, held := range q.tokens {
		if now.Sub(held[len(held)-1].at) > time.Second {
			calls = append(calls, call)
		}
	}
	q.mu.Unlock()
	for _, call := range calls {
		if !has(call) {
			q.forget(call)
		}
	}
}

// count is how many calls have messages here that are not acknowledged.
func (q *workqueue) count() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.tokens)
}

// readLetter reads the headers alone: the body may be what kills its owners.
func readLetter(m *nats.Msg) (d protocol.Delivery, until time.Time, why string) {
	d.Call, d.Again = m.Header.Get(hdrCall), m.Header.Get(hdrAgain) != ""
	var err error
	if d.Generation, err = strconv.ParseUint(m.Header.Get(hdrGen), 10, 64); err != nil {
		return d, until, "its generation cannot be read"
	}
	until, err = time.Parse(time.RFC3339Nano, m.Header.Get(hdrDeadline))
	if err != nil {
		return d, until, "its deadline cannot be read"
	}
	if d.Call == "" || strings.ContainsAny(d.Call, " \t\r\n") {
		return d, until, "it names no call"
	}
	return d, until, ""
}
