package messages

import (
	"fmt"
	"strconv"
)

// lineSize is what line 1 of a call has room for before it grows.
const lineSize = 2048

// Marshal writes the wire form: line 1 is the call, then comes one line for each distinct body that a name points at.
// A body behind a claim check is an empty line.
func (c *Call) Marshal() ([]byte, error) {
	t := tableOf(&c.bodies, nil)
	for _, l := range t.lines {
		if l.away {
			return nil, fmt.Errorf("wire: call %s is the view of a question; it lacks bodies", c.ID)
		}
	}
	w := newWriter(make([]byte, 0, lineSize+t.size()))
	w.call(c, WireVersion, true)
	w.slip(&c.Slip, true)
	w.notes("notes", c.Notes)
	if c.Fault != nil {
		w.fault("fault", c.Fault)
	}
	t.write(&w)
	w.Close('}')
	if w.err != nil {
		return nil, w.err
	}
	return t.follow(w.B), nil
}

// Unmarshal reads the wire form. Line 1 is read strictly: an unknown, repeated or wrongly cased field, another wire
// version, or a body table that does not fit the lines is an error, because two readers that disagree about a call
// are worse than a dead letter. Bodies, notes and states share memory with data.
func Unmarshal(data []byte) (*Call, error) {
	first, rest, more := cutLine(data)
	if err := opens(first); err != nil {
		return nil, err
	}
	c, t, r, version := &Call{}, table{}, newReader(first), 0
	r.object(func(key string) bool {
		switch key {
		case "v":
			version = r.version(WireVersion)
		case "bodies":
			r.tableNames(&t)
		case "lines":
			r.tableLines(&t)
		default:
			return r.field(c, key) || r.storedField(c, key)
		}
		return true
	})
	if r.end(version, WireVersion); r.err != nil {
		return nil, r.err
	}
	if err := t.fill(rest, more); err != nil {
		return nil, err
	}
	var err error
	if c.bodies, err = t.bodies(); err != nil {
		return nil, err
	}
	return c, c.check()
}

func opens(line []byte) error {
	if len(line) == 0 || line[0] != '{' {
		return fmt.Errorf("wire: line 1 is no JSON object")
	}
	return nil
}

// version reads the version of a wire form; an unexpected one ends the reading at once.
func (r *reader) version(want int) int {
	raw := r.raw()
	if r.err == nil && string(raw) != strconv.Itoa(want) {
		r.err = otherVersion(string(raw), want)
	}
	return want
}

func otherVersion(got string, want int) error {
	return NewFault(UnsupportedVersion, "wire: version %s; this build reads version %d", got, want)
}

// end fails if anything follows the object, or if it named no version.
func (r *reader) end(version, want int) {
	switch {
	case r.err != nil:
	case !r.rest():
		r.fail("%d bytes after the call", len(r.b)-r.i)
	case version == 0:
		r.err = otherVersion("none", want)
	}
}

func (c *Call) check() error {
	switch {
	case c.ID == "":
		return fmt.Errorf("wire: the call has no id")
	case !c.Kind.Valid():
		return fmt.Errorf("wire: kind %q; known: model, tool, agent", c.Kind)
	case !c.Wire.Valid():
		return fmt.Errorf("wire: the call speaks %q; known: chat, responses, messages, embeddings", c.Wire)
	case c.Tenant == "":
		return fmt.Errorf("wire: the call has no tenant")
	}
	return c.Slip.check()
}

// check refuses a slip that Advance could not walk: positions and frames must lie on the route, outermost first.
func (s Slip) check() error {
	if s.At < -1 || s.At > len(s.Stops) {
		return fmt.Errorf("wire: slip is at %d of %d stops", s.At, len(s.Stops))
	}
	last := -1
	for _, f := range s.Frames {
		if f.Stop <= last || f.Stop >= len(s.Stops) || f.Attempt < 1 {
			return fmt.Errorf("wire: slip has a frame for stop %d (attempt %d) after stop %d", f.Stop, f.Attempt, last)
		}
		last = f.Stop
	}
	if s.Back && s.At >= 0 && s.At < len(s.Stops) && last != s.At {
		return fmt.Errorf("wire: slip is at the after of stop %d but its innermost frame is of stop %d", s.At, last)
	}
	if !s.Back && last >= max(s.At, 0) && len(s.Frames) > 0 {
		return fmt.Errorf("wire: slip is at the before of stop %d inside a frame of stop %d", s.At, last)
	}
	return nil
}
