package model

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func readEvents(t *testing.T, r io.Reader) (out []string) {
	t.Helper()
	e := newEventReader(r, 1<<16, func() {})
	for {
		ev, err := e.next()
		if err != nil {
			require.True(t, errors.Is(err, io.EOF) || errors.Is(err, errTooLong), "%v", err)
			return out
		}
		out = append(out, ev.name+"|"+string(ev.data))
	}
}

func TestEventLimit(t *testing.T) {
	t.Parallel()
	e := newEventReader(strings.NewReader("data: "+strings.Repeat("x", 1<<20)), 1<<10, func() {})
	_, err := e.next()
	require.ErrorIs(t, err, errTooLong)
	e = newEventReader(strings.NewReader(strings.Repeat("data: xxxxxxxxxxxxxxxxx\n", 1000)), 1<<10, func() {})
	_, err = e.next()
	require.ErrorIs(t, err, errTooLong)
}

func TestBrokenReader(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	e := newEventReader(io.MultiReader(strings.NewReader("data: {\"a\""), iotest.ErrReader(boom)), 1<<10, func() {})
	_, err := e.next()
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
	in := bytes.Repeat([]byte("data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word \"},\"finish_reason\":null}]}\n\n"), 1000)
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		e := newEventReader(bytes.NewReader(in), 1<<20, func() {})
		for {
			if _, err := e.next(); err != nil {
				break
			}
		}
	}
}
