package calls

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// ask is the question for running calls: one of them with its steps, or the newest without.
type ask struct {
	Tenant string `json:"tenant,omitempty"`
	Call   string `json:"call,omitempty"`
}

// told is the answer of one process.
type told struct {
	Owner string  `json:"owner"`
	Calls []Story `json:"calls"`
}

// live is where running calls are asked for; every process that owns calls answers.
func live(s messages.Subjects) string { return s.Control("control", "calls") }

// mostLive is how many running calls one process tells of.
const mostLive = 200

// answer says what runs here.
func (r *Recorder) answer(m *nats.Msg) {
	var q ask
	if json.Unmarshal(m.Data, &q) != nil {
		return
	}
	_ = m.Respond(rawjson.Encode(told{r.opts.Name, r.here(q)}))
}

func (r *Recorder) here(q ask) []Story {
	r.mu.Lock()
	var found []*watch
	if w := r.running[q.Call]; w != nil {
		found = append(found, w)
	} else if q.Call == "" {
		for _, w := range r.running {
			found = append(found, w)
		}
	}
	r.mu.Unlock()
	out := []Story{}
	for _, w := range found {
		s := w.now()
		if q.Tenant != "" && q.Tenant != s.Tenant {
			continue
		}
		if q.Call == "" {
			s = s.row()
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Story) int { return b.Accepted.Compare(a.Accepted) })
	return out[:min(len(out), mostLive)]
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
func (l *Lookup) running(ctx context.Context, q ask) (out []Story, whole bool) {
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
