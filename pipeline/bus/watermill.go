package bus

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Metadata keys that our subscribers add to what came in the headers. They hold no NATS header name.
const (
	metaReply   = "_reply"   // reply subject of a core message, ack subject of a stored one
	metaSubject = "_subject" // where it came in
	metaArrived = "_arrived" // RFC 3339: when this process first had it
	metaStored  = "_stored"  // set if it was pulled from a stream
)

// marshaler is ours in watermill-nats's publisher seam: headers one value each, body untouched, reply subject kept.
// The stock marshaler loses reply subject and message id (nats.md D 3).
type marshaler struct{}

var _ wmnats.Marshaler = marshaler{}

// Marshal implements wmnats.Marshaler.
func (marshaler) Marshal(topic string, m *message.Message) (*nats.Msg, error) {
	out := &nats.Msg{Subject: topic, Data: m.Payload, Header: make(nats.Header, len(m.Metadata))}
	for k, v := range m.Metadata {
		if k == metaReply {
			out.Reply = v
			continue
		}
		out.Header[k] = []string{v}
	}
	return out, nil
}

// newPublisher is watermill-nats's core publisher on our connection. Its Close would close the shared connection, so
// nobody calls it (nats.md D 8).
func newPublisher(nc *nats.Conn, log *slog.Logger) (message.Publisher, error) {
	return wmnats.NewPublisherWithNatsConn(nc, wmnats.PublisherPublishConfig{
		Marshaler:         marshaler{},
		SubjectCalculator: wmnats.DefaultSubjectCalculator,
		JetStream:         wmnats.JetStreamConfig{Disabled: true},
	}, watermillLog(log))
}

// watermillLog maps watermill's chatty levels down.
func watermillLog(log *slog.Logger) watermill.LoggerAdapter {
	return watermill.NewSlogLoggerWithLevelMapping(log, map[slog.Level]slog.Level{
		watermill.LevelTrace: slog.LevelDebug - 4, slog.LevelDebug: slog.LevelDebug - 4, slog.LevelInfo: slog.LevelDebug - 4,
	})
}

// slots bounds how many messages of one subscription are worked on at once.
type slots chan struct{}

// hopSubscriber is watermill's Subscriber for core queue groups. What arrives is marked at once (onArrive), waits for a
// slot in memory and in order, and is never rejected or dropped for lack of one (lease.md 4). Ack and Nack have no NATS
// meaning: they free the slot; Step alone settles the lease (lease.md 9).
type hopSubscriber struct {
	nc    *nats.Conn
	group string
	slots slots
	limit int // pending limit of the subscription
	// onArrive is called in the order of arrival, before the message waits; its result is called when the message
	// leaves this process's hands.
	onArrive func(m *nats.Msg) (leave func(), ok bool)
	log      *slog.Logger

	wg sync.WaitGroup
}

var _ message.Subscriber = (*hopSubscriber)(nil)

// Subscribe implements message.Subscriber. The channel is closed after ctx is over and all that waited was handed out.
func (s *hopSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	type waiting struct {
		m       *nats.Msg
		leave   func()
		arrived time.Time
	}
	var mu sync.Mutex
	var queue []waiting
	wake := make(chan struct{}, 1)
	sub, err := s.nc.QueueSubscribe(topic, s.group, func(m *nats.Msg) {
		leave, ok := s.onArrive(m)
		if !ok {
			return
		}
		mu.Lock()
		queue = append(queue, waiting{m, leave, time.Now()})
		mu.Unlock()
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return nil, err
	}
	if err := sub.SetPendingLimits(s.limit, -1); err != nil {
		return nil, errors.Join(err, sub.Unsubscribe())
	}
	out := make(chan *message.Message)
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer close(out)
		stopping := false
		for {
			mu.Lock()
			n := len(queue)
			mu.Unlock()
			if n == 0 {
				if stopping {
					return
				}
				select {
				case <-wake:
				case <-ctx.Done():
					// Drain hands over what the client has already received, so nothing is dropped.
					if err := drain(s.nc, sub); err != nil {
						s.log.Warn("hop subscription did not drain", "topic", topic, "err", err)
					}
					stopping = true
				}
				continue
			}
			s.slots <- struct{}{}
			mu.Lock()
			w := queue[0]
			queue = queue[1:]
			mu.Unlock()
			m := toMessage(w.m, w.arrived, "")
			s.wg.Add(1)
			go func() {
				defer s.wg.Done()
				select {
				case <-m.Acked():
				case <-m.Nacked():
				}
				w.leave()
				<-s.slots
			}()
			out <- m
		}
	}()
	return out, nil
}

// drain lets a subscription hand over what the client has received, and ends it. Without a server there is nobody to
// confirm that nothing more comes, and nothing that could.
func drain(nc *nats.Conn, sub *nats.Subscription) error {
	if !nc.IsConnected() {
		return sub.Unsubscribe()
	}
	done := sub.StatusChanged(nats.SubscriptionClosed)
	if err := sub.Drain(); err != nil {
		return err
	}
	select {
	case <-done:
	case <-time.After(2 * time.Second):
		return errors.New("timed out")
	}
	return nil
}

// Close implements message.Subscriber: it waits for what was handed out.
func (s *hopSubscriber) Close() error { s.wg.Wait(); return nil }

func toMessage(m *nats.Msg, arrived time.Time, stored string) *message.Message {
	out := message.NewMessage(m.Header.Get(hdrCall), m.Data)
	out.Metadata = make(message.Metadata, len(m.Header)+3)
	for k, v := range m.Header {
		if len(v) > 0 {
			out.Metadata[k] = v[0]
		}
	}
	out.Metadata[metaReply] = m.Reply
	out.Metadata[metaSubject] = m.Subject
	out.Metadata[metaArrived] = arrived.Format(time.RFC3339Nano)
	out.Metadata[metaStored] = stored
	return out
}

// pullSubscriber is watermill's Subscriber for one durable pull consumer. It never pulls more than it has free slots
// for, because the ack wait runs from delivery (nats.md A 5).
type pullSubscriber struct {
	js     jetstream.JetStream
	stream string
	slots  slots
	// idle, if not 0, says that other subscribers have the same slots: a pull that waits takes so many, and more only
	// while there is more to be had.
	idle int
	// hold reports whether pulling must pause (backlog), asked before each pull.
	hold     func() bool
	onArrive func(m *nats.Msg) (leave func(), ok bool)
	log      *slog.Logger

	wg sync.WaitGroup
}

var _ message.Subscriber = (*pullSubscriber)(nil)

const pullers = 2 // pulls under way at once, so that a freed slot does not wait for a pull to expire

// Subscribe implements message.Subscriber; topic is the durable's name. The channel is closed when ctx is over.
func (s *pullSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	cons, err := s.js.Consumer(ctx, s.stream, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	var loops sync.WaitGroup
	for range pullers {
		loops.Add(1)
		go func() {
			defer loops.Done()
			s.pull(ctx, cons, topic, out)
		}()
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		loops.Wait()
		close(out)
	}()
	return out, nil
}

// Close implements message.Subscriber.
func (s *pullSubscriber) Close() error { s.wg.Wait(); return nil }

func (s *pullSubscriber) pull(ctx context.Context, cons jetstream.Consumer, name string, out chan<- *message.Message) {
	most := batchMost
	if s.idle > 0 {
		most = s.idle
	}
	for ctx.Err() == nil {
		if s.hold != nil && s.hold() {
			pause(ctx, scheduleStep)
			continue
		}
		n := s.reserve(ctx, most)
		if n == 0 {
			return
		}
		batch, err := cons.Fetch(n, jetstream.FetchMaxWait(pullExpiry))
		if err != nil {
			s.release(n)
			if ctx.Err() == nil {
				s.log.Debug("pull failed", "consumer", name, "err", err)
				pause(ctx, scheduleStep)
			}
			continue
		}
		used := 0
		for m := range batch.Messages() {
			used++
			s.deliver(m, out)
		}
		s.release(n - used)
		switch {
		case s.idle == 0:
		case used == n:
			most = min(2*most, batchMost)
		default:
			most = s.idle
		}
		if err := batch.Error(); err != nil && ctx.Err() == nil && !errors.Is(err, nats.ErrTimeout) {
			s.log.Debug("pull ended", "consumer", name, "err", err)
			pause(ctx, 50*time.Millisecond)
		}
	}
}

func (s *pullSubscriber) deliver(jm jetstream.Msg, out chan<- *message.Message) {
	raw := &nats.Msg{Subject: jm.Subject(), Reply: jm.Reply(), Header: jm.Headers(), Data: jm.Data()}
	leave, ok := s.onArrive(raw)
	if !ok {
		<-s.slots
		return
	}
	m := toMessage(raw, time.Now(), s.stream)
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		select {
		case <-m.Acked():
		case <-m.Nacked():
		}
		leave()
		<-s.slots
	}()
	out <- m
}

// batchMost is how many messages one pull asks for at most.
const batchMost = 64

// reserve waits for one free slot and takes up to half of the rest, but no more than most.
func (s *pullSubscriber) reserve(ctx context.Context, most int) int {
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	n := 1
	for range min((cap(s.slots)-len(s.slots))/2, most-1) {
		select {
		case s.slots <- struct{}{}:
			n++
		default:
			return n
		}
	}
	return n
}

func (s *pullSubscriber) release(n int) {
	for range n {
		<-s.slots
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
