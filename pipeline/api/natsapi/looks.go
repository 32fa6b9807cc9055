package natsapi

import (
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// lookEvery is how often it is asked whether a caller is still there. One that left is noticed after twice that time.
const lookEvery = 4 * time.Second

// looks notices callers that left. A caller of a single answer takes the first message for it, so nothing can be sent
// to see whether they listen. Instead the server is asked to trace a message to their inbox without delivering it: it
// tells who would get it. It is safe for concurrent use.
type looks struct {
	conn  *nats.Conn
	every time.Duration
	sub   *nats.Subscription
	dest  string // where the server tells, with the last dot

	mu   sync.Mutex
	last uint64
	open map[string]*look // by the last token of where the server tells
}

// look is the watch over one inbox.
type look struct {
	all   *looks
	inbox string
	left  func()

	mu         sync.Mutex
	timer      *time.Timer
	id         string
	own        bool      // somebody was there who does not listen to all inboxes
	nobody     time.Time // since when nobody is there; zero: somebody is
	reconnects uint64
	over       bool
}

func newLooks(conn *nats.Conn, every time.Duration) (*looks, error) {
	if every <= 0 {
		every = lookEvery
	}
	l := &looks{conn: conn, every: every, dest: conn.NewInbox() + ".", open: map[string]*look{}}
	var err error
	l.sub, err = conn.Subscribe(l.dest+"*", l.heard)
	return l, err
}

// at watches an inbox until end is called. left is called at most once, in a goroutine of its own, when nobody has
// listened for a while. A call that ends soon costs a timer.
func (l *looks) at(inbox string, left func()) (end func()) {
	w := &look{all: l, inbox: inbox, left: left}
	w.mu.Lock() // the timer may be faster
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(l.every, w.ask)
	return w.end
}

func (w *look) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	delete(w.all.open, w.id)
}

// ask has the server tell who listens. A message or an answer that is lost is replaced by the next one.
func (w *look) ask() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	if w.id == "" {
		w.id = w.all.add(w)
	}
	next := w.all.every
	if !w.nobody.IsZero() {
		next /= 4
	}
	w.timer.Reset(next)
	// A server that is back has all its clients come again, in any order.
	if n := w.all.conn.Stats().Reconnects; n != w.reconnects {
		w.reconnects, w.nobody = n, time.Time{}
	}
	_ = w.all.conn.PublishMsg(&nats.Msg{Subject: w.inbox, Header: nats.Header{
		"Nats-Trace-Dest": {w.all.dest + w.id}, "Nats-Trace-Only": {"true"}}})
}

func (l *looks) add(w *look) (id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	id = strconv.FormatUint(l.last, 10)
	l.open[id] = w
	return id
}

// heard takes what a server tells.
func (l *looks) heard(m *nats.Msg) {
	l.mu.Lock()
	w := l.open[m.Subject[len(l.dest):]]
	l.mu.Unlock()
	if w == nil {
		return
	}
	if t, ok := readTrace(m.Data); ok {
		w.seen(t, time.Now())
	}
}

// seen takes who is there. Somebody who listens to all inboxes may be the caller, unless another one was there before.
func (w *look) seen(t trace, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.own = w.own || t.own
	switch {
	case w.over:
	case t.own || t.all && !w.own:
		w.nobody = time.Time{}
	case w.nobody.IsZero():
		w.nobody = now
		w.timer.Reset(w.all.every / 4)
	case now.Sub(w.nobody) >= w.all.every:
		w.over = true
		w.timer.Stop()
		go w.left()
	}
}

// trace is what the server that this process is connected to tells of a message.
type trace struct {
	own bool // somebody gets it, or another server that may pass it on
	all bool // somebody gets it who listens to all inboxes, as those do who look on
}

// readTrace reads what a server tells; ok is false for what comes from another server on the way, and for a message
// that was refused.
func readTrace(data []byte) (t trace, ok bool) {
	var told struct {
		Events []struct {
			Type         string `json:"type"`
			Kind         int    `json:"kind"` // 0: a client
			Error        string `json:"error"`
			Subscription string `json:"sub"`
		} `json:"events"`
	}
	if json.Unmarshal(data, &told) != nil || len(told.Events) == 0 {
		return t, false
	}
	if in := told.Events[0]; in.Type != "in" || in.Kind != 0 || in.Error != "" {
		return t, false
	}
	for _, e := range told.Events[1:] {
		if strings.HasSuffix(e.Subscription, ">") && strings.Count(e.Subscription, ".") <= 1 {
			t.all = true
		} else {
			t.own = true
		}
	}
	return t, true
}
