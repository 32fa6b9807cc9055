package jet

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// Secret returns a key that all processes which have the store share: 32 bytes, made by whoever asks first. Who may
// read the store may sign as they do.
func Secret(ctx context.Context, store pipeline.Store, name string) ([]byte, error) {
	key := "secret." + messages.Token(name)
	var mine [32]byte
	_, _ = rand.Read(mine[:]) // never fails
	for {
		e, err := store.Get(ctx, key)
		if err == nil && len(e.Value) == len(mine) {
			return e.Value, nil
		}
		if err != nil && !errors.Is(err, pipeline.ErrNotFound) {
			return nil, messages.NewFault(messages.StoreUnavailable, "the shared key %s cannot be read: %v", name,
				err).From("entry")
		}
		_, err = store.Put(ctx, key, mine[:], 0, pipeline.IfRevision(e.Revision)) // revision 0: nothing is there
		if err == nil {
			return mine[:], nil
		}
		if ctx.Err() != nil || !errors.Is(err, pipeline.ErrExists) && !errors.Is(err, pipeline.ErrChanged) &&
			!errors.Is(err, ErrNoAnswer) {
			return nil, messages.NewFault(messages.StoreUnavailable, "the shared key %s cannot be made: %v", name,
				err).From("entry")
		}
	}
}
