package messages

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Marshal writes the answer: line 1 and the bodies that are new.
func (a *Answer) Marshal() ([]byte, error) {
	var t table
	w := newWriter(make([]byte, 0, lineSize/4))
	w.Int("v", HopVersion)
	w.Text("member", a.Member)
	w.Number("took", int64(a.Took))
	w.Text("verdict", a.Verdict)
	w.Number("delay", int64(a.Delay))
	w.Number("expires", int64(a.Expires))
	w.raw("question", a.Question)
	w.Text("target", a.Target)
	if a.Error != nil {
		w.thrown(a.Error)
	}
	w.raw("state", a.State)
	w.notes("notes", a.Set)
	w.Texts("unset", a.Unset)
	switch {
	case a.Fault != nil:
		w.fault("fault", a.Fault)
	case a.Cleared:
		w.Flag("cleared", true)
	}
	w.changes(a, &t)
	if a.with != nil {
		t.lines = append(t.lines, *a.with)
		w.Int("with", int64(len(t.lines)))
	}
	if len(t.lines) > 0 {
		t.writeLines(&w)
	}
	w.Close('}')
	if w.err != nil {
		return nil, w.err
	}
	return t.follow(w.B), nil
}

func (w *writer) thrown(e *Thrown) {
	w.Open("error", '{')
	w.Text("text", e.Text)
	if e.Fault != nil {
		w.fault("fault", e.Fault)
	}
	w.Flag("open", e.Open)
	w.Flag("closed", e.Closed)
	w.Text("over", string(e.Over))
	w.Text("absent", e.Absent)
	w.Text("stack", e.Stack)
	w.Close('}')
}

func (r *reader) thrown() *Thrown {
	e := &Thrown{}
	r.object(func(key string) bool {
		switch key {
		case "text":
			e.Text = r.text()
		case "fault":
			e.Fault = r.fault()
		case "open":
			e.Open = r.flag()
		case "closed":
			e.Closed = r.flag()
		case "over":
			e.Over = Code(r.text())
		case "absent":
			e.Absent = r.text()
		case "stack":
			e.Stack = r.text()
		default:
			return false
		}
		return true
	})
	return e
}

// changes writes the changes to the bodies: the number of a new line, the name of the body that takes its place, or a
// list of edits; null where the body was dropped.
func (w *writer) changes(a *Answer, t *table) {
	if len(a.bodies) == 0 {
		return
	}
	var sent []*body
	w.Open("bodies", '{')
	for _, ch := range a.bodies {
		w.Comma()
		w.B = append(rawjson.AppendQuoted(w.B, ch.name), ':')
		switch {
		case ch.dropped:
			w.B = append(w.B, "null"...)
		case ch.alias != "":
			w.B = rawjson.AppendQuoted(w.B, ch.alias)
		case len(ch.edits) > 0:
			w.edits(ch.edits)
		default:
			at := slices.Index(sent, ch.line)
			if at < 0 {
				at, sent, t.lines = len(sent), append(sent, ch.line), append(t.lines, *ch.line)
			}
			w.B = strconv.AppendUint(w.B, uint64(at+1), 10)
		}
	}
	w.Close('}')
}

func (w *writer) edits(list []edit) {
	w.B = append(w.B, '[')
	for _, e := range list {
		w.Comma()
		w.B = append(w.B, `{"at":`...)
		w.B = rawjson.AppendQuoted(w.B, e.at)
		w.Flag("remove", e.remove)
		w.raw("set", e.set)
		if len(e.add) > 0 {
			w.Open("append", '[')
			for _, raw := range e.add {
				w.Comma()
				w.json("append", raw)
			}
			w.Close(']')
		}
		w.Close('}')
	}
	w.Close(']')
}

// numbered lists the bodies that are new lines, with the line's number. They get their lines when the table is filled.
type numbered struct{ change, line int }

// ReadAnswer reads an answer as strictly as [Unmarshal] reads a call. Bodies that are new must be compact JSON.
func ReadAnswer(data []byte) (*Answer, error) {
	first, rest, more := cutLine(data)
	if err := opens(first); err != nil {
		return nil, err
	}
	a, t, r := &Answer{}, table{}, newReader(first)
	var lines []numbered
	version, with := 0, 0
	r.object(func(key string) bool {
		switch key {
		case "v":
			version = r.version(HopVersion)
		case "bodies":
			r.each(func(name string) { lines = r.change(a, name, lines) })
		case "with":
			if with = r.int(); with < 1 {
				r.fail("with is line %d", with)
			}
		case "lines":
			r.tableLines(&t)
		default:
			return r.answer(a, key)
		}
		return true
	})
	if r.end(version, HopVersion); r.err != nil {
		return nil, r.err
	}
	if len(t.lines) > 0 || more {
		if err := t.fill(rest, more); err != nil {
			return nil, err
		}
	}
	return a, a.fill(&t, lines, with)
}

func (r *reader) answer(a *Answer, key string) (known bool) {
	switch key {
	case "member":
		a.Member = r.text()
	case "took":
		a.Took = time.Duration(r.int64())
	case "verdict":
		a.Verdict = r.text()
	case "delay":
		a.Delay = time.Duration(r.int64())
	case "expires":
		a.Expires = time.Duration(r.int64())
	case "question":
		a.Question = r.raw()
	case "target":
		a.Target = r.text()
	case "error":
		a.Error = r.thrown()
	case "state":
		a.State = r.raw()
	case "notes":
		a.Set = r.notes()
	case "unset":
		a.Unset = r.texts()
	case "fault":
		a.Fault = r.fault()
	case "cleared":
		a.Cleared = r.flag()
	default:
		return false
	}
	return true
}

func (r *reader) change(a *Answer, name string, lines []numbered) []numbered {
	ch := change{name: name}
	if slices.ContainsFunc(a.bodies, func(other change) bool { return other.name == name }) {
		r.fail("body %q twice", name)
	}
	if r.err != nil {
		return lines
	}
	switch c := r.space(); {
	case c == 'n' && r.word("null"):
		ch.dropped = true
	case c == '"':
		if ch.alias = r.text(); ch.alias == "" {
			r.fail("body %q is what no body is", name)
		}
	case c == '[':
		r.list(func() { ch.edits = append(ch.edits, r.edit()) })
		if len(ch.edits) == 0 || len(ch.edits) > mostEdits {
			r.fail("body %q has %d edits; from 1 to %d", name, len(ch.edits), mostEdits)
		}
	default:
		lines = append(lines, numbered{len(a.bodies), r.int()})
	}
	a.bodies = append(a.bodies, ch)
	return lines
}

func (r *reader) edit() (e edit) {
	r.object(func(key string) bool {
		switch key {
		case "at":
			e.at = r.text()
		case "remove":
			e.remove = r.flag()
		case "set":
			e.set = r.compact()
		case "append":
			r.list(func() { e.add = append(e.add, r.compact()) })
		default:
			return false
		}
		return true
	})
	if kinds := count(e.remove) + count(e.set != nil) + count(len(e.add) > 0); kinds != 1 {
		r.fail("an edit does %d things", kinds)
	}
	return e
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// compact passes a value that is to become a part of a body.
func (r *reader) compact() []byte {
	raw := r.raw()
	if _, spaced := inspect(raw); spaced {
		r.fail("a value in an edit has white space")
	}
	return raw
}

// wellFormed refuses bytes that cannot be the body of a call.
func wellFormed(raw []byte, text bool) error {
	if valid, spaced := inspect(raw); !valid || spaced || text && raw[0] != '"' {
		return errors.New("it is not a compact body")
	}
	return nil
}

// fill gives the changes their lines, which must be bodies as a call holds them.
func (a *Answer) fill(t *table, lines []numbered, with int) error {
	for i, l := range t.lines {
		if l.ref != "" {
			continue
		}
		if err := wellFormed(l.raw, l.text); err != nil {
			return fmt.Errorf("wire: line %d: %w", i+2, err)
		}
	}
	for _, n := range lines {
		if n.line < 1 || n.line > len(t.lines) {
			return fmt.Errorf("wire: body %q names line %d of %d", a.bodies[n.change].name, n.line, len(t.lines))
		}
		a.bodies[n.change].line = &t.lines[n.line-1]
	}
	if with > len(t.lines) {
		return fmt.Errorf("wire: the request of the next attempt is line %d of %d", with, len(t.lines))
	}
	if with > 0 {
		a.with = &t.lines[with-1]
	}
	return nil
}
