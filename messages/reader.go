package messages

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"
)

// reader reads line 1 of a wire form strictly: at every depth, a field that is unknown, repeated or in another case is
// an error, and so is a null that the writer would not write. After the first error every method does nothing. Raw
// values share memory with the line; strings share one copy of it.
type reader struct {
	lexer
	line string
	err  error
}

func newReader(line []byte) *reader { return &reader{lexer: lexer{b: line}, line: string(line)} }

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("wire: line 1: "+format, args...)
	}
}

// want takes c, or fails.
func (r *reader) want(c byte) {
	if r.err == nil && !r.take(c) {
		r.fail("%q expected at byte %d", c, r.i)
	}
}

// next reports whether the open object or list has another element, and takes the comma or the end.
func (r *reader) next(end byte, first *bool) bool {
	if r.err != nil || r.take(end) {
		return false
	}
	if !*first {
		r.want(',')
	}
	*first = false
	return r.err == nil
}

// object reads an object with known fields: field reads the value of the given key and reports whether it knows the
// key.
func (r *reader) object(field func(key string) bool) {
	var known [32]string
	seen := known[:0]
	first := true
	for r.want('{'); r.next('}', &first); {
		key := r.key()
		for _, s := range seen {
			if s == key {
				r.fail("field %q twice", key)
			}
		}
		if r.err == nil && !field(key) {
			r.fail("unknown field %q", key)
		}
		seen = append(seen, key)
	}
}

// key reads the name of a field and the colon. Names are compared as they are written.
func (r *reader) key() string {
	from, to := r.quoted()
	r.want(':')
	return r.line[from:to]
}

// each reads an object with any keys: value is called for each key and reads its value.
func (r *reader) each(value func(key string)) {
	first := true
	for r.want('{'); r.next('}', &first); {
		key := r.text()
		r.want(':')
		value(key)
	}
}

// list reads an array, or null for an empty one: element is called for each.
func (r *reader) list(element func()) {
	if r.err == nil && r.space() == 'n' && r.word("null") {
		return
	}
	first := true
	for r.want('['); r.next(']', &first); {
		element()
	}
}

// quoted takes a string and returns where its content begins and ends.
func (r *reader) quoted() (from, to int) {
	r.want('"')
	if r.err != nil {
		return 0, 0
	}
	from = r.i
	if !r.lexer.text() {
		r.fail("a string that begins at byte %d is not JSON", from)
		return 0, 0
	}
	return from, r.i - 1
}

func (r *reader) text() string {
	from, to := r.quoted()
	s := r.line[from:to]
	if bytes.IndexByte(r.b[from:to], '\\') < 0 && utf8.ValidString(s) {
		return s
	}
	var out string
	if err := json.Unmarshal(r.b[from-1:to+1], &out); err != nil {
		r.fail("%w", err)
	}
	return out
}

func (r *reader) texts() (out []string) {
	r.list(func() { out = append(out, r.text()) })
	return out
}

func (r *reader) flag() bool {
	if r.err != nil {
		return false
	}
	switch c := r.space(); {
	case c == 't' && r.word("true"):
		return true
	case c == 'f' && r.word("false"):
	default:
		r.fail("true or false expected at byte %d", r.i)
	}
	return false
}

// digits takes a number without a fraction or an exponent.
func (r *reader) digits() string {
	if r.err != nil {
		return ""
	}
	r.space()
	from := r.i
	if !r.lexer.number() || r.i == from {
		r.fail("a number expected at byte %d", from)
	}
	return r.line[from:r.i]
}

func (r *reader) int64() int64 {
	s := r.digits()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		r.fail("%q is not a whole number", s)
	}
	return n
}

func (r *reader) int() int { return int(r.int64()) }

func (r *reader) uint64() uint64 {
	s := r.digits()
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		r.fail("%q is not a whole number", s)
	}
	return n
}

func (r *reader) time() (t time.Time) {
	from, to := r.quoted()
	if r.err != nil {
		return t
	}
	if err := t.UnmarshalText(r.b[from:to]); err != nil {
		r.fail("%w", err)
	}
	return t
}

// raw takes any value and returns its bytes.
func (r *reader) raw() json.RawMessage {
	if r.err != nil {
		return nil
	}
	r.space()
	from := r.i
	if !r.value() {
		r.fail("the value at byte %d is not JSON", from)
		return nil
	}
	return r.b[from:r.i:r.i]
}

func (r *reader) notes() Notes {
	out := Notes{}
	r.each(func(key string) {
		if _, twice := out[key]; twice {
			r.fail("note %q twice", key)
		}
		out[key] = r.raw()
	})
	return out
}

func (r *reader) headers() map[string]string {
	out := map[string]string{}
	r.each(func(key string) {
		if _, twice := out[key]; twice {
			r.fail("header %q twice", key)
		}
		out[key] = r.text()
	})
	return out
}
