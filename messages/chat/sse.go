package chat

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
)

// ErrTooLong says that an event is longer than the reader's limit.
var ErrTooLong = errors.New("longer than the limit")

// Event is one server-sent event; comments and unknown fields are dropped.
type Event struct {
	Name string
	Data []byte
}

// EventReader reads server-sent events as WHATWG defines them, and the forms that real servers send: data with and
// without the space, all three line ends, several data lines in one event, any number of comments and blank lines, and
// a last event without a blank line after it. One goroutine uses it.
type EventReader struct {
	r       *bufio.Reader
	limit   int // bytes of one event
	skipLF  bool
	started bool
	alive   func() // called for each line, comments too
}

// NewEventReader returns a reader of events of at most limit bytes each. alive, if not nil, is called for each line.
func NewEventReader(r io.Reader, limit int, alive func()) *EventReader {
	return &EventReader{r: bufio.NewReaderSize(r, 16<<10), limit: limit, alive: alive}
}

// Next returns the next event with data. At the end it returns io.EOF, and before it an event that was not closed by
// a blank line, if there is one. Any other error means that the stream broke.
func (e *EventReader) Next() (Event, error) {
	var ev Event
	has := false
	for {
		line, err := e.line()
		if err != nil && (!errors.Is(err, io.EOF) || len(line) == 0) {
			if errors.Is(err, io.EOF) && has {
				return ev, nil
			}
			return Event{}, err
		}
		if e.alive != nil {
			e.alive()
		}
		if len(line) == 0 {
			if has {
				return ev, nil
			}
			ev.Name = ""
			continue
		}
		field, value, _ := bytes.Cut(line, []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		switch string(field) {
		case "data":
			if has {
				ev.Data = append(append(ev.Data, '\n'), value...)
			} else {
				ev.Data, has = slices.Clip(value), true // the line is nobody else's
			}
			if len(ev.Data) > e.limit {
				return Event{}, fmt.Errorf("one event: %w of %d bytes", ErrTooLong, e.limit)
			}
		case "event":
			ev.Name = string(value)
		}
	}
}

// line reads up to LF, CR or CRLF without the line end. With io.EOF it may return a last line without an end.
func (e *EventReader) line() ([]byte, error) {
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
		// Take the rest of the buffer in one piece; reading byte by byte would take most of a stream's time.
		buf, _ := e.r.Peek(e.r.Buffered())
		n := bytes.IndexByte(buf, '\n')
		if n < 0 {
			n = len(buf)
		}
		if end := bytes.IndexByte(buf[:n], '\r'); end >= 0 {
			n = end
		}
		line = append(append(slices.Grow(line, n+1), b), buf[:n]...)
		_, _ = e.r.Discard(n)
		if len(line) > e.limit+16 {
			return nil, fmt.Errorf("one line: %w of %d bytes", ErrTooLong, e.limit)
		}
	}
}

// trim takes a byte order mark off the first line.
func (e *EventReader) trim(line []byte) []byte {
	if !e.started {
		e.started = true
		return bytes.TrimPrefix(line, []byte("\xEF\xBB\xBF"))
	}
	return line
}
