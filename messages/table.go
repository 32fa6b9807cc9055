package messages

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// table is the body table of a message in its wire form: names point at lines, which follow line 1 in order. The first
// line has the number 1.
type table struct {
	names []tableName
	lines []body
	at    []int // lines[i] is line at[i] of the bodies that it was made of
}

type tableName struct {
	name string
	line int
}

// tableOf makes the table of the bodies whose names carry accepts. The request comes first, then the reply, then kept
// requests, so that a person who looks at a message finds them in that order.
func tableOf(b *bodies, carry func(name string) bool) (t table) {
	t.names = make([]tableName, 0, len(b.names))
	for name, i := range b.names {
		if carry == nil || carry(name) {
			t.names = append(t.names, tableName{name, i})
		}
	}
	slices.SortFunc(t.names, func(a, b tableName) int {
		return cmp.Or(cmp.Compare(rank(a.name), rank(b.name)), cmp.Compare(a.name, b.name))
	})
	for n := range t.names {
		t.names[n].line = t.add(b, t.names[n].line)
	}
	return t
}

func rank(name string) int {
	switch name {
	case RequestBody:
		return 0
	case ReplyBody:
		return 1
	}
	return 2
}

// add adds line i of the bodies to the table, unless it is there, and returns its number.
func (t *table) add(b *bodies, i int) int {
	at := slices.Index(t.at, i)
	if at < 0 {
		at = len(t.lines)
		t.lines, t.at = append(t.lines, b.lines[i]), append(t.at, i)
	}
	return at + 1
}

// write writes the table as two fields: the names, sorted, and what is known of each line.
func (t *table) write(w *writer) {
	w.Open("bodies", '{')
	sorted := slices.Clone(t.names)
	slices.SortFunc(sorted, func(a, b tableName) int { return cmp.Compare(a.name, b.name) })
	for _, n := range sorted {
		w.Comma()
		w.B = append(rawjson.AppendQuoted(w.B, n.name), ':')
		w.B = strconv.AppendUint(w.B, uint64(n.line), 10)
	}
	w.Close('}')
	t.writeLines(w)
}

func (t *table) writeLines(w *writer) {
	if len(t.lines) == 0 {
		w.Key("lines")
		w.B = append(w.B, "null"...)
		return
	}
	w.Open("lines", '[')
	for _, l := range t.lines {
		w.Comma()
		w.B = append(w.B, '{')
		w.Int("size", int64(l.size))
		w.Flag("text", l.text)
		w.Text("ref", l.ref)
		w.Close('}')
	}
	w.Close(']')
}

// size is how many bytes follow line 1.
func (t *table) size() (n int) {
	for _, l := range t.lines {
		n++
		if l.ref == "" {
			n += len(l.raw)
		}
	}
	return n
}

// follow appends the lines. A body behind a claim check is an empty line.
func (t *table) follow(dst []byte) []byte {
	for _, l := range t.lines {
		dst = append(dst, '\n')
		if l.ref == "" {
			dst = append(dst, l.raw...)
		}
	}
	return dst
}

func (r *reader) tableNames(t *table) {
	t.names = make([]tableName, 0, 4)
	r.each(func(key string) {
		for _, n := range t.names {
			if n.name == key {
				r.fail("body %q twice", key)
			}
		}
		t.names = append(t.names, tableName{key, r.int()})
	})
}

func (r *reader) tableLines(t *table) {
	r.list(func() {
		var l body
		r.object(func(key string) bool {
			switch key {
			case "size":
				l.size = r.int()
			case "text":
				l.text = r.flag()
			case "ref":
				l.ref = r.text()
			default:
				return false
			}
			return true
		})
		t.lines = append(t.lines, l)
	})
}

// fill reads the lines after line 1; it is an error if they do not fit the table.
func (t *table) fill(rest []byte, more bool) error {
	for i := range t.lines {
		l := &t.lines[i]
		if !more {
			return fmt.Errorf("wire: line %d is missing", i+2)
		}
		var line []byte
		line, rest, more = cutLine(rest)
		switch {
		case l.ref != "" && len(line) > 0:
			return fmt.Errorf("wire: line %d has %d bytes, the table says that they are elsewhere", i+2, len(line))
		case l.ref == "" && len(line) != l.size:
			return fmt.Errorf("wire: line %d has %d bytes, the table says %d", i+2, len(line), l.size)
		case l.ref == "":
			l.raw = line
		}
	}
	if more {
		return fmt.Errorf("wire: %d bytes after the last line of the table", len(rest)+1)
	}
	return nil
}

// bodies makes the bodies of a call of the table.
func (t *table) bodies() (b bodies, err error) {
	b = bodies{names: make(map[string]int, len(t.names)), lines: t.lines}
	for _, n := range t.names {
		if n.line < 1 || n.line > len(t.lines) {
			return b, fmt.Errorf("wire: body %q names line %d of %d", n.name, n.line, len(t.lines))
		}
		b.names[n.name] = n.line - 1
	}
	return b, nil
}

func cutLine(b []byte) (line, rest []byte, more bool) {
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		return b, nil, false
	}
	return b[:i:i], b[i+1:], true
}

func (t *table) has(name string) bool {
	return slices.ContainsFunc(t.names, func(n tableName) bool { return n.name == name })
}
