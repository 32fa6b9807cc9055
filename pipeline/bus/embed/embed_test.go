package embed_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/bus/embed"
)

// TestOneServerOneDirectory: nats-server lets two servers write to one store; we do not, and the next may have it.
func TestOneServerOneDirectory(t *testing.T) {
	t.Parallel()
	o := embed.Options{Dir: t.TempDir(), Port: -1, Sync: time.Minute}
	first, err := embed.Start(o)
	require.NoError(t, err)
	_, err = embed.Start(o)
	require.ErrorContains(t, err, "--data")
	first.Stop()
	second, err := embed.Start(o)
	require.NoError(t, err)
	second.Stop()
}

// TestAServerThatCouldNotWriteIsReplacedWhenThereIsRoom: after a full disk nats-server refuses every write to the
// stream, also when the disk is empty again. Only another start helps (BU-4).
func TestAServerThatCouldNotWriteIsReplacedWhenThereIsRoom(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	srv, err := embed.Start(embed.Options{Dir: dir, Port: -1, Sync: time.Minute})
	require.NoError(t, err)
	defer srv.Stop()
	again := make(chan struct{}, 2)
	options := []nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(10 * time.Millisecond),
		nats.ReconnectHandler(func(*nats.Conn) { again <- struct{}{} })}
	inside, err := nats.Connect("", append(options, nats.InProcessServer(srv))...)
	require.NoError(t, err)
	defer inside.Close()
	outside, err := nats.Connect(srv.ClientURL(), options...)
	require.NoError(t, err)
	defer outside.Close()
	js, err := jetstream.New(inside)
	require.NoError(t, err)
	s, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	require.NoError(t, err)
	_, err = js.Publish(t.Context(), "s", []byte("before"))
	require.NoError(t, err)

	require.False(t, srv.Stuck())
	// there is no room, and no other server
	require.NoError(t, os.Rename(dir, dir+"-gone"))
	srv.Errorf("Filestore [S] Critical write error: %v", errors.New("no space left on device")) // as the server says it
	require.True(t, srv.Stuck())
	require.NoError(t, os.Rename(dir+"-gone", dir))
	for range 2 {
		select {
		case <-again:
		case <-time.After(time.Minute):
			require.Fail(t, "no other server came")
		}
	}
	require.False(t, srv.Stuck())
	_, err = js.Publish(t.Context(), "s", []byte("after"))
	require.NoError(t, err)
	info, err := s.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, info.State.Msgs)
}

// TestASmallDiskTakesStreamsWhoseLimitsItCannotHold: limits are bounds, not what is needed on the first day
// (BU-7).
func TestASmallDiskTakesStreamsWhoseLimitsItCannotHold(t *testing.T) {
	t.Parallel()
	const huge = 1 << 59
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Sync: time.Minute, Streams: huge})
	require.NoError(t, err)
	defer srv.Stop()
	nc, err := nats.Connect("", nats.InProcessServer(srv))
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, MaxBytes: huge})
	require.NoError(t, err)
}
