package model

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// errTooLong says that an upstream sent more than the endpoint is ready to hold.
var errTooLong = errors.New("longer than the limit")

// event is one server-sent event; comments and unknown fields are dropped.
type event struct {
	name string
	data []byte
}

// eventReader reads server-sent events as the WHATWG text defines them, and what real providers make of them: data
// with and without the space, the three line ends, several data lines in one event, any number of comments and blank
// lines, and a last event without the blank line after it.
type eventReader struct {
	r       *bufio.Reader
	limit   int // bytes of one event
	skipLF  bool
	started bool
	alive   func() // called for each line, comments too
}

func newEventReader(r io.Reader, limit int, alive func()) *eventReader {
	return &eventReader{r: bufio.NewReaderSize(r, 16<<10), limit: limit, alive: alive}
}

// next returns the next event with data. At the end it returns io.EOF, and before it an event that was not closed by
// a blank line, if there is one. Any other error means that the stream broke.
func (e *eventReader) next() (event, error) {
	var ev event
	has := false
	for {
		line, err := e.line()
		if err != nil && (!errors.Is(err, io.EOF) || len(line) == 0) {
			if errors.Is(err, io.EOF) && has {
				return ev, nil
			}
			return event{}, err
		}
		e.alive()
		if len(line) == 0 {
			if has {
				return ev, nil
			}
			ev.name = ""
			continue
		}
		field, value, _ := bytes.Cut(line, []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		switch string(field) {
		case "data":
			if has {
				ev.data = append(ev.data, '\n')
			}
			has = true
			ev.data = append(ev.data, value...)
			if len(ev.data) > e.limit {
				return event{}, fmt.Errorf("one event: %w of %d bytes", errTooLong, e.limit)
			}
		case "event":
			ev.name = string(value)
		}
	}
}

// line reads up to LF, CR or CRLF without the line end. With io.EOF it may return a last line without an end.
func (e *eventReader) line() ([]byte, error) {
	var line []byte
	for {
		b, err := e.r.ReadByte()
		if err != nil {
			return e.trim(line), err
		}
		if e.skipLF {
			e.skipLF = false
			if b == '\n' {
				continue
			}
		}
		if b == '\r' || b == '\n' {
			e.skipLF = b == '\r'
			return e.trim(line), nil
		}
		line = append(line, b)
		// Take the rest of what is buffered in one piece; byte by byte would cost most of a stream's time.
		buf, _ := e.r.Peek(e.r.Buffered())
		n := bytes.IndexAny(buf, "\r\n")
		if n < 0 {
			n = len(buf)
		}
		line = append(line, buf[:n]...)
		_, _ = e.r.Discard(n)
		if len(line) > e.limit+16 {
			return nil, fmt.Errorf("one line: %w of %d bytes", errTooLong, e.limit)
		}
	}
}

// trim takes a byte order mark off the first line.
func (e *eventReader) trim(line []byte) []byte {
	if !e.started {
		e.started = true
		return bytes.TrimPrefix(line, []byte("\xEF\xBB\xBF"))
	}
	return line
}
