package quota

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/shallot-nats/shallot/pipeline"
)

// StoreBound keeps the number of entries under a prefix of a store at or below max. The store is only listed when the
// entries seen at the last listing and those written here since then could have reached max, and then room is made
// for a batch of writes. What goes are the oldest of a random sample, of all entries where there are few. Several
// processes that write at once can pass the bound by what they write between two listings of each.
type StoreBound struct {
	prefix string
	max    int

	turn  chan struct{} // holds one token; a mutex would make callers wait beyond their context
	known bool
	count int
}

// NewStoreBound bounds the entries whose keys begin with the prefix.
func NewStoreBound(prefix string, max int) *StoreBound {
	b := &StoreBound{prefix: prefix, max: max, turn: make(chan struct{}, 1)}
	b.turn <- struct{}{}
	return b
}

const evictBatch = 32

// Room makes place for one entry. It is called before each write.
func (b *StoreBound) Room(ctx context.Context, s pipeline.Store) error {
	select {
	case <-b.turn:
		defer func() { b.turn <- struct{}{} }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if b.known && b.count < b.max {
		b.count++
		return nil
	}
	keys, err := s.Keys(ctx, b.prefix)
	if err != nil {
		return err
	}
	b.known, b.count = true, len(keys)
	if over := len(keys) - b.max + 1; over > 0 {
		over = min(len(keys), max(over, min(evictBatch, b.max/64)))
		gone, err := evictOldest(ctx, s, keys, over)
		b.count -= gone
		if err != nil {
			return err
		}
	}
	b.count++
	return nil
}

func evictOldest(ctx context.Context, s pipeline.Store, keys []string, n int) (gone int, err error) {
	rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	type aged struct {
		key string
		rev uint64
	}
	sample := make([]aged, 0, 4*n+16)
	for _, key := range keys[:min(len(keys), 4*n+16)] {
		e, err := s.Get(ctx, key)
		if errors.Is(err, pipeline.ErrNotFound) {
			gone++ // its time was over, or somebody else made room
			continue
		}
		if err != nil {
			return gone, err
		}
		sample = append(sample, aged{key, e.Revision})
	}
	slices.SortFunc(sample, func(a, b aged) int { return cmp.Compare(a.rev, b.rev) })
	for _, a := range sample {
		if gone >= n {
			break
		}
		if err := s.Delete(ctx, a.key); err != nil {
			return gone, err
		}
		gone++
	}
	return gone, nil
}
