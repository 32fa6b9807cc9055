package bus

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// library is an object store whose objects are of their names' sizes in MiB. It takes a second to read one.
type library struct {
	jetstream.ObjectStore
	sizes map[string]int

	mu        sync.Mutex
	now, most int // bytes that are being read
	together  int
	peak      int // objects
}

func (l *library) GetInfo(_ context.Context, name string, _ ...jetstream.GetObjectInfoOpt) (*jetstream.ObjectInfo,
	error) {
	return &jetstream.ObjectInfo{Size: uint64(l.sizes[name])}, nil
}

func (l *library) Get(_ context.Context, name string, _ ...jetstream.GetObjectOpt) (jetstream.ObjectResult, error) {
	l.count(l.sizes[name], 1)
	return &volume{Reader: strings.NewReader(strings.Repeat("x", l.sizes[name])), of: l, size: l.sizes[name]}, nil
}

func (l *library) count(bytes, objects int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now += bytes
	l.together += objects
	l.most, l.peak = max(l.most, l.now), max(l.peak, l.together)
}

type volume struct {
	jetstream.ObjectResult
	io.Reader
	of   *library
	size int
}

func (v *volume) Read(b []byte) (int, error) { return v.Reader.Read(b) }

func (v *volume) Close() error {
	<-time.After(time.Second)
	v.of.count(-v.size, -1)
	return nil
}

// However many bodies are asked for at once, what is on its way stays below what the server keeps for a connection:
// many small ones come together, and one that is above the bound comes alone.
func TestBodiesAreFetchedInTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &library{sizes: map[string]int{"small": 256 << 10, "large": fetchBytes + 1}}
		c := newCodec(l, 64<<10, 1<<20)
		var all sync.WaitGroup
		for i := range 302 {
			all.Go(func() {
				name := "small"
				if i%150 == 7 {
					name = "large"
				}
				raw, err := c.fetch(t.Context(), name)
				if err != nil || len(raw) != l.sizes[name] {
					t.Error(name, len(raw), err)
				}
			})
		}
		all.Wait()
		require.Equal(t, fetchBytes+1, l.most, "the large one alone")
		require.Equal(t, fetchBytes/(256<<10), l.peak)
	})
}

// Who waits for a body in vain is told so, and others get theirs.
func TestAFetchThatIsGivenUpHoldsUpNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &library{sizes: map[string]int{"large": fetchBytes}}
		c := newCodec(l, 64<<10, 1<<20)
		var first sync.WaitGroup
		first.Go(func() { _, _ = c.fetch(t.Context(), "large") })
		synctest.Wait()
		brief, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := c.fetch(brief, "large")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = c.fetch(t.Context(), "large")
		require.NoError(t, err)
		first.Wait()
	})
}

// Replies above the claim check limit that end at once are more than a server keeps for a connection: they come in
// turns, and the connection stays.
func TestBodiesThatAreFetchedAtOnceCostNoConnection(t *testing.T) {
	t.Parallel()
	const bodies, size, keeps = 40, 1 << 20, fetchBytes + 4<<20
	srv, err := server.NewServer(&server.Options{ServerName: "small", Host: "127.0.0.1", Port: -1, JetStream: true,
		StoreDir: t.TempDir(), NoSigs: true, NoLog: true, MaxPending: keeps, SyncInterval: time.Minute})
	require.NoError(t, err)
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	require.True(t, srv.ReadyForConnections(20*time.Second))
	nc, err := nats.Connect(srv.ClientURL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	objects, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "bodies",
		Storage: jetstream.MemoryStorage})
	require.NoError(t, err)
	c := newCodec(objects, 64<<10, 1<<20)
	name := func(i int) string { return "tenant/" + string(rune('A'+i)) }
	for i := range bodies {
		require.NoError(t, c.place(t.Context(), name(i), bytes.Repeat([]byte{byte(i)}, size)))
	}
	var all sync.WaitGroup
	for i := range bodies {
		all.Go(func() {
			raw, err := c.fetch(t.Context(), name(i))
			if err != nil || !bytes.Equal(raw, bytes.Repeat([]byte{byte(i)}, size)) {
				t.Error(name(i), len(raw), err)
			}
		})
	}
	all.Wait()
	require.Zero(t, nc.Stats().Reconnects, "the server ended the connection")
}
