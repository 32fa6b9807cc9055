package messages

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// writer writes line 1 of a wire form by appending. A method named after a kind of value writes a field, or nothing
// where the value is empty, as omitempty does. The text is what encoding/json writes without its HTML escapes.
type writer struct {
	b   []byte
	err error
}

// key begins a field of the object that is open.
func (w *writer) key(key string) {
	w.comma()
	w.b = append(append(append(w.b, '"'), key...), '"', ':')
}

// comma separates two elements of the open object or list.
func (w *writer) comma() {
	if last := w.b[len(w.b)-1]; last != '{' && last != '[' {
		w.b = append(w.b, ',')
	}
}

// open begins a field that is an object or an array.
func (w *writer) open(key string, bracket byte) {
	w.key(key)
	w.b = append(w.b, bracket)
}

func (w *writer) close(bracket byte) { w.b = append(w.b, bracket) }

func (w *writer) text(key, v string) {
	if v != "" {
		w.key(key)
		w.b = appendQuoted(w.b, v)
	}
}

func (w *writer) flag(key string, v bool) {
	if v {
		w.key(key)
		w.b = append(w.b, "true"...)
	}
}

func (w *writer) number(key string, v int64) {
	if v != 0 {
		w.always(key, v)
	}
}

// always writes a number even if it is 0.
func (w *writer) always(key string, v int64) {
	w.key(key)
	w.b = strconv.AppendInt(w.b, v, 10)
}

func (w *writer) texts(key string, list []string) {
	if len(list) == 0 {
		return
	}
	w.open(key, '[')
	for _, v := range list {
		w.comma()
		w.b = appendQuoted(w.b, v)
	}
	w.close(']')
}

// time writes a time, even the zero time.
func (w *writer) time(key string, t time.Time) {
	w.key(key)
	b, err := t.AppendText(append(w.b, '"'))
	if err != nil {
		w.fail(fmt.Errorf("%s: %w", key, err))
		return
	}
	w.b = append(b, '"')
}

// raw writes a field that is JSON already.
func (w *writer) raw(key string, raw []byte) {
	if len(raw) == 0 {
		return
	}
	w.key(key)
	w.json(key, raw)
}

func (w *writer) json(key string, raw []byte) {
	valid, spaced := inspect(raw)
	switch {
	case !valid:
		w.fail(fmt.Errorf("%s is not JSON", key))
	case spaced:
		w.b = appendCompact(w.b, raw)
	default:
		w.b = append(w.b, raw...)
	}
}

// notes writes a map of raw values, its keys sorted. A nil value is null.
func (w *writer) notes(key string, n Notes) {
	if len(n) == 0 {
		return
	}
	w.open(key, '{')
	for _, k := range slices.Sorted(maps.Keys(n)) {
		w.comma()
		w.b = append(appendQuoted(w.b, k), ':')
		if n[k] == nil {
			w.b = append(w.b, "null"...)
			continue
		}
		w.json(k, n[k])
	}
	w.close('}')
}

// headers writes the answer headers of a fault.
func (w *writer) headers(h map[string]string) {
	if len(h) == 0 {
		return
	}
	w.open("headers", '{')
	for _, k := range slices.Sorted(maps.Keys(h)) {
		w.comma()
		w.b = append(appendQuoted(w.b, k), ':')
		w.b = appendQuoted(w.b, h[k])
	}
	w.close('}')
}

func appendUint(dst []byte, n uint64) []byte { return strconv.AppendUint(dst, n, 10) }

func (w *writer) fail(err error) {
	if w.err == nil {
		w.err = fmt.Errorf("wire: %w", err)
	}
}

// AppendString appends s as a JSON string, as encoding/json writes it without HTML escapes.
func AppendString(dst []byte, s string) []byte { return appendQuoted(dst, s) }

const hexDigits = "0123456789abcdef"

// appendQuoted appends s as a JSON string. Bytes that are not UTF-8 become the replacement character.
func appendQuoted(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' {
				i++
				continue
			}
			dst = appendEscape(append(dst, s[from:i]...), c)
			i++
			from = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			dst = append(append(dst, s[from:i]...), `\ufffd`...)
			from = i + n
		case r == '\u2028' || r == '\u2029':
			dst = append(append(dst, s[from:i]...), `\u202`...)
			dst = append(dst, hexDigits[r&0xf])
			from = i + n
		}
		i += n
	}
	return append(append(dst, s[from:]...), '"')
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, '\\', 'b')
	case '\f':
		return append(dst, '\\', 'f')
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
}
