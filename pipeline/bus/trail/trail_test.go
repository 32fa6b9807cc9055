package trail

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

type world struct {
	nc *nats.Conn
	js jetstream.JetStream
	*Trail
}

func newWorld(t testing.TB) world {
	t.Helper()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	nc, err := jet.Connect(jet.ConnOptions{Name: t.Name(), InProcess: srv})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	tr, err := New(nc, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return world{nc, js, tr}
}

func (w world) stream(t testing.TB, c jetstream.StreamConfig) {
	t.Helper()
	c.Name, c.Subjects = "RECORDS", []string{"records.>"}
	_, err := w.js.CreateOrUpdateStream(t.Context(), c)
	require.NoError(t, err)
}

// stored are the records of the stream, in its order.
func (w world) stored(t *testing.T) (out []string) {
	t.Helper()
	s, err := w.js.Stream(t.Context(), "RECORDS")
	require.NoError(t, err)
	for seq := uint64(1); seq <= s.CachedInfo().State.LastSeq; seq++ {
		m, err := s.GetMsg(t.Context(), seq)
		require.NoError(t, err)
		require.NotEmpty(t, m.Header.Get(nats.MsgIdHdr))
		out = append(out, m.Subject+" "+string(m.Data))
	}
	return out
}

func (w world) waiting(t *testing.T, n int) State {
	t.Helper()
	require.Eventually(t, func() bool { return w.State().Waiting == n }, 30*time.Second, time.Millisecond)
	return w.State()
}

func TestCloseWaitsUntilEveryRecordIsStored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream(t, jetstream.StreamConfig{})
	var want []string
	for i := range 500 {
		subject, data := fmt.Sprint("records.", i%3), fmt.Sprint(i)
		want = append(want, subject+" "+data)
		w.Publish(subject, "", []byte(data))
	}
	w.Close(t.Context())
	require.Equal(t, want, w.stored(t))
	require.Equal(t, State{}, w.State())
}

func TestWhatHasNoStreamIsWrittenWhenThereIsOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 3 {
		w.Publish("records.a", "", []byte{'0' + byte(i)})
	}
	require.ErrorIs(t, w.waiting(t, 3).Last, nats.ErrNoResponders)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.Run(ctx) }()
	w.stream(t, jetstream.StreamConfig{})
	s := w.waiting(t, 0)
	require.EqualValues(t, 3, s.Late)
	require.Zero(t, s.Lost)
	cancel()
	<-ended
	w.Close(t.Context())
	require.ElementsMatch(t, []string{"records.a 0", "records.a 1", "records.a 2"}, w.stored(t))
}

func TestARefusalOfTheStreamIsKeptWithItsReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream(t, jetstream.StreamConfig{MaxMsgs: 1, Discard: jetstream.DiscardNew})
	w.Publish("records.a", "", []byte("1"))
	w.Publish("records.a", "", []byte("2"))
	require.ErrorContains(t, w.waiting(t, 1).Last, "maximum messages exceeded")
	w.stream(t, jetstream.StreamConfig{MaxMsgs: 2, Discard: jetstream.DiscardNew})
	w.Close(t.Context())
	require.Equal(t, []string{"records.a 1", "records.a 2"}, w.stored(t))
}

func TestARecordThatIsNotAcknowledgedInTimeIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mute, err := w.nc.SubscribeSync("records.>")
	require.NoError(t, err)
	w.Publish("records.a", "", []byte("1"))
	m, err := mute.NextMsg(time.Minute)
	require.NoError(t, err)
	w.acked(&nats.Msg{Subject: m.Reply, Data: []byte("+ACK")})
	w.overdue(time.Now().Add(-ackTime))
	require.Zero(t, w.State().Waiting, "its time is not over, and who listens is not the stream")
	w.overdue(time.Now())
	require.ErrorIs(t, w.waiting(t, 1).Last, errSilent)
	w.acked(&nats.Msg{Subject: m.Reply, Data: []byte(`{"stream":"RECORDS","seq":1}`)})
	require.Equal(t, 1, w.State().Waiting, "an answer that comes later changes nothing")
}

func TestRecordsAreLostOnlyBeyondTheBoundsAndAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range maxRecords {
		w.Publish("records.a", "", nil)
		w.settle(w.next-1, nats.ErrNoResponders)
	}
	require.Zero(t, w.State().Lost)
	w.Publish("records.a", "", nil)
	w.settle(w.next-1, nats.ErrNoResponders)
	s := w.State()
	require.Equal(t, maxRecords, s.Waiting)
	require.EqualValues(t, 1, s.Lost)
	require.EqualValues(t, maxRecords, s.Late)
}

func TestARecordThatNoMessageCanHoldDoesNotStandInTheWayOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream(t, jetstream.StreamConfig{})
	w.Publish("records.a", "", make([]byte, w.nc.MaxPayload()+1))
	w.Publish("records.a", "", []byte("1"))
	w.Close(t.Context())
	require.Equal(t, []string{"records.a 1"}, w.stored(t))
	require.EqualValues(t, 1, w.State().Lost)
}

// What is written again is stored once, whoever writes it: a process that does the same work anew, or the trail that
// has heard no acknowledgement (BU-13).
func TestARecordIsStoredOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream(t, jetstream.StreamConfig{})
	other, err := New(w.nc, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	for _, tr := range []*Trail{w.Trail, other} {
		tr.Publish("records.a", "call.end", []byte("1"))
		tr.Gather("records.b", "", []byte("2"))
		tr.Gather("records.c", "other.end", []byte("3"))
		tr.Close(t.Context())
	}
	require.ElementsMatch(t, []string{"records.a 1", "records.b 2", "records.c 3", "records.b 2"}, w.stored(t))

	again := record{subject: "records.a", data: []byte("unheard"), n: 1, at: time.Now()}
	w.mu.Lock()
	s := w.begin(again)
	w.mu.Unlock()
	w.send(s)
	require.NoError(t, w.nc.Flush())
	w.settle(s.number, errSilent)
	require.Zero(t, w.rewrite(t.Context()))
	require.Len(t, w.stored(t), 5)
}

// What a call pays for a record, beside what the client library does by itself.
func BenchmarkPublish(b *testing.B) {
	data := make([]byte, 600)
	b.Run("trail", func(b *testing.B) {
		w := newWorld(b)
		w.stream(b, jetstream.StreamConfig{})
		b.ReportAllocs()
		for b.Loop() {
			w.Publish("records.a", "", data)
		}
		b.StopTimer()
		w.Close(b.Context())
	})
	b.Run("nats.go", func(b *testing.B) {
		w := newWorld(b)
		w.stream(b, jetstream.StreamConfig{})
		b.ReportAllocs()
		for b.Loop() {
			_, err := w.js.PublishAsync("records.a", data)
			require.NoError(b, err)
		}
		b.StopTimer()
		<-w.js.PublishAsyncComplete()
	})
}
