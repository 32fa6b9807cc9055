package jet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/pipeline"
)

// Objects keeps large values by name in a JetStream object store. It is safe for concurrent use. How long they stay is
// the bucket's TTL.
type Objects struct{ store jetstream.ObjectStore }

// OpenObjects binds to an object store that provisioning has made.
func OpenObjects(ctx context.Context, js jetstream.JetStream, name string) (*Objects, error) {
	s, err := js.ObjectStore(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("object store %s: %w; run the provisioning step first", name, err)
	}
	return &Objects{store: s}, nil
}

// Put writes an object; one of that name is replaced.
func (o *Objects) Put(ctx context.Context, name string, data []byte) error {
	_, err := o.store.Put(ctx, jetstream.ObjectMeta{Name: name}, Body(data))
	if err != nil {
		return fmt.Errorf("object %s: %w", name, err)
	}
	return nil
}

// Body is a value for [jetstream.ObjectStore.Put]. At its end it lets other goroutines run: Put has begun one by then,
// which waits for ever if it first runs when Put has returned (nats.go 1.55). On a busy machine 101 of 7,680 were left;
// with this, 8.
func Body(data []byte) io.Reader { return &body{Reader: bytes.NewReader(data)} }

type body struct{ *bytes.Reader }

func (b *body) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil {
		runtime.Gosched()
	}
	return n, err
}

// Get returns an object, or pipeline.ErrNotFound.
func (o *Objects) Get(ctx context.Context, name string) ([]byte, error) {
	raw, err := o.store.GetBytes(ctx, name)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil, pipeline.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("object %s: %w", name, err)
	}
	return raw, nil
}
