package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// reclaimer has calls of a process that is gone delivered again.
type reclaimer struct {
	js  jetstream.JetStream
	nc  *nats.Conn
	cfg Config
	log *slog.Logger
}

// reclaim has the stored calls delivered again at once that the process had which held the lock of the data directory
// before. What fails here costs no more than time: the server delivers them after the ack wait anyhow. Where owners of
// another kind are there it does nothing, because nobody can tell whose the calls are.
func (r *reclaimer) reclaim(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, objectTime)
	defer cancel()
	if others, err := r.otherOwners(ctx); err != nil || others {
		r.log.Debug("calls of the process before are waited for", "others", others, "err", err)
		return
	}
	s, err := r.js.Stream(ctx, jet.CallsStream)
	if err != nil {
		r.log.Debug("calls of the process before are waited for", "err", err)
		return
	}
	for _, q := range r.cfg.queues() {
		if err := r.reclaimQueue(ctx, s, q.consumer()); err != nil {
			r.log.Debug("calls of the process before are waited for", "queue", q.consumer(), "err", err)
		}
	}
}

// otherOwners reports whether a process runs calls that is no embedded one.
func (r *reclaimer) otherOwners(ctx context.Context) (bool, error) {
	marks, err := jet.OpenBucket(ctx, r.js, jet.OwnersBucket)
	if err != nil {
		return false, err
	}
	names, err := marks.Keys(ctx, "")
	if err != nil {
		return false, err
	}
	others := false
	for _, name := range names {
		if strings.HasPrefix(name, protocol.EmbeddedName) {
			continue
		}
		var m mark
		e, err := marks.Get(ctx, name)
		if err != nil && !errors.Is(err, pipeline.ErrNotFound) {
			return false, err
		}
		if err == nil && json.Unmarshal(e.Value, &m) == nil {
			others = others || m.Entry
		}
	}
	return others, nil
}

// reclaimQueue refuses each delivery of the queue that is not acknowledged, in the name of who had it. The server looks
// at the number of the message alone, where the number of the delivery is one that it has given away.
func (r *reclaimer) reclaimQueue(ctx context.Context, s jetstream.Stream, consumer string) error {
	c, err := s.Consumer(ctx, consumer)
	if err != nil {
		return err
	}
	info := c.CachedInfo()
	if info.NumAckPending == 0 {
		return nil
	}
	count := 0
	for seq := info.AckFloor.Stream + 1; seq <= info.Delivered.Stream; {
		m, err := s.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(info.Config.FilterSubject))
		if err != nil {
			return err
		}
		if m.Sequence > info.Delivered.Stream {
			break
		}
		refused := fmt.Sprintf("$JS.ACK.%s.%s.1.%d.%d.0.0", jet.CallsStream, consumer, m.Sequence, info.Delivered.Consumer)
		if err := r.nc.Publish(refused, []byte("-NAK")); err != nil {
			return err
		}
		seq, count = m.Sequence+1, count+1
	}
	r.log.Info("calls of the process before go on", "queue", consumer, "calls", count)
	return nil
}
