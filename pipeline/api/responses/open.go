package responses

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// A response in the background is noted as open until its end is kept. Whoever sweeps finds it by that note, of
// whichever owner it is: no tenant has an empty name, under which the notes are.

// openGrace is how long a note may be there without its response, which is written after it.
const openGrace = time.Minute

// sweepers is how many open responses are looked at at once.
const sweepers = 8

type open struct {
	Owner
	ID string
}

func openKey(id string) string { return messages.Key("", "open", id) }

var openKeys = messages.Key("", "open") + "."

func (k *Kept) note(ctx context.Context, o Owner, id string) error {
	return k.put(ctx, openKey(id), open{o, id}, pipeline.Always())
}

// closed takes the note away. If that fails, the next sweep does it.
func (k *Kept) closed(ctx context.Context, id string) { _ = k.store.Delete(ctx, openKey(id)) }

// Sweep keeps the ends of responses in the background whose gateway has died, and returns how many those were. The end
// of a call is known for a while only, so it is to be called more often than that. It may run in any number of
// processes at once.
func (k *Kept) Sweep(ctx context.Context) (int, error) {
	keys, err := k.store.Keys(ctx, openKeys)
	if err != nil {
		return 0, fault(err)
	}
	var wait sync.WaitGroup
	var mu sync.Mutex
	kept, room := 0, make(chan struct{}, sweepers)
	for _, key := range keys {
		if !strings.HasPrefix(key, openKeys) || ctx.Err() != nil {
			continue
		}
		room <- struct{}{}
		wait.Go(func() {
			defer func() { <-room }()
			ended, oneErr := k.sweep(ctx, key)
			mu.Lock()
			defer mu.Unlock()
			err = errors.Join(err, oneErr)
			if ended {
				kept++
			}
		})
	}
	wait.Wait()
	return kept, err
}

// sweep looks at one open response and reports whether its end was kept now.
func (k *Kept) sweep(ctx context.Context, key string) (bool, error) {
	var n open
	if _, err := k.get(ctx, key, &n); err != nil {
		if errors.Is(err, pipeline.ErrNotFound) {
			return false, nil // it has ended meanwhile
		}
		return false, fault(err)
	}
	r, _, err := k.Load(ctx, n.Owner, n.ID)
	f, isFault := errors.AsType[*messages.Fault](err)
	switch {
	case isFault && f.Code == messages.NotFound:
		if e, err := k.store.Get(ctx, key); err == nil && time.Since(e.Created) > openGrace {
			k.closed(ctx, n.ID)
		}
		return false, nil
	case err != nil:
		return false, err
	case r.Done():
		k.closed(ctx, n.ID)
		return false, nil
	}
	r, err = k.Look(ctx, n.Owner, n.ID)
	return err == nil && r.Done(), err
}
