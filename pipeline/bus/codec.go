package bus

import (
	"bytes"
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
)

// codec turns calls into NATS messages and back. Bodies above the limit become claim checks in the object store; the
// stages never see it.
type codec struct {
	objects jetstream.ObjectStore
	limit   int
	payload int // the server's max_payload
	cache   bodyCache
}

// encode writes the call with the headers that a person reads in tooling. The headers are copies for reading; line 1
// is the truth.
func (e *codec) encode(ctx context.Context, c *messages.Call) (*nats.Msg, error) {
	var data []byte
	for limit := e.limit; ; limit /= 2 {
		err := c.Spill(limit, func(raw []byte) (string, error) { return e.store(ctx, c.Tenant, raw) })
		if err != nil {
			return nil, messages.NewFault(messages.StoreUnavailable, "the object store for large bodies: %v", err)
		}
		if data, err = c.Marshal(); err != nil {
			return nil, err
		}
		// Several bodies under the limit may still be too much together; the rest of max_payload is for headers.
		if len(data) <= e.payload*3/4 || limit < 1024 {
			break
		}
	}
	return &nats.Msg{Data: data, Header: e.header(c)}, nil
}

func (e *codec) header(c *messages.Call) nats.Header {
	h := nats.Header{
		hdrWire:     {strconv.Itoa(messages.WireVersion)},
		hdrCall:     {c.ID},
		hdrKind:     {string(c.Kind)},
		hdrTenant:   {headerValue(c.Tenant)},
		hdrGen:      {strconv.FormatUint(c.Generation, 10)},
		hdrDeadline: {c.Deadline.UTC().Format(time.RFC3339Nano)},
	}
	if stage, phase := c.Slip.Stage(); stage != "" {
		h[hdrStage], h[hdrPhase] = []string{stage}, []string{string(phase)}
		h[hdrAttempt] = []string{strconv.Itoa(c.Attempt())}
	}
	opt := func(key, v string) {
		if v != "" {
			h[key] = []string{headerValue(v)}
		}
	}
	opt(hdrSession, c.Session)
	opt(hdrReturn, c.Return.Inbox)
	opt(hdrPath, strings.Join(tail(c.Slip.Path, 40), ","))
	opt(hdrTrace, c.Trace.Parent)
	opt(hdrState, c.Trace.State)
	return h
}

func tail(s []string, n int) []string {
	if len(s) > n {
		return s[len(s)-n:]
	}
	return s
}

// headerValue keeps a value readable and single-lined; NATS would turn CR and LF into blanks.
func headerValue(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, s)
}

// decode reads a call. Bodies behind claim checks are not fetched; fill does that.
func (e *codec) decode(data []byte) (*messages.Call, error) { return messages.Unmarshal(data) }

// fill fetches the bodies behind the call's claim checks.
func (e *codec) fill(ctx context.Context, c *messages.Call) error {
	for _, ref := range c.Refs() {
		raw, ok := e.cache.get(ref)
		if !ok {
			var err error
			if raw, err = e.fetch(ctx, ref); err != nil {
				return messages.NewFault(messages.StoreUnavailable, "the object store for large bodies: get %s: %v", ref, err)
			}
			if !strings.HasSuffix(ref, digest(c.Tenant, raw)) {
				return messages.NewFault(messages.Internal, "the object store returned other bytes than were stored under %s", ref)
			}
			e.cache.put(ref, raw)
		}
		c.Fill(ref, raw)
	}
	return nil
}

// objectTime bounds one try of the object store, for the reason of tryTime; a large body takes its time.
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
		pause(ctx, 100*time.Millisecond)
	}
}

func (e *codec) fetch(ctx context.Context, ref string) (raw []byte, err error) {
	err = patiently(ctx, func(ctx context.Context) error {
		raw, err = e.objects.GetBytes(ctx, ref)
		return err
	})
	return raw, err
}

// store puts a body under the hash of tenant and bytes, so that the same body is stored once and no tenant can name
// another's.
func (e *codec) store(ctx context.Context, tenant string, raw []byte) (string, error) {
	ref := messages.Token(tenant) + "/" + digest(tenant, raw)
	if _, ok := e.cache.get(ref); ok {
		return ref, nil
	}
	return ref, e.put(ctx, ref, raw)
}

func (e *codec) put(ctx context.Context, ref string, raw []byte) error {
	if err := patiently(ctx, func(ctx context.Context) error {
		_, err := e.objects.Put(ctx, jetstream.ObjectMeta{Name: ref}, bytes.NewReader(raw))
		return err
	}); err != nil {
		return fmt.Errorf("put %s: %w", ref, err)
	}
	e.cache.put(ref, raw)
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
	raw []byte
	at  *list.Element
}

const bodyCacheBytes = 64 << 20

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
