package bus

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// deadLetters are what nobody could carry out: messages that cannot be read, and calls that were given up.
type deadLetters struct {
	js       jetstream.JetStream
	subj     messages.Subjects
	begun    *begun
	durable  *durables
	stats    *nodeStats
	tasks    *tally
	opts     *Options
	redrives sync.Mutex
}

var _ pipeline.DeadLetters = (*deadLetters)(nil)

// Bounds of a page of dead letters. Whoever wants more asks again.
const (
	deadPage = 100
	deadMost = 1000
	deadTime = 4 * time.Second // looking for letters, or working on them
)

// DeadLetters implements pipeline.DeadLetters.
func (d *deadLetters) DeadLetters(ctx context.Context, f pipeline.DeadFilter) (pipeline.DeadPage, error) {
	page := pipeline.DeadPage{Letters: []pipeline.DeadLetter{}}
	next, err := d.each(ctx, f, func(l pipeline.DeadLetter, _ *jetstream.RawStreamMsg) bool {
		page.Letters = append(page.Letters, l)
		return len(page.Letters) < pageSize(f.Limit)
	})
	page.Next = next
	return page, err
}

func pageSize(limit int) int {
	if limit <= 0 {
		return deadPage
	}
	return min(limit, deadMost)
}

// each shows the letters that the filter lets through to see, until it says false or the time of a page is over.
// next is the sequence of the last one that it looked at; 0 if none is left behind it.
func (d *deadLetters) each(ctx context.Context, f pipeline.DeadFilter,
	see func(l pipeline.DeadLetter, m *jetstream.RawStreamMsg) bool) (next uint64, err error) {
	stream, err := d.js.Stream(ctx, jet.DeadStream)
	if err != nil {
		return 0, unreadable(err)
	}
	subject := d.subj.Control("dead", ">")
	if f.Kind != "" {
		subject = d.subj.Control("dead", messages.Token(f.Kind), ">")
	}
	seq, begin := max(f.After+1, f.Sequence), time.Now()
	for {
		m, err := stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && f.Sequence != 0 && m.Sequence != f.Sequence {
			return 0, nil
		}
		if err != nil {
			return 0, unreadable(err)
		}
		if l := letterOf(m); fits(l, m, f) && !see(l, m) || time.Since(begin) > deadTime {
			return m.Sequence, nil
		}
		seq = m.Sequence + 1
	}
}

func unreadable(err error) error {
	return messages.NewFault(messages.StoreUnavailable, "the dead letters cannot be read: %v",
		jet.Said(err)).From("control")
}

// letterOf reads the headers of a letter and no more: its body may be what kills whoever reads it.
func letterOf(m *jetstream.RawStreamMsg) pipeline.DeadLetter {
	h := m.Header
	l := pipeline.DeadLetter{Sequence: m.Sequence, Time: m.Time.UTC(), Reason: h.Get(hdrReason),
		Subject: h.Get(hdrDeadFrom),
		Call:    h.Get(hdrCall), Begun: h.Get(hdrDeadBegun), Bytes: len(m.Data), Tenant: h.Get(hdrTenant)}
	if plain, ok := messages.Untoken(l.Tenant); ok {
		l.Tenant = plain
	}
	if k := messages.Kind(h.Get(hdrKind)); k.Valid() {
		l.Kind = k
	}
	l.Deliveries, _ = strconv.Atoi(h.Get(hdrDeliveries))
	return l
}

func fits(l pipeline.DeadLetter, m *jetstream.RawStreamMsg, f pipeline.DeadFilter) bool {
	return (f.Tenant == "" || m.Header.Get(hdrTenant) == messages.Token(f.Tenant)) &&
		(f.Call == "" || l.Call == f.Call) &&
		strings.Contains(strings.ToLower(l.Reason), strings.ToLower(f.Reason)) &&
		(f.Since.IsZero() || !l.Time.Before(f.Since)) && (f.Until.IsZero() || l.Time.Before(f.Until))
}

// DeadLetter implements pipeline.DeadLetters.
func (d *deadLetters) DeadLetter(ctx context.Context, tenant string, sequence uint64) (pipeline.DeadLetter, error) {
	var out pipeline.DeadLetter
	_, err := d.each(ctx, pipeline.DeadFilter{Tenant: tenant, Sequence: max(sequence, 1)},
		func(l pipeline.DeadLetter, m *jetstream.RawStreamMsg) bool {
			out = l
			out.Message = shown(m.Data)
			return false
		})
	if err == nil && out.Sequence == 0 {
		err = noLetter(sequence)
	}
	return out, err
}

func noLetter(sequence uint64) error {
	return messages.NewFault(messages.NotFound, "there is no dead letter %d", sequence).From("control")
}

// shown is what a letter holds as JSON: the lines of a stored call, or a text.
func shown(data []byte) json.RawMessage {
	if json.Valid(data) {
		return data
	}
	var lines []json.RawMessage
	for line := range strings.Lines(string(data)) {
		if !json.Valid([]byte(line)) {
			return rawjson.Encode(strings.ToValidUTF8(string(data), "\uFFFD"))
		}
		lines = append(lines, json.RawMessage(strings.TrimSpace(line)))
	}
	return rawjson.Encode(lines)
}

// Redrive implements pipeline.DeadLetters.
func (d *deadLetters) Redrive(ctx context.Context, f pipeline.DeadFilter, _ string) (pipeline.DeadDone, error) {
	return d.with(ctx, f, func(l pipeline.DeadLetter, m *jetstream.RawStreamMsg) (string, error) {
		return d.again(ctx, l, m.Data)
	})
}

// DeleteDead implements pipeline.DeadLetters.
func (d *deadLetters) DeleteDead(ctx context.Context, f pipeline.DeadFilter, _ string) (pipeline.DeadDone, error) {
	return d.with(ctx, f, func(pipeline.DeadLetter, *jetstream.RawStreamMsg) (string, error) { return "", nil })
}

// with does something with the letters of a page, and deletes those with which it could be done.
func (d *deadLetters) with(ctx context.Context, f pipeline.DeadFilter,
	do func(l pipeline.DeadLetter, m *jetstream.RawStreamMsg) (as string, err error)) (pipeline.DeadDone, error) {
	out := pipeline.DeadDone{Done: []pipeline.DeadDeed{}, Refused: []pipeline.DeadDeed{}}
	if !f.All && f.Sequence == 0 && f.Kind+f.Call+f.Reason == "" && f.Since.IsZero() && f.Until.IsZero() {
		return out, messages.NewFault(messages.InvalidRequest, "say which dead letters: name a sequence, kind, call, "+
			"reason, since or until; all of them are meant only by all=true").From("control")
	}
	stream, err := d.js.Stream(ctx, jet.DeadStream)
	if err != nil {
		return out, unreadable(err)
	}
	next, err := d.each(ctx, f, func(l pipeline.DeadLetter, m *jetstream.RawStreamMsg) bool {
		deed := pipeline.DeadDeed{Sequence: l.Sequence, Call: l.Call}
		var err error
		if deed.As, err = do(l, m); err == nil {
			if err = stream.DeleteMsg(ctx, l.Sequence); errors.Is(err, jetstream.ErrMsgNotFound) {
				err = nil // somebody else has
			}
		}
		if err != nil {
			deed.Reason = err.Error()
			if f, ok := errors.AsType[*messages.Fault](err); ok {
				deed.Reason = f.Message
			}
			out.Refused = append(out.Refused, deed)
		} else {
			out.Done = append(out.Done, deed)
		}
		return len(out.Done)+len(out.Refused) < pageSize(f.Limit)
	})
	if out.Next = next; err == nil && f.Sequence != 0 {
		out.Next = 0
		if len(out.Done)+len(out.Refused) == 0 {
			err = noLetter(f.Sequence)
		}
	}
	return out, err
}
