package jet

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

// tryTime bounds one request to the server. A request on its way to a server that dies is never answered, whatever
// the caller's time allows; so it is given up and, where that cannot change what it means, made again.
const tryTime = 3 * time.Second

// ErrNoAnswer says that the server did not answer in time. It is no deadline of the caller's.
var ErrNoAnswer = errors.New("the server did not answer in time")

// retryRequest runs a request, again and again until it is answered, if it may be made twice.
func retryRequest(ctx context.Context, twice bool, request func(ctx context.Context) error) error {
	for {
		try, cancel := context.WithTimeout(ctx, tryTime)
		err := request(try)
		over := try.Err() != nil
		cancel()
		switch {
		case err == nil || ctx.Err() != nil || !over && !errors.Is(err, nats.ErrNoResponders):
			return err
		case !twice:
			return ErrNoAnswer
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// Get returns the entry, or pipeline.ErrNotFound. On a cluster it may be served by a follower and be a little old, so
// decide by a conditional Put, never by a read alone.
func (b *Bucket) Get(ctx context.Context, key string) (pipeline.StoreEntry, error) {
	var e jetstream.KeyValueEntry
	err := retryRequest(ctx, true, func(ctx context.Context) (err error) { e, err = b.kv.Get(ctx, key); return err })
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return pipeline.StoreEntry{}, pipeline.ErrNotFound
	}
	if err != nil {
		return pipeline.StoreEntry{}, fmt.Errorf("%s: get %s: %w", b.kv.Bucket(), key, Said(err))
	}
	return pipeline.StoreEntry{Value: e.Value(), Revision: e.Revision(), Created: e.Created()}, nil
}

// Put writes under the condition. A ttl is rounded up to whole seconds, the server's grain; it is set by a raw publish
// because kv.Update would clear it. A conditional write that was not answered may have happened: whoever
// makes it reads what is there.
func (b *Bucket) Put(ctx context.Context, key string, value []byte, ttl time.Duration,
	when pipeline.Condition) (rev uint64, err error) {
	if when.Absent() {
		var opts []jetstream.KVCreateOpt
		if ttl > 0 {
			opts = append(opts, jetstream.KeyTTL(wholeSeconds(ttl)))
		}
		err = retryRequest(ctx, false, func(ctx context.Context) (err error) {
			rev, err = b.kv.Create(ctx, key, value, opts...)
			return err
		})
		return rev, b.wrap(key, err, pipeline.ErrExists)
	}
	var opts []jetstream.PublishOpt
	if ttl > 0 {
		opts = append(opts, jetstream.WithMsgTTL(wholeSeconds(ttl)))
	}
	r := when.Revision()
	if r != 0 {
		opts = append(opts, jetstream.WithExpectLastSequencePerSubject(r))
	}
	err = retryRequest(ctx, r == 0, func(ctx context.Context) error {
		ack, err := b.js.PublishMsg(ctx, &nats.Msg{Subject: "$KV." + b.kv.Bucket() + "." + key, Data: value}, opts...)
		if err == nil {
			rev = ack.Sequence
		}
		return err
	})
	return rev, b.wrap(key, err, pipeline.ErrChanged)
}

func (b *Bucket) wrap(key string, err, conflict error) error {
	if err == nil {
		return nil
	}
	var api *jetstream.APIError
	if errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &api) &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == 10164) { // of replicated streams
		return conflict
	}
	return fmt.Errorf("%s: put %s: %w", b.kv.Bucket(), key, Said(err))
}

// Delete removes the key and its history; one that is not there is no error.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	err := retryRequest(ctx, true, func(ctx context.Context) error { return b.kv.Purge(ctx, key) })
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return fmt.Errorf("%s: delete %s: %w", b.kv.Bucket(), key, Said(err))
	}
	return nil
}

// Keys lists the keys that begin with the prefix. Whoever was there all the time is in it, however often it was written
// meanwhile; one that came or went meanwhile may be.
func (b *Bucket) Keys(ctx context.Context, prefix string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*tryTime)
	defer cancel()
	filter := ">"
	if i := strings.LastIndexByte(prefix, '.'); i > 0 {
		filter = prefix[:i] + ".>"
	}
	there, err := b.listed(ctx, filter)
	if err == nil {
		err = b.addMissed(ctx, filter, there)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: keys: %w", b.kv.Bucket(), Said(err))
	}
	var out []string
	for k, is := range there {
		if is && strings.HasPrefix(k, prefix) {
			out = append(out, k)
		}
	}
	return out, nil
}

// listed says of the keys of a pattern whether each is there, or was removed. A key that is written while the server
// lists may be left out: its old place is gone, and its new one is behind the end of the list.
func (b *Bucket) listed(ctx context.Context, filter string) (map[string]bool, error) {
	w, err := b.kv.Watch(ctx, filter, jetstream.MetaOnly())
	if err != nil {
		return nil, err
	}
	defer func() { _ = w.Stop() }()
	there := map[string]bool{}
	for {
		select {
		case e := <-w.Updates():
			if e == nil {
				return there, ctx.Err()
			}
			there[e.Key()] = e.Operation() == jetstream.KeyValuePut
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// addMissed looks up what listed has left out: the names of all subjects come from one moment, so no key is missing
// there.
func (b *Bucket) addMissed(ctx context.Context, filter string, there map[string]bool) error {
	s, err := b.js.Stream(ctx, b.stream())
	if err != nil {
		return err
	}
	prefix := "$KV." + b.kv.Bucket() + "."
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(prefix+filter))
	if err != nil {
		return err
	}
	for subject := range info.State.Subjects {
		key := strings.TrimPrefix(subject, prefix)
		if _, ok := there[key]; ok {
			continue
		}
		if _, err := b.Get(ctx, key); err == nil {
			there[key] = true
		} else if !errors.Is(err, pipeline.ErrNotFound) {
			return err
		}
	}
	return nil
}

// PutForGood writes over the revision an entry that the bucket's own time does not end.
func (b *Bucket) PutForGood(ctx context.Context, key string, value []byte, rev uint64) error {
	m := &nats.Msg{Subject: "$KV." + b.kv.Bucket() + "." + key, Data: value,
		Header: nats.Header{jetstream.MsgTTLHeader: {"never"}}}
	err := retryRequest(ctx, false, func(ctx context.Context) error {
		_, err := b.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(rev))
		return err
	})
	return b.wrap(key, err, pipeline.ErrChanged)
}

// Clear removes a key at the revision and everything below it, and leaves nothing behind that stays. What has changed
// since, or is gone, is no error.
func (b *Bucket) Clear(ctx context.Context, key string, rev uint64) error {
	err := retryRequest(ctx, true, func(ctx context.Context) error {
		return b.kv.Purge(ctx, key, jetstream.LastRevision(rev), jetstream.PurgeTTL(time.Minute))
	})
	if err := b.wrap(key, err, pipeline.ErrChanged); err != nil && !errors.Is(err, pipeline.ErrChanged) &&
		!errors.Is(err, jetstream.ErrKeyNotFound) {
		return err
	}
	below, err := b.Keys(ctx, key+".")
	for _, k := range below {
		err = errors.Join(err, retryRequest(ctx, true, func(ctx context.Context) error {
			return b.kv.Purge(ctx, k, jetstream.PurgeTTL(time.Minute))
		}))
	}
	return err
}

// Watch follows the keys of a pattern, with the entries that are there first. The caller stops the watcher.
func (b *Bucket) Watch(ctx context.Context, keys string) (jetstream.KeyWatcher, error) {
	return b.kv.Watch(ctx, keys)
}

func wholeSeconds(d time.Duration) time.Duration {
	return max((d + time.Second - 1).Truncate(time.Second), time.Second)
}
