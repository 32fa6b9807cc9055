package natscalls

import (
	"cmp"
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/calls"
)

// ask is the question for running calls: one of them with its steps, or the newest without.
type ask struct {
	Tenant string `json:"tenant,omitempty"`
	Call   string `json:"call,omitempty"`
}

// told is the answer of one process.
type told struct {
	Owner string        `json:"owner"`
	Calls []calls.Story `json:"calls"`
}

// live is where running calls are asked for; every process that owns calls answers.
func live(s messages.Subjects) string { return s.Control("control", "calls") }

// interest is where whoever looks on says so, again and again.
func interest(s messages.Subjects) string { return s.Control("control", "watch") }

// Serve has a recorder answer those who ask for running calls, and hear who looks on, until stop is called. guard wraps
// what answers a request, so that answers go to inboxes only.
func Serve(
	nc *nats.Conn,
	root string,
	r *calls.Recorder,
	guard func(nats.MsgHandler) nats.MsgHandler,
) (stop func(), err error) {
	s := messages.Subjects{Root: root}
	answer := func(m *nats.Msg) {
		var q ask
		if json.Unmarshal(m.Data, &q) == nil {
			_ = m.Respond(rawjson.Encode(told{r.Name(), r.Running(q.Tenant, q.Call)}))
		}
	}
	asked, err := nc.Subscribe(live(s), guard(answer))
	if err != nil {
		return nil, err
	}
	watched, err := nc.Subscribe(interest(s), func(*nats.Msg) { r.Watched() })
	return func() { _, _ = asked.Unsubscribe(), watched.Unsubscribe() }, err
}

// Times of asking: how long the first answer and one that is missing are waited for, and how long others after the
// last that was expected.
const (
	patience  = 500 * time.Millisecond
	straggler = 20 * time.Millisecond
)

// peers is how many processes answered the last time.
type peers struct{ n atomic.Int64 }

// running asks every process what runs there. whole is false if fewer answered than the last time.
func (l *Lookup) running(ctx context.Context, q ask) (out []calls.Story, whole bool) {
	sub, err := l.conn.SubscribeSync(l.conn.NewInbox())
	if err != nil {
		return nil, false
	}
	defer func() { _ = sub.Unsubscribe() }()
	if l.conn.PublishRequest(live(l.subjects), sub.Subject, rawjson.Encode(q)) != nil {
		return nil, false
	}
	expected, heard := cmp.Or(l.asked.n.Load(), 1), map[string]bool{}
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		wait, stop := limit, context.CancelFunc(func() {})
		if int64(len(heard)) >= expected {
			wait, stop = context.WithTimeout(limit, straggler)
		}
		m, err := sub.NextMsgWithContext(wait)
		stop()
		if err != nil {
			break // also where nobody owns calls: the server says so at once
		}
		var t told
		if json.Unmarshal(m.Data, &t) == nil && !heard[t.Owner] {
			heard[t.Owner] = true
			out = append(out, t.Calls...)
		}
	}
	l.asked.n.Store(int64(len(heard)))
	return out, int64(len(heard)) >= expected
}
