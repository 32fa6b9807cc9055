package natscalls

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/calls"
)

// Bounds of a feed: a reader that is slower loses events and is told how many.
const (
	feedBuffer = 2048
	renewal    = calls.Interest / 3
)

// Follow tells of every event until ctx ends or tell returns an error, and has single steps told as long as it runs. A
// tenant binds it to the events of that tenant. Every few seconds it tells of nothing, as a sign of life. It returns
// tell's error, or that of ctx.
func (l *Lookup) Follow(ctx context.Context, tenant string, tell func(n calls.News) error) error {
	in := make(chan *nats.Msg, feedBuffer)
	sub, err := l.conn.ChanSubscribe(l.subjects.EventAll(), in)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	prefix := strings.TrimSuffix(l.subjects.EventAll(), ">")
	again := time.NewTicker(renewal)
	defer again.Stop()
	_ = l.conn.Publish(interest(l.subjects), nil)
	lost := 0
	for {
		select {
		case m := <-in:
			if n, ok := newsOf(m, prefix, tenant); ok {
				if err := tell(n); err != nil {
					return err
				}
			}
		case <-again.C:
			_ = l.conn.Publish(interest(l.subjects), nil)
			n := calls.News{}
			if total, err := sub.Dropped(); err == nil && total > lost {
				n = calls.News{What: calls.Lost, Data: rawjson.Encode(map[string]int{"events": total - lost})}
				lost = total
			}
			if err := tell(n); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func newsOf(m *nats.Msg, prefix, tenant string) (n calls.News, ok bool) {
	what, _, _ := strings.Cut(strings.TrimPrefix(m.Subject, prefix), ".")
	if !json.Valid(m.Data) {
		return n, false
	}
	if whose, _ := rawjson.FieldString(m.Data, "tenant"); tenant != "" && whose != tenant {
		return n, false
	}
	return calls.News{What: what, Data: m.Data}, true
}
