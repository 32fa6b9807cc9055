package responses

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// partSize is what one entry of the store holds at most: NATS takes messages of 1 MiB.
const partSize = 512 << 10

// docs keeps documents of any size in a store of small values. They are packed, and a large one lies in parts under
// keys of its own, which are there before the entry that names them. How long they last is the matter of the store.
type docs struct {
	store pipeline.Store
	room  *room
}

// head is the entry of a document: its bytes, or where its parts are.
type head struct {
	Data  []byte `json:"data,omitempty"`
	Parts int    `json:"parts,omitempty"`
	Name  string `json:"name,omitempty"` // of the parts
}

func (h head) part(key string, i int) string { return fmt.Sprintf("%s.part.%s.%d", key, h.Name, i) }

// get reads a document into v and returns its revision. The error is pipeline.ErrNotFound if there is none.
func (d docs) get(ctx context.Context, key string, v any) (uint64, error) {
	e, err := d.store.Get(ctx, key)
	if err != nil {
		return 0, err
	}
	var h head
	if err := json.Unmarshal(e.Value, &h); err != nil {
		return 0, fmt.Errorf("%s: %w", key, err)
	}
	for i := range h.Parts {
		p, err := d.store.Get(ctx, h.part(key, i))
		if err != nil {
			return 0, err
		}
		h.Data = append(h.Data, p.Value...)
	}
	z, err := gzip.NewReader(bytes.NewReader(h.Data))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", key, err)
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", key, err)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return 0, fmt.Errorf("%s: %w", key, err)
	}
	return e.Revision, nil
}

// put writes a document under the condition, as pipeline.Store does.
func (d docs) put(ctx context.Context, key string, v any, when pipeline.Condition) error {
	return d.putFor(ctx, key, v, when, 0)
}

// putFor is put for a document that goes after a time; 0: when the store says.
func (d docs) putFor(ctx context.Context, key string, v any, when pipeline.Condition, ttl time.Duration) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(raw) // a buffer takes everything
	_ = z.Close()
	d.room.wrote(packed.Len())
	h, old := head{Data: packed.Bytes()}, head{}
	if !when.Absent() {
		old = d.headOf(ctx, key)
	}
	if len(h.Data) > partSize {
		data := h.Data
		h = head{Name: messages.NewID()}
		for ; len(data) > 0; h.Parts++ {
			n := min(len(data), partSize)
			if _, err := d.store.Put(ctx, h.part(key, h.Parts), data[:n], ttl, pipeline.Always()); err != nil {
				return err
			}
			data = data[n:]
		}
	}
	raw, err = json.Marshal(h)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	if _, err = d.store.Put(ctx, key, raw, ttl, when); err != nil {
		d.dropParts(ctx, key, h)
		return err
	}
	d.dropParts(ctx, key, old)
	return nil
}

func (d docs) headOf(ctx context.Context, key string) (h head) {
	if e, err := d.store.Get(ctx, key); err == nil {
		_ = json.Unmarshal(e.Value, &h) // one that cannot be read has no parts that could be found
	}
	return h
}

// dropParts removes parts that nothing names any more. Those that stay behind end with their time.
func (d docs) dropParts(ctx context.Context, key string, h head) {
	for i := range h.Parts {
		_ = d.store.Delete(ctx, h.part(key, i))
	}
}

// drop removes a document and reports whether it was there.
func (d docs) drop(ctx context.Context, key string) (bool, error) {
	e, err := d.store.Get(ctx, key)
	if errors.Is(err, pipeline.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var h head
	_ = json.Unmarshal(e.Value, &h)
	if err := d.store.Delete(ctx, key); err != nil {
		return false, err
	}
	d.dropParts(ctx, key, h)
	return true, nil
}
