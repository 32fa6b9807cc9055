package trail

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// busy makes the trail one that has sent many records of the subject: the next wait until somebody flushes.
func (w world) busy(subject string) {
	w.open[subject] = &gathered{next: time.Now().Add(time.Hour)}
}

func TestRecordsShareAMessageWhereTheyAreMany(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream(t, jetstream.StreamConfig{})
	w.Gather("records.a", "", []byte("first"))
	w.Gather("records.a", "", []byte("second"))
	w.busy("records.a")
	for i := range 3 {
		w.Gather("records.a", "", []byte{'0' + byte(i)})
	}
	w.Publish("records.b", "", []byte("alone"))
	w.Close(t.Context())
	require.Equal(t, []string{"records.a first", "records.a second", "records.b alone", "records.a 0\n1\n2"}, w.stored(t))
}

func TestRecordsThatWaitAreSentSoon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream(t, jetstream.StreamConfig{})
	var want []string
	for i := range 500 {
		w.Gather("records.a", "", fmt.Append(nil, i))
		want = append(want, fmt.Sprint(i))
	}
	var got []string
	require.Eventually(t, func() bool {
		got = nil
		for _, m := range w.stored(t) {
			got = append(got, strings.Split(strings.TrimPrefix(m, "records.a "), "\n")...)
		}
		return len(got) == len(want)
	}, 30*time.Second, 10*time.Millisecond)
	require.Equal(t, want, got)
}

func TestAMessageOfRecordsIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stream(t, jetstream.StreamConfig{})
	w.busy("records.a")
	half := strings.Repeat("x", gatherBytes/2)
	for _, record := range []string{"small", half, "next", half + half, "last"} {
		w.Gather("records.a", "", []byte(record))
	}
	w.Close(t.Context())
	require.Equal(t, []string{"records.a small\n" + half + "\nnext", "records.a " + half + half, "records.a last"},
		w.stored(t))
}

func TestEveryRecordOfAMessageIsCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.busy("records.a")
	for range 3 {
		w.Gather("records.a", "", []byte("x"))
	}
	w.flushAll()
	s := w.waiting(t, 3)
	require.EqualValues(t, 3, s.Late)
	w.busy("records.b")
	for range maxRecords {
		w.Gather("records.b", "", nil)
	}
	w.flushAll()
	require.Eventually(t, func() bool { return w.State().Lost == maxRecords }, 30*time.Second, time.Millisecond)
	require.Equal(t, 3, w.State().Waiting, "what does not fit is lost as a whole")
}
