package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// This file takes away what records of begun work leave behind. A record must outlive its call: a copy of an offer that
// was long on its way would begin the work again if nothing said that it has run. After the call's time every member
// refuses such a copy, and an hour more covers clocks that differ. Most records are let go by who wrote them last, when
// the call has ended; the outcome in them goes at once. Those whose writers died are found by age.

const (
	// begunMargin is how long a record stays after the time of its call.
	begunMargin = time.Hour
	// begunMost is how long a record stays at most after its call has ended.
	begunMost = 24 * time.Hour
	// sweepEvery is how often records are looked for that nobody let go.
	sweepEvery = time.Hour
)

// expiry takes away records of begun work.
type expiry struct {
	begun *begun
	js    jetstream.JetStream
	subj  messages.Subjects
	clock clock
	calls *running
	holds *holds
	log   *slog.Logger
}

// letGo has the server delete a record some time after its call's.
func (x *expiry) letGo(e protocol.Effect) {
	ctx, cancel := context.WithTimeout(context.Background(), storeTime)
	defer cancel()
	key := messages.Key(e.Group, e.Call, strconv.FormatUint(e.N, 10))
	left := min(max(time.Until(x.clock.wall(e.Until)), 0)+begunMargin, begunMost)
	if err := x.begun.letGo(ctx, key, x.begun.line(e), e.Rev, left); err != nil {
		x.log.Debug("a record of begun work was not let go; it is swept away later", "call", e.Call, "err", err)
	}
}

// letGo writes a record that the server deletes after left, over the revision.
func (b *begun) letGo(ctx context.Context, key string, line []byte, rev uint64, left time.Duration) error {
	m := &nats.Msg{Subject: kvSubject(jet.BegunBucket, key), Data: line}
	_, err := b.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(rev), jetstream.WithRetryAttempts(1),
		jetstream.WithMsgTTL(max(left.Round(time.Second), time.Second)))
	return err
}

// sweep deletes records of calls that have been over for long by now. inUse reports whether a call may still go on; it
// is named by tenant and call, as keys and subjects have them.
func (b *begun) sweep(ctx context.Context, now time.Time, inUse func(call string) (bool, error)) error {
	stream, err := b.js.Stream(ctx, "KV_"+jet.BegunBucket)
	if err != nil {
		return err
	}
	for seq := uint64(1); ; seq++ {
		m, err := stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(kvSubject(jet.BegunBucket, ">")))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		seq = m.Sequence
		if now.Sub(m.Time) < begunMost {
			return nil // the others are younger
		}
		if err := b.sweepOne(ctx, now, m, inUse); err != nil {
			return err
		}
	}
}

func (b *begun) sweepOne(ctx context.Context, now time.Time, m *jetstream.RawStreamMsg,
	inUse func(call string) (bool, error)) error {
	key := strings.TrimPrefix(m.Subject, kvSubject(jet.BegunBucket, ""))
	t := strings.Split(key, ".")
	line, _, _ := bytes.Cut(m.Data, []byte{'\n'})
	var l begunLine
	if m.Header.Get(hdrTTL) != "" || len(t) != 3 || json.Unmarshal(line, &l) != nil ||
		now.Sub(time.Unix(l.Until, 0)) < begunMost {
		return nil
	}
	if used, err := inUse(t[0] + "." + t[1]); used || err != nil {
		return err
	}
	err := b.letGo(ctx, key, line, m.Sequence, time.Second)
	if written(err) == protocol.Exists {
		return nil // somebody has written it meanwhile
	}
	return err
}

// sweep lets go of the records that nobody else does.
func (x *expiry) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sweepEvery)
	defer cancel()
	inUse := func(call string) (bool, error) { return x.underWay(ctx, call) }
	if err := x.begun.sweep(ctx, time.Now(), inUse); err != nil {
		x.log.Debug("old records of begun work were not swept away; that is tried again", "err", err)
	}
}

// underWay reports whether a call lies in the work queue, is parked, or runs here. An error is that it cannot be told.
func (x *expiry) underWay(ctx context.Context, call string) (bool, error) {
	if id, ok := messages.Untoken(last(call)); ok && x.calls.get(id) != nil {
		return true, nil
	}
	stream, err := x.js.Stream(ctx, jet.CallsStream)
	if err != nil {
		return false, err
	}
	queued := strings.TrimSuffix(x.subj.QueuedCall("x", "x"), "x.x") + call
	if _, err = stream.GetLastMsgForSubject(ctx, queued); !errors.Is(err, jetstream.ErrMsgNotFound) {
		return err == nil, err
	}
	_, err = x.holds.store.Get(ctx, call)
	if errors.Is(err, pipeline.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
