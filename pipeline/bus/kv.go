package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/pipeline"
)

// Bucket is a pipeline.Store on a JetStream KV bucket. Keys are built with messages.Key.
type Bucket struct {
	js jetstream.JetStream
	kv jetstream.KeyValue
}

var _ pipeline.Store = (*Bucket)(nil)

// OpenBucket binds to a bucket that provisioning has made.
func OpenBucket(ctx context.Context, js jetstream.JetStream, name string) (*Bucket, error) {
	kv, err := js.KeyValue(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", name, err)
	}
	return &Bucket{js: js, kv: kv}, nil
}

// opTime bounds one operation. A server that dies takes requests with it, and nobody answers those: an operation that
// waited for its caller's whole time would hang for minutes while the server has long been back.
const opTime = 3 * time.Second

// Get returns the entry, or pipeline.ErrNotFound. On a cluster it may be served by a follower and be a little old, so
// decide by a conditional Put, never by a read alone.
func (b *Bucket) Get(ctx context.Context, key string) (pipeline.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, opTime)
	defer cancel()
	e, err := b.kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return pipeline.Entry{}, pipeline.ErrNotFound
	}
	if err != nil {
		return pipeline.Entry{}, fmt.Errorf("%s: get %s: %w", b.kv.Bucket(), key, err)
	}
	return pipeline.Entry{Value: e.Value(), Revision: e.Revision(), Created: e.Created()}, nil
}

// Put writes under the condition. A ttl is rounded up to whole seconds, the server's grain; it is set by a raw publish
// because kv.Update would clear it (nats.md D 8).
func (b *Bucket) Put(ctx context.Context, key string, value []byte, ttl time.Duration, when pipeline.Condition) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, opTime)
	defer cancel()
	if when.Absent() {
		var opts []jetstream.KVCreateOpt
		if ttl > 0 {
			opts = append(opts, jetstream.KeyTTL(wholeSeconds(ttl)))
		}
		rev, err := b.kv.Create(ctx, key, value, opts...)
		return rev, b.wrap(key, err, pipeline.ErrExists)
	}
	var opts []jetstream.PublishOpt
	if ttl > 0 {
		opts = append(opts, jetstream.WithMsgTTL(wholeSeconds(ttl)))
	}
	if r := when.Revision(); r != 0 {
		opts = append(opts, jetstream.WithExpectLastSequencePerSubject(r))
	}
	ack, err := b.js.PublishMsg(ctx, &nats.Msg{Subject: "$KV." + b.kv.Bucket() + "." + key, Data: value}, opts...)
	if err != nil {
		return 0, b.wrap(key, err, pipeline.ErrChanged)
	}
	return ack.Sequence, nil
}

func (b *Bucket) wrap(key string, err, conflict error) error {
	if err == nil {
		return nil
	}
	var api *jetstream.APIError
	if errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &api) &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == 10164) { // 10164: the same on replicated streams
		return conflict
	}
	return fmt.Errorf("%s: put %s: %w", b.kv.Bucket(), key, err)
}

// Delete removes the key and its history; one that is not there is no error.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, opTime)
	defer cancel()
	if err := b.kv.Purge(ctx, key); err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return fmt.Errorf("%s: delete %s: %w", b.kv.Bucket(), key, err)
	}
	return nil
}

// Keys lists the keys that begin with the prefix.
func (b *Bucket) Keys(ctx context.Context, prefix string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*opTime)
	defer cancel()
	filter := ">"
	if i := strings.LastIndexByte(prefix, '.'); i > 0 {
		filter = prefix[:i] + ".>"
	}
	l, err := b.kv.ListKeysFiltered(ctx, filter)
	if errors.Is(err, jetstream.ErrNoKeysFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: keys: %w", b.kv.Bucket(), err)
	}
	var out []string
	for k := range l.Keys() {
		if strings.HasPrefix(k, prefix) {
			out = append(out, k)
		}
	}
	return out, nil
}

func wholeSeconds(d time.Duration) time.Duration {
	return max((d + time.Second - 1).Truncate(time.Second), time.Second)
}
