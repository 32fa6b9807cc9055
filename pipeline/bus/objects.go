package bus

import (
	"bytes"
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// objectTime bounds one try of the object store, because a request on its way to a server that dies is never answered.
const objectTime = 10 * time.Second

// patiently tries again while the store does not answer and the time of ctx is not over.
func patiently(ctx context.Context, do func(ctx context.Context) error) error {
	for {
		try, cancel := context.WithTimeout(ctx, objectTime)
		err := do(try)
		silent := try.Err() != nil || errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders)
		cancel()
		if err == nil || ctx.Err() != nil || !silent {
			return err
		}
		_ = wait(ctx, 100*time.Millisecond)
	}
}

// fetchBytes bounds the bodies that are on their way from the object store at once. A server ends a connection for
// which more than its max_pending waits, 64 MiB unless it is told otherwise; answers and streams come by the same one.
const fetchBytes = 16 << 20

// fetch reads a body in its turn: those that are being read are fetchBytes together at most, or one alone.
func (e *codec) fetch(ctx context.Context, ref string) (raw []byte, err error) {
	var info *jetstream.ObjectInfo
	if err = patiently(ctx, func(ctx context.Context) error {
		info, err = e.objects.GetInfo(ctx, ref)
		return err
	}); err != nil {
		return nil, err
	}
	room := int64(min(info.Size, fetchBytes))
	if err := e.fetching.Acquire(ctx, room); err != nil {
		return nil, fmt.Errorf("it waits for others: %w", err)
	}
	defer e.fetching.Release(room)
	err = patiently(ctx, func(ctx context.Context) error {
		raw, err = e.read(ctx, ref, info.Size)
		return err
	})
	return raw, err
}

// read reads an object of the given size into memory that is no larger.
func (e *codec) read(ctx context.Context, ref string, size uint64) ([]byte, error) {
	r, err := e.objects.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var b bytes.Buffer
	b.Grow(int(size) + bytes.MinRead)
	_, err = b.ReadFrom(r)
	return b.Bytes(), err
}

// store puts a body under the hash of tenant and bytes, so that the same body is stored once and no tenant can name
// another's.
func (e *codec) store(ctx context.Context, tenant string, raw []byte) (string, error) {
	ref := messages.Token(tenant) + "/" + digest(tenant, raw)
	if e.cache.stored(ref) {
		return ref, nil
	}
	return ref, e.put(ctx, ref, raw)
}

// remove deletes objects that nobody asks for any more. What it cannot delete goes with its age.
func (e *codec) remove(ctx context.Context, refs []string) error {
	var all error
	for _, ref := range refs {
		e.cache.drop(ref)
		err := patiently(ctx, func(ctx context.Context) error { return e.objects.Delete(ctx, ref) })
		if err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
			all = errors.Join(all, fmt.Errorf("delete %s: %w", ref, err))
		}
	}
	return all
}

// put stores a body that will be asked for again.
func (e *codec) put(ctx context.Context, ref string, raw []byte) error {
	if err := e.place(ctx, ref, raw); err != nil {
		return err
	}
	e.cache.put(ref, raw)
	e.cache.note(ref, time.Now())
	return nil
}

// place stores a body, and keeps nothing of it here.
func (e *codec) place(ctx context.Context, ref string, raw []byte) error {
	if err := patiently(ctx, func(ctx context.Context) error {
		_, err := e.objects.Put(ctx, jetstream.ObjectMeta{Name: ref}, jet.Body(raw))
		return err
	}); err != nil {
		return fmt.Errorf("put %s: %w", ref, err)
	}
	return nil
}

func digest(tenant string, raw []byte) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d:%s", len(tenant), tenant)
	h.Write(raw)
	return hex.EncodeToString(h.Sum(nil))
}

// bodyCache keeps the large bodies that this process has seen lately, so that consecutive stages of one process fetch
// a body once. It is bounded by bytes.
type bodyCache struct {
	mu    sync.Mutex
	size  int
	order list.List // of ref, newest in front
	items map[string]*cachedBody
}

type cachedBody struct {
	raw    []byte
	at     *list.Element
	stored time.Time // by this process; zero: it was only read
}

const bodyCacheBytes = 64 << 20

// storedAnew is the age from which on a body that this process has stored is stored again: objects live an hour longer
// than the records that name them.
const storedAnew = 30 * time.Minute

// stored reports whether this process has stored the body lately.
func (b *bodyCache) stored(ref string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, ok := b.items[ref]
	return ok && time.Since(i.stored) < storedAnew
}

// note notes when a body was stored, as long as it is kept.
func (b *bodyCache) note(ref string, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i, ok := b.items[ref]; ok {
		i.stored = at
	}
}

func (b *bodyCache) drop(ref string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i, ok := b.items[ref]; ok {
		b.size -= len(i.raw)
		b.order.Remove(i.at)
		delete(b.items, ref)
	}
}

func (b *bodyCache) get(ref string) ([]byte, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, ok := b.items[ref]
	if !ok {
		return nil, false
	}
	b.order.MoveToFront(i.at)
	return i.raw, true
}

func (b *bodyCache) put(ref string, raw []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.items[ref]; ok {
		return
	}
	if b.items == nil {
		b.items = map[string]*cachedBody{}
	}
	b.items[ref] = &cachedBody{raw: raw, at: b.order.PushFront(ref)}
	b.size += len(raw)
	for b.size > bodyCacheBytes && b.order.Len() > 1 {
		old := b.order.Back()
		name, _ := old.Value.(string)
		b.size -= len(b.items[name].raw)
		delete(b.items, name)
		b.order.Remove(old)
	}
}
