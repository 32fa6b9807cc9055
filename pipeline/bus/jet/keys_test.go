package jet_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// A key that is there all the time is listed, also while it is written again and again.
func TestKeysHasWhatIsWrittenMeanwhile(t *testing.T) {
	t.Parallel()
	js := serverOf(t)
	_, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "b", History: 1})
	require.NoError(t, err)
	b, err := jet.OpenBucket(t.Context(), js, "b")
	require.NoError(t, err)
	const keys = 40
	write := func(ctx context.Context, i int) error {
		_, err := b.Put(ctx, fmt.Sprintf("p.k%d", i), []byte("x"), 0, pipeline.Always())
		return err
	}
	for i := range keys {
		require.NoError(t, write(t.Context(), i))
		require.NoError(t, write(t.Context(), keys+i))
		require.NoError(t, b.Delete(t.Context(), fmt.Sprintf("p.k%d", keys+i)))
	}
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := w; ctx.Err() == nil; i += 3 {
				_ = write(ctx, i%keys)
			}
		})
	}
	defer writers.Wait()
	defer stop()
	for range 50 {
		got, err := b.Keys(t.Context(), "p.")
		require.NoError(t, err)
		require.Len(t, got, keys)
	}
}
