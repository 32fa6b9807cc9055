package spine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// Headers of stored calls and of what owners send to accepting processes. Those that name the call are copies of line
// 1, for people and for whoever must not open the body.
const (
	hdrWire     = "Shallot-Wire"
	hdrCall     = "Shallot-Call"
	hdrKind     = "Shallot-Kind"
	hdrTenant   = "Shallot-Tenant"
	hdrGen      = "Shallot-Generation"
	hdrDeadline = "Shallot-Deadline"
	hdrReturn   = "Shallot-Return"
	hdrAgain    = "Shallot-Again" // this may be a second copy, or follow another generation
	hdrTrace    = "traceparent"
	hdrMsgID    = "Nats-Msg-Id"
	hdrReason   = "Shallot-Dead-Reason"
	hdrDelta    = "Shallot-Delta"
	hdrDegraded = "Shallot-Degraded"
	hdrHeld     = "Shallot-Held"
	hdrEnd      = "Shallot-End"
)

// bodies writes calls for stores and reads them back. Bodies above the limit lie in the object store, under the hash of
// tenant and bytes, so that the same body is stored once and no tenant can name another's. It is safe for concurrent use.
type bodies struct {
	objects jetstream.ObjectStore
	limit   int // in bytes
	payload int // the server's max_payload
}

// objectTime bounds one try of the object store: a request to a server that dies is never answered.
const objectTime = 10 * time.Second

// encode writes a call; its large bodies are stored first. The error is a store_unavailable fault where they are not.
func (b bodies) encode(ctx context.Context, c *messages.Call) ([]byte, error) {
	for limit := b.limit; ; limit /= 2 {
		if err := c.Spill(limit, func(raw []byte) (string, error) { return b.put(ctx, c.Tenant, raw) }); err != nil {
			return nil, messages.NewFault(messages.StoreUnavailable, "the object store for large bodies: %v", err)
		}
		data, err := c.Marshal()
		// Several bodies under the limit may still be too much together; the rest of max_payload is for headers.
		if err != nil || len(data) <= b.payload*3/4 || limit < 1024 {
			return data, err
		}
	}
}

// decode reads a call with its large bodies.
func (b bodies) decode(ctx context.Context, data []byte) (*messages.Call, error) {
	c, err := messages.Unmarshal(data)
	if err != nil {
		return nil, err
	}
	for _, ref := range c.Refs() {
		raw, err := b.get(ctx, ref)
		if err != nil {
			return nil, messages.NewFault(messages.StoreUnavailable, "the object store for large bodies: get %s: %v", ref, err)
		}
		if !strings.HasSuffix(ref, digest(c.Tenant, raw)) {
			return nil, messages.NewFault(messages.Internal,
				"the object store returned other bytes than were stored under %s", ref)
		}
		c.Fill(ref, raw)
	}
	return c, nil
}

func (b bodies) put(ctx context.Context, tenant string, raw []byte) (string, error) {
	ref := messages.Token(tenant) + "/" + digest(tenant, raw)
	return ref, b.putAs(ctx, ref, raw)
}

func (b bodies) putAs(ctx context.Context, ref string, raw []byte) error {
	return patiently(ctx, func(ctx context.Context) error {
		_, err := b.objects.Put(ctx, jetstream.ObjectMeta{Name: ref}, bytes.NewReader(raw))
		return err
	})
}

func (b bodies) get(ctx context.Context, ref string) (raw []byte, err error) {
	err = patiently(ctx, func(ctx context.Context) error {
		raw, err = b.objects.GetBytes(ctx, ref)
		if errors.Is(err, jetstream.ErrObjectNotFound) {
			return pipeline.ErrNotFound
		}
		return err
	})
	return raw, err
}

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

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func digest(tenant string, raw []byte) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d:%s", len(tenant), tenant)
	h.Write(raw)
	return hex.EncodeToString(h.Sum(nil))
}

// callMessage is a stored call as a message of the work queue. Its message id is its call and its generation.
func callMessage(subject string, c *messages.Call, wire []byte) *nats.Msg {
	h := nats.Header{
		hdrWire:     {strconv.Itoa(messages.HopVersion)},
		hdrCall:     {c.ID},
		hdrKind:     {string(c.Kind)},
		hdrTenant:   {plainValue(c.Tenant)},
		hdrGen:      {strconv.FormatUint(c.Generation, 10)},
		hdrDeadline: {c.Deadline.UTC().Format(time.RFC3339Nano)},
		hdrMsgID:    {messageID(c.ID, c.Generation)},
	}
	if c.Return.Inbox != "" {
		h[hdrReturn] = []string{c.Return.Inbox}
	}
	if c.Trace.Parent != "" {
		h[hdrTrace] = []string{c.Trace.Parent}
	}
	return &nats.Msg{Subject: subject, Header: h, Data: wire}
}

func messageID(call string, generation uint64) string {
	return call + "." + strconv.FormatUint(generation, 10)
}

// plainValue keeps a header value readable and on one line.
func plainValue(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, s)
}
