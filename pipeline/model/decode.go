package model

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
)

// errCoding says that a body is not in the coding that its header names, or in one that cannot be read.
var errCoding = errors.New("content coding")

// decoded returns the body without its content coding. Some servers compress although they were not asked to. If the
// coding cannot be read, the first Read fails.
func decoded(res *http.Response) io.Reader {
	switch coding := strings.ToLower(strings.TrimSpace(res.Header.Get("Content-Encoding"))); coding {
	case "", "identity":
		return res.Body
	case "gzip", "x-gzip":
		return &unzip{from: res.Body, open: func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }}
	case "deflate":
		return &unzip{from: res.Body, open: func(r io.Reader) (io.Reader, error) { return zlib.NewReader(r) }}
	default:
		return &unzip{open: func(io.Reader) (io.Reader, error) {
			return nil, fmt.Errorf("%w %q is not read", errCoding, coding)
		}}
	}
}

// unzip makes its reader at the first Read, because making it already reads from the provider.
type unzip struct {
	from io.Reader
	open func(io.Reader) (io.Reader, error)
	r    io.Reader
}

func (u *unzip) Read(b []byte) (n int, err error) {
	if u.r == nil {
		if u.r, err = u.open(u.from); err != nil {
			u.r = nil
			return 0, coding(err)
		}
	}
	n, err = u.r.Read(b)
	return n, coding(err)
}

// coding marks errors that come from the data and not from the connection.
func coding(err error) error {
	_, corrupt := errors.AsType[flate.CorruptInputError](err)
	for _, e := range []error{gzip.ErrHeader, gzip.ErrChecksum, zlib.ErrHeader, zlib.ErrChecksum, zlib.ErrDictionary} {
		corrupt = corrupt || errors.Is(err, e)
	}
	if corrupt {
		return fmt.Errorf("%w: %w", errCoding, err)
	}
	return err
}

// readAll reads a body up to a limit.
func readAll(r io.Reader, limit int64) ([]byte, error) { return readSized(r, 0, limit) }

// maxClaim is the largest size that is believed before the bytes are there.
const maxClaim = 1 << 20

// readSized is readAll for a body that says its size; what it says need not be so.
func readSized(r io.Reader, size, limit int64) ([]byte, error) {
	var b bytes.Buffer
	if size > 0 && size <= maxClaim {
		b.Grow(int(size) + bytes.MinRead) // room for the read that finds the end
	}
	n, err := b.ReadFrom(io.LimitReader(r, limit+1))
	if err == nil && n > limit {
		return nil, chat.ErrTooLong
	}
	return b.Bytes(), err
}

// lively is a body that reports each piece as a sign of life.
type lively struct {
	io.Reader
	clock *clock
	idle  time.Duration
	why   func() *messages.Fault
}

func (l lively) Read(b []byte) (int, error) {
	n, err := l.Reader.Read(b)
	if n > 0 {
		l.clock.set(l.idle, l.why)
	}
	return n, err
}
