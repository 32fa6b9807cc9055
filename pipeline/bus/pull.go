package bus

import (
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Bounds of pulls. What a pull may still bring goes to a process that stands still too, and others get it only after
// the ack wait: so a pull asks for few calls, and ends when the mark of such a process would. Heartbeats tell a pull
// that waits from one that the server has forgotten.
const (
	pullBeats  = 5 * time.Second
	pullSilent = 2*pullBeats + time.Second
	pullMost   = 8
)

// puller keeps one pull waiting at a consumer of the work queue while there is room. It is safe for concurrent use.
type puller struct {
	nc     *nats.Conn
	next   string // the subject of pulls
	prefix string // of their reply subjects, with the last dot
	room   int
	waits  time.Duration // of a pull

	mu     sync.Mutex
	n      uint64    // of the waiting pull; 0: none
	last   uint64    // of any pull
	left   int       // what it may still bring
	heard  time.Time // something of it
	busy   int       // calls that came and have not left
	paused bool
}

func newPuller(nc *nats.Conn, stream, consumer, prefix string, room int, waits time.Duration) *puller {
	return &puller{nc: nc, next: "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + consumer, prefix: prefix, room: room,
		waits: max(waits, 2*pullBeats)}
}

// look pulls if there is room and no pull is waiting.
func (p *puller) look(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n != 0 && now.Sub(p.heard) > pullSilent {
		p.n = 0
	}
	p.pull(now)
}

// again pulls anew, whatever is waiting: the server may have forgotten it.
func (p *puller) again(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n = 0
	p.pull(now)
}

func (p *puller) pull(now time.Time) {
	batch := min(p.room-p.busy, pullMost)
	if p.n != 0 || p.paused || batch <= 0 {
		return
	}
	body, err := json.Marshal(map[string]any{"batch": batch, "expires": p.waits, "idle_heartbeat": pullBeats})
	if err != nil {
		return
	}
	reply := p.prefix + strconv.FormatUint(p.last+1, 10)
	if p.nc.PublishMsg(&nats.Msg{Subject: p.next, Reply: reply, Data: body}) != nil {
		return // there is no connection; look is called again
	}
	p.last++
	p.n, p.left, p.heard = p.last, batch, now
}

// came says that a pull brought a call, which takes room until gone is called for it.
func (p *puller) came(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy++
	p.heard = now
	if p.left--; p.left <= 0 {
		p.n = 0
		p.pull(now)
	}
}

func (p *puller) gone(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy--
	p.pull(now)
}

// status takes what the server says of a pull: a heartbeat, or why it ended.
func (p *puller) status(m *nats.Msg, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, p.prefix), 10, 64)
	if err != nil || n != p.n {
		return
	}
	p.heard = now
	switch m.Header.Get("Status") {
	case "100":
	case "404", "408":
		p.n = 0
		p.pull(now)
	default: // the consumer is away, or something is wrong with it: look tries again, not at once
		p.n = 0
	}
}

// stop pulls no more. What a pull that waits still brings is taken.
func (p *puller) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = true
}
