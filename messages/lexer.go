package messages

import (
	"encoding/binary"
	"math/bits"
)

// maxNesting is how deep JSON may be nested; encoding/json has the same limit.
const maxNesting = 10000

// lexer walks over JSON. Its methods return false where the bytes are not JSON; otherwise they move past what they
// read. It accepts what encoding/json accepts.
type lexer struct {
	b      []byte
	i      int
	spaced bool // insignificant white space was seen
	depth  int
}

// IsJSON is json.Valid, several times as fast: a body is mostly text, and text is read many bytes at a time.
func IsJSON(raw []byte) bool {
	valid, _ := inspect(raw)
	return valid
}

// inspect reports whether raw is one JSON value, and whether it contains insignificant white space.
func inspect(raw []byte) (valid, spaced bool) {
	l := lexer{b: raw}
	valid = l.value() && l.rest()
	return valid, l.spaced
}

// rest reports whether nothing but white space follows.
func (l *lexer) rest() bool {
	l.space()
	return l.i == len(l.b)
}

// space skips white space and returns the next byte without taking it; 0 at the end.
func (l *lexer) space() byte {
	for ; l.i < len(l.b); l.i++ {
		switch c := l.b[l.i]; c {
		case ' ', '\n', '\t', '\r':
			l.spaced = true
		default:
			return c
		}
	}
	return 0
}

// take skips white space and takes c, if c comes next.
func (l *lexer) take(c byte) bool {
	if l.i < len(l.b) && l.b[l.i] == c {
		l.i++
		return true
	}
	return l.takeSpaced(c)
}

func (l *lexer) takeSpaced(c byte) bool {
	if l.i >= len(l.b) || l.b[l.i] > ' ' || l.space() != c || l.i >= len(l.b) {
		return false
	}
	l.i++
	return true
}

// value skips white space and takes one value.
func (l *lexer) value() bool {
	if l.i >= len(l.b) || l.b[l.i] <= ' ' {
		l.space()
	}
	if l.i >= len(l.b) {
		return false
	}
	switch l.b[l.i] {
	case '"':
		l.i++
		return l.text()
	case '{':
		return l.nested('}', true)
	case '[':
		return l.nested(']', false)
	case 't':
		return l.word("true")
	case 'f':
		return l.word("false")
	case 'n':
		return l.word("null")
	default:
		return l.number()
	}
}

// nested takes an object or an array.
func (l *lexer) nested(end byte, keys bool) bool {
	if l.depth++; l.depth > maxNesting {
		return false
	}
	l.i++
	if l.take(end) {
		l.depth--
		return true
	}
	for {
		if keys && !(l.take('"') && l.text() && l.take(':')) || !l.value() {
			return false
		}
		switch {
		case l.take(','):
		case l.take(end):
			l.depth--
			return true
		default:
			return false
		}
	}
}

func (l *lexer) word(w string) bool {
	if len(l.b)-l.i < len(w) || string(l.b[l.i:l.i+len(w)]) != w {
		return false
	}
	l.i += len(w)
	return true
}

// number takes a number: -0 and 1.5e+3, but not 01, .5 or +1.
func (l *lexer) number() bool {
	i := l.i
	if i < len(l.b) && l.b[i] == '-' {
		i++
	}
	from := i
	if i = digits(l.b, i); i == from || l.b[from] == '0' && i > from+1 {
		return false
	}
	if i < len(l.b) && l.b[i] == '.' {
		from = i + 1
		if i = digits(l.b, from); i == from {
			return false
		}
	}
	if i < len(l.b) && l.b[i]|0x20 == 'e' {
		if i++; i < len(l.b) && (l.b[i] == '+' || l.b[i] == '-') {
			i++
		}
		from = i
		if i = digits(l.b, from); i == from {
			return false
		}
	}
	l.i = i
	return true
}

// digits returns the end of the digits that begin at i.
func digits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' < 10 {
		i++
	}
	return i
}

// text takes the rest of a string after its first quote, eight bytes at a time.
func (l *lexer) text() bool {
	b, i := l.b, l.i
	for {
		for ; i+8 <= len(b); i += 8 {
			if at := special(binary.LittleEndian.Uint64(b[i:])); at != 0 {
				i += bits.TrailingZeros64(at) >> 3
				break
			}
		}
		if i >= len(b) {
			return false
		}
		switch c := b[i]; {
		case c == '"':
			l.i = i + 1
			return true
		case c == '\\':
			n := escape(b[i+1:])
			if n == 0 {
				return false
			}
			i += n + 1
		case c < ' ':
			return false
		default:
			i++ // the last seven bytes are checked one by one
		}
	}
}

// special marks, in the high bit of its byte, the first byte of w that is a quote, a backslash or a control character.
// Only the first mark is reliable.
func special(w uint64) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	quote, slash := w^(ones*'"'), w^(ones*'\\')
	return ((w-ones*' ')&^w | (quote-ones)&^quote | (slash-ones)&^slash) & highs
}

// escape returns how many bytes after a backslash belong to the escape; 0 if JSON does not know it.
func escape(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	switch b[0] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 1
	case 'u':
		for n := 1; n < 5; n++ {
			if n >= len(b) || !isHex(b[n]) {
				return 0
			}
		}
		return 5
	}
	return 0
}

func isHex(c byte) bool { return c-'0' < 10 || c|0x20-'a' < 6 }

// appendCompact appends valid JSON without its insignificant white space.
func appendCompact(dst, raw []byte) []byte {
	l := lexer{b: raw}
	from := 0
	for l.i < len(raw) {
		switch raw[l.i] {
		case '"':
			l.i++
			if !l.text() {
				return append(dst, raw[from:]...) // not JSON: callers never pass this
			}
		case ' ', '\n', '\t', '\r':
			dst = append(dst, raw[from:l.i]...)
			l.i++
			from = l.i
		default:
			l.i++
		}
	}
	return append(dst, raw[from:]...)
}
