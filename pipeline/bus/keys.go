package bus

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// keys holds what idempotency keys mean. A record is created for the call that came first and deleted only by the
// revision that names that call.
type keys struct {
	records records
	decide  decide
	store   *jet.Bucket
	log     *slog.Logger
}

// keyRecord is what a key means: the call, and the fingerprint of what was asked.
type keyRecord struct {
	Call  string    `json:"call"`
	Print uint64    `json:"fingerprint,string"`
	Since time.Time `json:"since"`
}

// keyOf is where the key of a call is recorded: it is the caller's own, for one kind and tool.
func keyOf(c *messages.Call) string {
	return messages.Key(c.Tenant, string(c.Kind)+"/"+c.Tool, c.IdempotencyKey)
}

// printOf is the fingerprint of a call as the protocol compares it.
func printOf(c *messages.Call) uint64 {
	sum := sha256.Sum256([]byte(c.Fingerprint))
	return binary.BigEndian.Uint64(sum[:])
}

// put creates the record of a key. If there is one, what it says goes back.
func (k *keys) put(e protocol.Effect) {
	rec := keyRecord{Call: e.Call, Print: e.Nonce, Since: time.Now().UTC()}
	k.records.create(jet.IdempotencyBucket, e.Group, rawjson.Encode(rec), func(f found) {
		st := protocol.Stored{Result: f.result, Record: protocol.Record{Rev: f.rev}}
		if f.result == protocol.Exists {
			var was keyRecord
			if json.Unmarshal(f.data, &was) != nil || was.Call == "" {
				st.Result = protocol.Unclear
			}
			st.Record.Call, st.Record.Print = was.Call, was.Print
		}
		k.decide.stored(e, st)
	})
}

// free deletes the record of a key if it still names the call. Without an answer it is tried again so often; of a call
// that has not ended it must not be: by then somebody with the same key may have put it into the queue. then is called
// when it is done, or has failed for the first time.
func (k *keys) free(key, call string, tries int, then func()) {
	again := func(f found) {
		then()
		if tries > 0 {
			time.AfterFunc(unanswered, func() { k.free(key, call, tries-1, func() {}) })
			return
		}
		k.log.Warn("the idempotency key of a call was not freed", "call", call, "why", f.why)
	}
	k.records.get(jet.IdempotencyBucket, key, func(f found) {
		var was keyRecord
		switch {
		case f.result == protocol.Unclear:
			again(f)
			return
		case f.result != protocol.OK || json.Unmarshal(f.data, &was) != nil || was.Call != call:
			then()
			return
		}
		k.records.remove(jet.IdempotencyBucket, key, f.rev, func(f found) {
			if f.result == protocol.Unclear || f.result == protocol.No {
				again(f)
				return
			}
			then()
		})
	})
}

// release frees the key of a call that ended in a fault which may be tried again as it is, or in something that stands
// in for a tool's own result: its caller tries again, and must not be given the same for a day. An unknown outcome
// keeps its key, and so does the reply of a standby model, which is a reply and is not bought twice.
//
// then is called when that is done or failed: a caller who hears the end finds the key free.
func (k *keys) release(c *messages.Call, then func()) {
	_, degraded := c.Notes[messages.NoteDegraded]
	again := c.Fault != nil && c.Fault.Retryable() || c.Fault == nil && degraded && c.Kind == messages.Tool
	if c.IdempotencyKey == "" || !again {
		then()
		return
	}
	k.free(keyOf(c), c.ID, repeats, then)
}

// keep lets the key of a call outlast its hold, or end in its time again.
func (k *keys) keep(ctx context.Context, c *messages.Call, held bool) error {
	if c.IdempotencyKey == "" {
		return nil
	}
	key := keyOf(c)
	for {
		e, err := k.store.Get(ctx, key)
		var rec keyRecord
		switch {
		case errors.Is(err, pipeline.ErrNotFound):
			return nil
		case err != nil:
			return err
		case json.Unmarshal(e.Value, &rec) != nil || rec.Call != c.ID:
			return nil
		}
		if held {
			err = k.store.PutForGood(ctx, key, e.Value, e.Revision)
		} else {
			_, err = k.store.Put(ctx, key, e.Value, 0, pipeline.IfRevision(e.Revision))
		}
		if !errors.Is(err, pipeline.ErrChanged) && !errors.Is(err, jet.ErrNoAnswer) || ctx.Err() != nil {
			return err
		}
		_ = wait(ctx, 20*time.Millisecond)
	}
}

// mismatch is the fault of a request whose key was used for another one; it says when, and for which call.
func (k *keys) mismatch(ctx context.Context, c *messages.Call) *messages.Fault {
	since, call := "", ""
	if e, err := k.store.Get(ctx, keyOf(c)); err == nil {
		var was keyRecord
		if json.Unmarshal(e.Value, &was) == nil && was.Call != "" {
			since, call = fmt.Sprintf(" %s ago", time.Since(was.Since).Round(time.Second)), fmt.Sprintf(" (call %s)", was.Call)
		}
	}
	return messages.NewFault(messages.IdempotencyMismatch, "the idempotency key was used%s for another request%s; "+
		"use a new key for a new request", since, call).At("Idempotency-Key").From("entry")
}
