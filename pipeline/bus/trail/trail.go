// Package trail writes records that no call waits for, such as those of the audit, to a stream.
package trail

import (
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	"github.com/tidwall/gjson"
)

// Bounds of what is sent and not acknowledged, and again of what is kept while its stream takes nothing.
const (
	maxRecords = 10_000
	maxBytes   = 8 << 20
)

// ackTime is how long a stream may take to acknowledge a record before the record counts as not stored.
const ackTime = 5 * time.Second

var (
	errSilent = errors.New("the stream does not answer")
	errBehind = errors.New("the stream is behind")
)

// Trail writes records. Nobody waits for a record, but whether it is stored is known within seconds: what the stream
// does not take is kept and written later, and until then State and the log say so. Each message has an id, by which
// its stream knows those that come again, as long as its duplicate window is. It is safe for concurrent use.
type Trail struct {
	log  *slog.Logger
	now  message.Publisher // sends and goes on; acked hears what became of it
	slow message.Publisher // waits until the stream has the record
	acks *nats.Subscription
	life string // begins the ids of messages whose records have none

	mu      sync.Mutex
	sent    bounded              // not acknowledged yet
	open    map[string]*gathered // by subject
	pending map[uint64]record    // those that sent counts
	first   uint64               // no pending record has a smaller number
	next    uint64
	named   uint64        // messages that got an id here
	idle    chan struct{} // closed when nothing is pending; nil: nobody waits for it
	kept    []record      // the oldest first
	held    bounded       // counts kept
	state   State
	wake    chan struct{}
}

// State is how a trail does. Late and Lost count since its start.
type State struct {
	Waiting int   // records that are kept and not stored
	Late    int64 // records that were not stored at once, but kept
	Lost    int64 // records that are too large for a message, or for which there was no room
	Last    error // why a record was last refused; nil: none was
}

// record is a message with one record, or with several.
type record struct {
	subject string
	id      string
	data    []byte
	n       int // records
	at      time.Time
}

// bounded counts records against the bounds.
type bounded struct{ records, bytes int }

func (b *bounded) add(r record) bool {
	if b.records+r.n > maxRecords || b.bytes+len(r.data) > maxBytes {
		return false
	}
	b.records, b.bytes = b.records+r.n, b.bytes+len(r.data)
	return true
}

func (b *bounded) remove(r record) { b.records, b.bytes = b.records-r.n, b.bytes-len(r.data) }

// New makes a trail on a connection that stays the caller's. Run and Close belong to it.
func New(nc *nats.Conn, log *slog.Logger) (*Trail, error) {
	t := &Trail{log: log, life: nuid.Next(), open: map[string]*gathered{}, pending: map[uint64]record{},
		wake: make(chan struct{}, 1)}
	inbox := nc.NewInbox()
	var err error
	// The publisher of JetStream waits for every acknowledgement. This one does not know JetStream: its messages name
	// the inbox that the stream acknowledges to. Closing either would close the connection.
	t.now, err = wmnats.NewPublisherWithNatsConn(nc, wmnats.PublisherPublishConfig{Marshaler: bare{inbox},
		JetStream: wmnats.JetStreamConfig{Disabled: true}}, nil)
	if err != nil {
		return nil, err
	}
	t.slow, err = wmnats.NewPublisherWithNatsConn(nc, wmnats.PublisherPublishConfig{Marshaler: bare{},
		SubjectCalculator: wmnats.DefaultSubjectCalculator, JetStream: wmnats.JetStreamConfig{
			PublishOptions: []nats.PubOpt{nats.AckWait(2 * time.Second), nats.RetryAttempts(0)}}}, nil)
	if err != nil {
		return nil, err
	}
	t.acks, err = nc.Subscribe(inbox+".*", t.acked)
	return t, err
}

// bare marshals a message as its payload. With an inbox, the answer goes there, under the message's id.
type bare struct{ inbox string }

// Marshal implements wmnats.Marshaler.
func (b bare) Marshal(subject string, m *message.Message) (*nats.Msg, error) {
	out := &nats.Msg{Subject: subject, Data: m.Payload, Header: nats.Header{nats.MsgIdHdr: {m.Metadata[nats.MsgIdHdr]}}}
	if b.inbox != "" {
		out.Reply = b.inbox + "." + m.UUID
	}
	return out, nil
}

// Publish writes a record in a message of its own and does not wait for it. A record that has an id may be written
// again, by whichever process, and is stored once. The trail keeps data; the caller must not change it afterwards.
func (t *Trail) Publish(subject, id string, data []byte) {
	t.mu.Lock()
	s := t.begin(record{subject, id, data, 1, time.Now()})
	t.mu.Unlock()
	t.send(s)
}

// sending is a record that is about to be sent; the zero value is none.
type sending struct {
	record
	number uint64
}

func (r record) message(uuid string) *message.Message {
	m := message.NewMessage(uuid, r.data)
	m.Metadata[nats.MsgIdHdr] = r.id
	return m
}

// begin counts a record as sent, or keeps it. The lock is held.
func (t *Trail) begin(r record) sending {
	if r.id == "" {
		t.named++
		r.id = t.life + "." + strconv.FormatUint(t.named, 10)
	}
	if !t.sent.add(r) {
		t.keep(r, errBehind)
		return sending{}
	}
	id := t.next
	t.next++
	t.pending[id] = r
	return sending{r, id}
}

func (t *Trail) send(s sending) {
	if s.n == 0 {
		return
	}
	if err := t.now.Publish(s.subject, s.message(strconv.FormatUint(s.number, 10))); err != nil {
		t.settle(s.number, err)
	}
}

// acked hears what became of a record that was sent. Whoever listens to records can answer too, as a subscriber of
// watermill does that acknowledges whatever it got: that says nothing of the stream.
func (t *Trail) acked(m *nats.Msg) {
	id, err := strconv.ParseUint(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], 10, 64)
	if err != nil {
		return
	}
	switch why := gjson.GetBytes(m.Data, "error.description").Str; {
	case m.Header.Get("Status") == "503":
		t.settle(id, nats.ErrNoResponders)
	case why != "":
		t.settle(id, errors.New(why))
	case gjson.GetBytes(m.Data, "stream").Str != "":
		t.settle(id, nil)
	}
}

// settle ends the wait for a record; with an error it is kept. A record that is settled already is left alone.
func (t *Trail) settle(id uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, ok := t.pending[id]
	if !ok {
		return
	}
	delete(t.pending, id)
	t.sent.remove(r)
	if err != nil {
		t.keep(r, err)
	}
	if len(t.pending) == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// overdue settles the records that were sent before a time and are not acknowledged.
func (t *Trail) overdue(before time.Time) {
	for {
		t.mu.Lock()
		for t.first < t.next {
			if _, ok := t.pending[t.first]; ok {
				break
			}
			t.first++
		}
		id, r := t.first, t.pending[t.first]
		none := t.first == t.next || !r.at.Before(before)
		t.mu.Unlock()
		if none {
			return
		}
		t.settle(id, errSilent)
	}
}

// keep holds on to a record that is not stored. The caller holds the lock.
func (t *Trail) keep(r record, err error) {
	t.state.Last = err
	if len(t.kept) == 0 && !errors.Is(err, nats.ErrMaxPayload) {
		t.log.Error("an audit record is not stored; it and those that follow are kept in memory and tried again",
			"subject", r.subject, "err", err)
	}
	if errors.Is(err, nats.ErrMaxPayload) || !t.held.add(r) {
		said := t.state.Lost
		if t.state.Lost += int64(r.n); said == 0 || said/1000 != t.state.Lost/1000 {
			t.log.Error("audit records are lost: they are too large, or no more can be kept",
				"lost", t.state.Lost, "kept", t.held.records, "err", err)
		}
		return
	}
	t.state.Late += int64(r.n)
	t.kept = append(t.kept, r)
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// State says how the trail does.
func (t *Trail) State() State {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.state
	s.Waiting = t.held.records
	return s
}
