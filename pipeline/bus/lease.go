package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// Lease is the stored message that answers for a call. Whoever holds the call may mark it (+WPI) and end it (+ACK),
// from any connection; nothing else is ever sent on it (lease.md 2).
type Lease struct {
	Ack       string // the ack subject, opaque but for ParseLease
	Stream    string
	Seq       uint64
	Delivered int
}

// ParseLease checks an ack subject before use: it must begin with $JS.ACK. and name one of our streams, so that no
// sender of a hop can make us publish elsewhere (lease.md B7). Version 1 has 9 tokens, version 2 eleven or more.
func ParseLease(ack string) (Lease, error) {
	t := strings.Split(ack, ".")
	at := 2
	if len(t) >= 11 {
		at = 4
	}
	if len(t) < 9 || len(t) == 10 || t[0] != "$JS" || t[1] != "ACK" {
		return Lease{}, fmt.Errorf("lease: %q is no ack subject", ack)
	}
	if t[at] != jet.CallsStream && t[at] != jet.HopsStream {
		return Lease{}, fmt.Errorf("lease: stream %q is not ours", t[at])
	}
	if strings.ContainsAny(ack, "*> \t\r\n") {
		return Lease{}, fmt.Errorf("lease: %q has a wildcard", ack)
	}
	delivered, err1 := strconv.Atoi(t[at+2])
	seq, err2 := strconv.ParseUint(t[at+3], 10, 64)
	if err := errors.Join(err1, err2); err != nil || delivered < 1 {
		return Lease{}, fmt.Errorf("lease: %q: bad numbers", ack)
	}
	return Lease{Ack: ack, Stream: t[at], Seq: seq, Delivered: delivered}, nil
}

// marker marks every lease whose call is in this process's memory, waiting or working, every third of the ack wait,
// until its deadline (lease.md B4).
type marker struct {
	nc    *nats.Conn
	every time.Duration

	mu   sync.Mutex
	held map[string]*mark
	done chan struct{}
	wg   sync.WaitGroup
}

type mark struct {
	holders int
	until   time.Time // marks stop here; zero means never
	last    time.Time // when the lease was last known to be fresh
}

func newMarker(nc *nats.Conn, ackWait time.Duration) *marker {
	m := &marker{nc: nc, every: ackWait / 3, held: map[string]*mark{}, done: make(chan struct{})}
	m.wg.Add(1)
	go m.run()
	return m
}

// enter begins to mark a lease; fresh is when it was last marked or delivered. The returned function ends it and may
// be called more than once.
func (m *marker) enter(l Lease, fresh, until time.Time) (leave func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, ok := m.held[l.Ack]
	if !ok {
		h = &mark{}
		m.held[l.Ack] = h
	}
	h.holders++
	h.until = until
	if fresh.After(h.last) {
		h.last = fresh
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			if h.holders--; h.holders == 0 {
				delete(m.held, l.Ack)
			}
		})
	}
}

// freshness is when the lease was last marked, as far as this process knows.
func (m *marker) freshness(l Lease) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h, ok := m.held[l.Ack]; ok {
		return h.last
	}
	return time.Time{}
}

func (m *marker) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.held)
}

func (m *marker) run() {
	defer m.wg.Done()
	t := time.NewTicker(max(m.every/4, 50*time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-m.done:
			return
		case now := <-t.C:
			m.beat(now)
		}
	}
}

// beat marks the leases that are due. A third of the ack wait is counted from each lease's own last mark.
func (m *marker) beat(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ack, h := range m.held {
		if now.Sub(h.last) < m.every || !h.until.IsZero() && now.After(h.until) {
			continue
		}
		if m.nc.Publish(ack, []byte("+WPI")) == nil && m.nc.IsConnected() {
			h.last = now
		}
	}
}

func (m *marker) stop() {
	close(m.done)
	m.wg.Wait()
}

// settle acknowledges a lease by a confirmed request, tried again until it is answered: an ack sent just as a leader
// dies has no responder (lease.md 2). The caller has stored the successor or the end before. Twice is harmless.
func settle(ctx context.Context, nc *nats.Conn, l Lease) error {
	wait := 100 * time.Millisecond
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := nc.RequestWithContext(try, l.Ack, []byte("+ACK"))
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || nc.IsClosed() {
			return fmt.Errorf("lease: ack of %s %d: %w", l.Stream, l.Seq, err)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
		wait = min(wait*2, 5*time.Second)
	}
}
