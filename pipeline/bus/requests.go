package bus

import (
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// requests asks the server and other processes without a goroutine and a subscription for each question: the answers
// come on the process's own reply subscription. An answer that never comes is given up by sweep, whatever it would
// have said. It is safe for concurrent use.
type requests struct {
	nc     *nats.Conn
	prefix string // of the reply subjects, with the last dot; a number follows
	mu     sync.Mutex
	last   uint64
	open   map[string]request
}

type request struct {
	then func(m *nats.Msg)
	sent time.Time
}

// unanswered is how long an answer is waited for: many times as long as a server takes. What it was asked for is
// repeated then, so that one lost message costs no more than that.
const unanswered = 2 * time.Second

func newRequests(nc *nats.Conn, prefix string) *requests {
	return &requests{nc: nc, prefix: prefix, open: map[string]request{}}
}

// errNotSent says that a message certainly did not leave this process, not even in part.
var errNotSent = errors.New("there is no connection to the NATS server")

// send sends m. then is called once, with the answer, or with nil when nobody answered in time; it is never called if
// send returns an error.
func (r *requests) send(m *nats.Msg, then func(m *nats.Msg)) error {
	r.mu.Lock()
	r.last++
	n := strconv.FormatUint(r.last, 10)
	r.open[n] = request{then, time.Now()}
	r.mu.Unlock()
	m.Reply = r.prefix + n
	err := r.nc.PublishMsg(m)
	if err == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, n)
	for _, known := range []error{nats.ErrReconnectBufExceeded, nats.ErrConnectionReconnecting, nats.ErrConnectionClosed} {
		if errors.Is(err, known) {
			return errNotSent
		}
	}
	return err
}

// heard takes an answer. Late and double ones are dropped.
func (r *requests) heard(m *nats.Msg) {
	n := m.Subject[len(r.prefix):]
	r.mu.Lock()
	a, ok := r.open[n]
	delete(r.open, n)
	r.mu.Unlock()
	if ok {
		a.then(m)
	}
}

// sweep gives up what was asked long ago.
func (r *requests) sweep(now time.Time) {
	var old []request
	r.mu.Lock()
	for n, a := range r.open {
		if now.Sub(a.sent) > unanswered {
			delete(r.open, n)
			old = append(old, a)
		}
	}
	r.mu.Unlock()
	for _, a := range old {
		a.then(nil)
	}
}
