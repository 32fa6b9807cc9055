package rawjson

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"
)

// Appender is a value that writes itself, see [Writer]: that takes a fraction of what reflection does. It writes what
// encoding/json would, without HTML escapes.
type Appender interface {
	AppendJSON(b []byte) []byte
}

// Writer writes objects by appending to B. A method named after a kind of value writes a field of the object that is
// open, or nothing where the value is empty, as omitempty does. What it writes is JSON if brackets are opened and
// closed in order.
type Writer struct{ B []byte }

// Key begins a field of the object that is open.
func (w *Writer) Key(key string) {
	w.Comma()
	w.B = append(append(append(w.B, '"'), key...), '"', ':')
}

// Comma separates two elements of the open object or list.
func (w *Writer) Comma() {
	if last := w.B[len(w.B)-1]; last != '{' && last != '[' {
		w.B = append(w.B, ',')
	}
}

// Open begins a field that is an object or a list.
func (w *Writer) Open(key string, bracket byte) {
	w.Key(key)
	w.B = append(w.B, bracket)
}

// Element begins an object of the list that is open.
func (w *Writer) Element() {
	w.Comma()
	w.B = append(w.B, '{')
}

// Close ends the object or list.
func (w *Writer) Close(bracket byte) { w.B = append(w.B, bracket) }

// Text writes a text.
func (w *Writer) Text(key, v string) {
	if v != "" {
		w.Always(key, v)
	}
}

// Always writes a text even if it is empty.
func (w *Writer) Always(key, v string) {
	w.Key(key)
	w.B = AppendQuoted(w.B, v)
}

// Flag writes true.
func (w *Writer) Flag(key string, v bool) {
	if v {
		w.Key(key)
		w.B = append(w.B, "true"...)
	}
}

// Number writes a number.
func (w *Writer) Number(key string, v int64) {
	if v != 0 {
		w.Int(key, v)
	}
}

// Int writes a number even if it is 0.
func (w *Writer) Int(key string, v int64) {
	w.Key(key)
	w.B = strconv.AppendInt(w.B, v, 10)
}

// Texts writes a list of texts.
func (w *Writer) Texts(key string, list []string) {
	if len(list) == 0 {
		return
	}
	w.Open(key, '[')
	for _, v := range list {
		w.Comma()
		w.B = AppendQuoted(w.B, v)
	}
	w.Close(']')
}

// Time writes a time, even the zero time. The error is that of a year that has not four digits; nothing is written
// then.
func (w *Writer) Time(key string, t time.Time) error {
	was := len(w.B)
	w.Key(key)
	b, err := t.AppendText(append(w.B, '"'))
	if err != nil {
		w.B = w.B[:was]
		return err
	}
	w.B = append(b, '"')
	return nil
}

// Raw writes what is JSON already, in its compact form. What is no JSON becomes null.
func (w *Writer) Raw(key string, raw []byte) {
	if len(raw) == 0 {
		return
	}
	w.Key(key)
	if !bytes.ContainsAny(raw, " \t\r\n") {
		w.B = append(w.B, raw...)
		return
	}
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		b.Reset()
		b.WriteString("null")
	}
	w.B = append(w.B, b.Bytes()...)
}

const hexDigits = "0123456789abcdef"

// AppendQuoted appends s as a JSON string, without HTML escapes. Bytes that are not UTF-8 become the replacement
// character.
func AppendQuoted(dst []byte, s string) []byte {
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
