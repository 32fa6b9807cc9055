package messages

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/tidwall/gjson"
)

// header is line 1 of the wire form: the call and its body table.
type header struct {
	*plainCall
	Bodies map[string]int `json:"bodies"`
	Lines  []lineInfo     `json:"lines"`
}

type plainCall Call // no methods, so that encoding/json does not recurse

type lineInfo struct {
	Size int    `json:"size"`
	Text bool   `json:"text,omitempty"`
	Ref  string `json:"ref,omitempty"`
}

// Marshal writes the wire form: line 1 the call, then one line for each distinct body that a name points at
// (contracts 1). A body behind a claim check is an empty line.
func (c *Call) Marshal() ([]byte, error) {
	h := header{plainCall: (*plainCall)(c), Bodies: make(map[string]int, len(c.bodies.names))}
	size := 0
	at := map[int]int{} // line in memory -> line on the wire
	var order []int
	for _, name := range sortedNames(c.bodies.names) {
		i := c.bodies.names[name]
		if _, ok := at[i]; !ok {
			order = append(order, i)
			at[i] = len(order)
			l := c.bodies.lines[i]
			h.Lines = append(h.Lines, lineInfo{Size: l.size, Text: l.text, Ref: l.ref})
			if l.ref == "" {
				size += len(l.raw)
			}
			size++
		}
		h.Bodies[name] = at[i]
	}
	first, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("wire: %w", err)
	}
	out := make([]byte, 0, len(first)+size)
	out = append(out, first...)
	for _, i := range order {
		out = append(out, '\n')
		if c.bodies.lines[i].ref == "" {
			out = append(out, c.bodies.lines[i].raw...)
		}
	}
	return out, nil
}

// sortedNames puts the request first, the reply second and the kept ones after, so that a person who looks at a
// message finds them in that order.
func sortedNames(names map[string]int) []string {
	out := make([]string, 0, len(names))
	for n := range names {
		out = append(out, n)
	}
	rank := func(n string) int {
		switch n {
		case RequestBody:
			return 0
		case ReplyBody:
			return 1
		}
		return 2
	}
	slices.SortFunc(out, func(a, b string) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return bytes.Compare([]byte(a), []byte(b))
	})
	return out
}

// Unmarshal reads the wire form. Line 1 is read strictly: an unknown, repeated or wrongly cased field, another wire
// version, or a body table that does not fit the lines is an error, because two readers that disagree about a call
// are worse than a dead letter. The bodies share memory with data.
func Unmarshal(data []byte) (*Call, error) {
	first, rest, _ := bytes.Cut(data, []byte{'\n'})
	if err := strictKeys(first); err != nil {
		return nil, err
	}
	if v := gjson.GetBytes(first, "v"); v.Type != gjson.Number || v.Int() != WireVersion {
		return nil, NewFault(UnsupportedVersion, "wire: version %s; this build reads version %d", orNone(v.Raw), WireVersion)
	}
	c := &Call{}
	h := header{plainCall: (*plainCall)(c)}
	dec := json.NewDecoder(bytes.NewReader(first))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&h); err != nil {
		return nil, fmt.Errorf("wire: line 1: %w", err)
	}
	if at := dec.InputOffset(); at != int64(len(first)) {
		return nil, fmt.Errorf("wire: line 1: %d bytes after the call", int64(len(first))-at)
	}
	for n, i := range h.Lines {
		if n > 0 && rest == nil {
			return nil, fmt.Errorf("wire: line %d is missing", n+2)
		}
		var line []byte
		line, rest, _ = cutLine(rest)
		if i.Ref == "" && len(line) != i.Size {
			return nil, fmt.Errorf("wire: line %d has %d bytes, the table says %d", n+2, len(line), i.Size)
		}
		c.bodies.lines = append(c.bodies.lines, body{raw: line, text: i.Text, ref: i.Ref, size: i.Size})
		if i.Ref != "" {
			c.bodies.lines[n].raw = nil
		}
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("wire: %d bytes after the last line of the table", len(rest))
	}
	c.bodies.names = make(map[string]int, len(h.Bodies))
	for name, i := range h.Bodies {
		if i < 1 || i > len(h.Lines) {
			return nil, fmt.Errorf("wire: body %q names line %d of %d", name, i, len(h.Lines))
		}
		c.bodies.names[name] = i - 1
	}
	return c, c.check()
}

func cutLine(b []byte) (line, rest []byte, more bool) {
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		return b, nil, false
	}
	return b[:i:i], b[i+1:], true
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func (c *Call) check() error {
	switch {
	case c.ID == "":
		return fmt.Errorf("wire: the call has no id")
	case !c.Kind.Valid():
		return fmt.Errorf("wire: kind %q; known: model, tool, agent", c.Kind)
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

// callKeys are the fields of line 1, each with a bit of its own.
var callKeys = func() map[string]uint64 {
	out := map[string]uint64{}
	for i, key := range []string{
		"v", "id", "kind", "tenant", "role", "models", "session", "run", "user", "agent", "tool", "request_id",
		"idempotency_key", "fingerprint", "parent", "skip", "stream", "cache", "explain", "accepted", "deadline", "generation", "return",
		"trace", "slip", "notes", "fault", "bodies", "lines",
	} {
		out[key] = 1 << i
	}
	return out
}()

// strictKeys refuses what encoding/json would let pass: a key that comes twice, or one in another case. That the line
// is JSON at all is the decoder's to say.
func strictKeys(line []byte) error {
	if len(line) == 0 || line[0] != '{' {
		return fmt.Errorf("wire: line 1 is no JSON object")
	}
	var seen uint64
	var err error
	gjson.ParseBytes(line).ForEach(func(k, _ gjson.Result) bool {
		bit := callKeys[k.Str]
		switch {
		case bit == 0:
			err = fmt.Errorf("wire: line 1: unknown field %q", k.Str)
		case seen&bit != 0:
			err = fmt.Errorf("wire: line 1: field %q twice", k.Str)
		}
		seen |= bit
		return err == nil
	})
	return err
}
