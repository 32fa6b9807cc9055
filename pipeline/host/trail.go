package host

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Bounds of what a trail keeps while its stream takes nothing.
const (
	keptRecords = 10_000
	keptBytes   = 8 << 20
)

// trail writes audit records. A call does not wait for its record, but whether the record is stored is known within
// seconds: what the stream does not take is kept and written later, and until then readiness fails and the log says so.
// It is safe for concurrent use.
type trail struct {
	js  jetstream.JetStream
	log *slog.Logger

	mu      sync.Mutex
	kept    []*nats.Msg // the oldest first
	bytes   int
	refused int64 // records that were not stored at once
	lost    int64 // of those, the ones for which there was no room
	last    error
	wake    chan struct{}
}

// newTrail makes a trail with a publisher of its own on the connection.
func newTrail(nc *nats.Conn, log *slog.Logger) (*trail, error) {
	t := &trail{log: log, wake: make(chan struct{}, 1)}
	var err error
	t.js, err = jetstream.New(nc, jetstream.WithPublishAsyncTimeout(5*time.Second),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) { t.keep(m, err) }))
	return t, err
}

// publish writes a record and does not wait for it.
func (t *trail) publish(subject string, record []byte) {
	m := &nats.Msg{Subject: subject, Data: record}
	if _, err := t.js.PublishMsgAsync(m); err != nil {
		t.keep(m, err)
	}
}

// keep holds on to a record that was not stored.
func (t *trail) keep(m *nats.Msg, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refused++
	t.last = err
	if len(t.kept) == 0 {
		t.log.Error("an audit record is not stored; it and those that follow are kept in memory and tried again",
			"subject", m.Subject, "err", err)
	}
	if len(t.kept) >= keptRecords || t.bytes+len(m.Data) > keptBytes {
		if t.lost++; t.lost == 1 || t.lost%1000 == 0 {
			t.log.Error("audit records are lost: no more can be kept", "lost", t.lost, "kept", len(t.kept), "err", err)
		}
		return
	}
	t.kept = append(t.kept, &nats.Msg{Subject: m.Subject, Data: m.Data})
	t.bytes += len(m.Data)
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// run writes what was kept, until ctx ends.
func (t *trail) run(ctx context.Context) {
	for {
		select {
		case <-t.wake:
		case <-ctx.Done():
			return
		}
		for t.rewrite(ctx) > 0 {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return
			}
		}
	}
}

// rewrite tries to write what is kept, the oldest first, and returns how much is left.
func (t *trail) rewrite(ctx context.Context) int {
	written := 0
	for {
		t.mu.Lock()
		if len(t.kept) == 0 {
			t.mu.Unlock()
			if written > 0 {
				t.log.Info("audit records are stored again", "written", written)
			}
			return 0
		}
		m := t.kept[0]
		t.mu.Unlock()
		limit, cancel := context.WithTimeout(ctx, 3*time.Second)
		_, err := t.js.PublishMsg(limit, &nats.Msg{Subject: m.Subject, Data: m.Data})
		cancel()
		t.mu.Lock()
		if err != nil {
			t.last = err
			left := len(t.kept)
			t.mu.Unlock()
			return left
		}
		t.kept, t.bytes = t.kept[1:], t.bytes-len(m.Data)
		t.mu.Unlock()
		written++
	}
}

// close waits for what is under way and tries once more to write what is kept; what is left then is lost.
func (t *trail) close(ctx context.Context) {
	select {
	case <-t.js.PublishAsyncComplete():
	case <-ctx.Done():
	}
	if left := t.rewrite(ctx); left > 0 {
		t.log.Error("audit records are lost: the process ends and the stream takes none", "lost", left)
	}
}

// check is the readiness of the audit, with its counters.
func (t *trail) check() Check {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := Check{Name: "audit", OK: len(t.kept) == 0}
	switch {
	case !c.OK:
		c.Reason = fmt.Sprintf("%d audit records wait for their stream, %d are lost: %v", len(t.kept), t.lost, t.last)
	case t.refused > 0:
		c.Reason = fmt.Sprintf("%d audit records were late, %d are lost, since the start", t.refused-t.lost, t.lost)
	}
	return c
}
