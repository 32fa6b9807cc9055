package chat_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages/chat"
)

func readEvents(t *testing.T, r io.Reader) (out []string) {
	t.Helper()
	e := chat.NewEventReader(r, 1<<16, nil)
	for {
		ev, err := e.Next()
		if err != nil {
			require.True(t, errors.Is(err, io.EOF) || errors.Is(err, chat.ErrTooLong), "%v", err)
			return out
		}
		out = append(out, ev.Name+"|"+string(ev.Data))
	}
}

func TestEventLimit(t *testing.T) {
	t.Parallel()
	e := chat.NewEventReader(strings.NewReader("data: "+strings.Repeat("x", 1<<20)), 1<<10, nil)
	_, err := e.Next()
	require.ErrorIs(t, err, chat.ErrTooLong)
	e = chat.NewEventReader(strings.NewReader(strings.Repeat("data: xxxxxxxxxxxxxxxxx\n", 1000)), 1<<10, nil)
	_, err = e.Next()
	require.ErrorIs(t, err, chat.ErrTooLong)
}

func TestBrokenReader(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	e := chat.NewEventReader(io.MultiReader(strings.NewReader("data: {\"a\""), iotest.ErrReader(boom)), 1<<10, nil)
	_, err := e.Next()
	require.ErrorIs(t, err, boom, "half an event is not an event when the connection breaks")
}

// FuzzEvents checks that neither the sizes of reads nor the kind of line end change what is read.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("data: a\n\ndata:b\ndata: c\n\n: ping\n\nevent: error\ndata: d"))
	f.Add([]byte("\xEF\xBB\xBFdata: a\r\n\r\nid\r\rdata\r\r"))
	f.Fuzz(func(t *testing.T, in []byte) {
		whole := readEvents(t, bytes.NewReader(in))
		require.Equal(t, whole, readEvents(t, iotest.OneByteReader(bytes.NewReader(in))))
		if !bytes.Contains(in, []byte{'\r'}) {
			require.Equal(t, whole, readEvents(t, bytes.NewReader(bytes.ReplaceAll(in, []byte("\n"), []byte("\r\n")))))
			require.Equal(t, whole, readEvents(t, bytes.NewReader(bytes.ReplaceAll(in, []byte("\n"), []byte("\r")))))
		}
	})
}

func BenchmarkEvents(b *testing.B) {
	in := bytes.Repeat([]byte("data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word "+
		"\"},\"finish_reason\":null}]}\n\n"), 1000)
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		e := chat.NewEventReader(bytes.NewReader(in), 1<<20, nil)
		for {
			if _, err := e.Next(); err != nil {
				break
			}
		}
	}
}
