package jet_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// serverOf is a NATS server of the test's own.
func serverOf(t *testing.T) jetstream.JetStream {
	t.Helper()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	nc, err := jet.Connect(jet.ConnOptions{Name: t.Name(), InProcess: srv})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return js
}

// A bucket tells how full it is, and what of it takes how much, the oldest first.
func TestABucketKnowsItsSize(t *testing.T) {
	t.Parallel()
	js := serverOf(t)
	ctx := t.Context()
	_, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "b", History: 1, MaxBytes: 1 << 20})
	require.NoError(t, err)
	b, err := jet.OpenBucket(ctx, js, "b")
	require.NoError(t, err)
	none := func(string, int64) { t.Error("there is nothing") }
	require.NoError(t, b.Each(ctx, none))
	for i := range 300 {
		_, err := b.Put(ctx, fmt.Sprintf("a.k%03d", i), []byte(strings.Repeat("x", 1000+i)), 0, pipeline.Always())
		require.NoError(t, err)
	}
	require.NoError(t, b.Delete(ctx, "a.k007"))
	_, err = b.Put(ctx, "a.k000", []byte("new"), 0, pipeline.Always())
	require.NoError(t, err)
	used, most, err := b.Size(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, most)
	var keys []string
	var sum int64
	require.NoError(t, b.Each(ctx, func(key string, bytes int64) {
		keys = append(keys, key)
		sum += bytes
		require.True(t, key == "a.k000" || bytes > 1000, "%s %d", key, bytes)
	}))
	require.Len(t, keys, 299)
	require.Equal(t, []string{"a.k001", "a.k000"}, []string{keys[0], keys[298]}, "the oldest first")
	require.Greater(t, sum, used*3/4)
	require.Less(t, sum, used*5/4)
}

// A server that has less room than the limits of the streams says only a number; whoever starts it reads what
// to do (BU-7).
func TestAServerWithoutRoomForTheStreamsSaysWhatToLower(t *testing.T) {
	t.Parallel()
	js := serverOf(t)
	err := jet.Provision(t.Context(), js, jet.Layout{Streams: []jetstream.StreamConfig{
		{Name: "S", Subjects: []string{"s"}, MaxBytes: 1 << 59}}}, false)
	require.ErrorContains(t, err, "bus.queue-max-bytes")
}
