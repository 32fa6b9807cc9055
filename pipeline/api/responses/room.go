package responses

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// The room for responses is one for all tenants. Before it is full, those who have most give way: each loses its own
// oldest, until all that is left fits. A tenant that has less than its share loses nothing, however much others keep.

// Sized is a store that has a bound and knows how full it is.
type Sized interface {
	// Size returns how many bytes are stored, and how many may be; 0: any number.
	Size(ctx context.Context) (used, most int64, err error)
	// Each calls f for each entry, the oldest first.
	Each(ctx context.Context, f func(key string, bytes int64)) error
}

// Trimming begins when so many eighths of the room are taken, and leaves so many. Until then the store itself, when it
// is full, drops the oldest of all.
const (
	trimAt = 6
	trimTo = 5
)

// lookEach is after how many written bytes somebody should look whether the room is full.
const lookEach = 16 << 20

// room counts what this process writes.
type room struct {
	written atomic.Int64
	look    chan struct{}
}

func newRoom() *room { return &room{look: make(chan struct{}, 1)} }

func (r *room) wrote(n int) {
	if r.written.Add(int64(n)) < lookEach {
		return
	}
	r.written.Store(0)
	select {
	case r.look <- struct{}{}:
	default:
	}
}

// Filling tells, now and then, that this process has written much: it is time to Trim.
func (k *Kept) Filling() <-chan struct{} { return k.room.look }

// Trim makes room if the store is nearly full, and returns how many entries went. It may run in several processes at
// once, which then make a little more room than is needed.
func (k *Kept) Trim(ctx context.Context) (int, error) {
	sized, ok := k.store.(Sized)
	if !ok {
		return 0, nil
	}
	used, most, err := sized.Size(ctx)
	if err != nil || most == 0 || used <= most/8*trimAt {
		return 0, err
	}
	have := map[string]int64{}
	if err := sized.Each(ctx, func(key string, n int64) { have[tenantOf(key)] += n }); err != nil {
		return 0, err
	}
	over := above(have, most/8*trimTo)
	var keys []string
	err = sized.Each(ctx, func(key string, n int64) {
		if t := tenantOf(key); over[t] > 0 && !strings.HasPrefix(key, openKeys) {
			over[t] -= n
			keys = append(keys, key)
		}
	})
	if err != nil {
		return 0, err
	}
	return len(keys), k.deleteAll(ctx, keys)
}

// tenantOf is the token of the tenant in a key.
func tenantOf(key string) string {
	t, _, _ := strings.Cut(key, ".")
	return t
}

// above is what each has beyond a share that is the same for all: the largest with which all that is left fits.
func above(have map[string]int64, fits int64) map[string]int64 {
	left, share := fits, int64(0)
	sizes := slices.Sorted(maps.Values(have))
	for i, b := range sizes { // the small ones keep what they have; what they leave is shared by the others
		if share = left / int64(len(sizes)-i); b > share {
			break
		}
		left -= b
	}
	out := map[string]int64{}
	for t, b := range have {
		if b > share {
			out[t] = b - share
		}
	}
	return out
}

func (k *Kept) deleteAll(ctx context.Context, keys []string) error {
	var wait sync.WaitGroup
	errs := make([]error, sweepers)
	for i := range sweepers {
		wait.Go(func() {
			for n := i; n < len(keys) && ctx.Err() == nil; n += sweepers {
				if err := k.store.Delete(ctx, keys[n]); err != nil {
					errs[i] = err
				}
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}
