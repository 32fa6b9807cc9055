package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// A question may wait for days, longer than large bodies, idempotency keys and results are kept. While a call is
// parked, its large bodies lie beside its record, and its idempotency key does not end.

// shelfPiece is how much of a large body goes into one entry.
const shelfPiece = 512 << 10

func shelfKey(c *messages.Call, ref string, piece int) string {
	return messages.Key(c.Tenant, c.ID) + ".body." + messages.Token(ref) + "." + strconv.Itoa(piece)
}

// shelve copies the large bodies of a call beside its record.
func (n *Node) shelve(ctx context.Context, wire []byte) error {
	c, err := n.codec.decode(wire)
	if err != nil {
		return err
	}
	for _, ref := range c.Refs() {
		raw, ok := n.codec.cache.get(ref)
		if !ok {
			var err error
			if raw, err = n.codec.fetch(ctx, ref); err != nil {
				return fmt.Errorf("large body %s: %w", ref, err)
			}
		}
		for i := 0; i*shelfPiece < len(raw); i++ {
			piece := raw[i*shelfPiece : min((i+1)*shelfPiece, len(raw))]
			if _, err := n.approvals.Put(ctx, shelfKey(c, ref, i), piece, 0, pipeline.Always()); err != nil {
				return err
			}
		}
	}
	return nil
}

// unshelve puts the large bodies of a call back where every process looks for them.
func (n *Node) unshelve(ctx context.Context, c *messages.Call) error {
	for _, ref := range c.Refs() {
		var raw []byte
		for i := 0; ; i++ {
			e, err := n.approvals.Get(ctx, shelfKey(c, ref, i))
			if errors.Is(err, pipeline.ErrNotFound) {
				break
			}
			if err != nil {
				return err
			}
			raw = append(raw, e.Value...)
		}
		if len(raw) == 0 {
			continue // cleared away by whoever carried the decision out before
		}
		if err := n.codec.put(ctx, ref, raw); err != nil {
			return err
		}
	}
	return nil
}

// keepKey lets the idempotency key of a call outlast its hold, or end in its time again.
func (n *Node) keepKey(ctx context.Context, c *messages.Call, held bool) error {
	if c.IdempotencyKey == "" {
		return nil
	}
	key := idempotencyKey(c)
	for {
		e, err := n.idempotency.Get(ctx, key)
		var rec claimRecord
		switch {
		case errors.Is(err, pipeline.ErrNotFound):
			return nil
		case err != nil:
			return err
		case json.Unmarshal(e.Value, &rec) != nil || rec.Call != c.ID:
			return nil
		}
		rec.Stored = true
		if held {
			err = n.idempotency.PutForGood(ctx, key, rawjson.Encode(rec), e.Revision)
		} else {
			_, err = n.idempotency.Put(ctx, key, rawjson.Encode(rec), 0, pipeline.IfRevision(e.Revision))
		}
		if !errors.Is(err, pipeline.ErrChanged) && !errors.Is(err, pipeline.ErrExists) || ctx.Err() != nil {
			return err
		}
		pause(ctx, 20*time.Millisecond)
	}
}
