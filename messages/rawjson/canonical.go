package rawjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// ErrNotJSON says that bytes are not a JSON value.
var ErrNotJSON = errors.New("not a JSON value")

// canonicalDepth bounds recursion. Deeper values are kept as they came: that may cost a cache hit, but never gives a
// wrong one.
const canonicalDepth = 512

// Canonical writes a JSON value so that values which are certainly equal give equal bytes, for cache keys and grants:
// no white space, keys sorted, each string in one spelling, each number by its exact value (1, 1.0 and 1e0 are one
// number; nothing passes through float64, so 2^53+1 stays exact). Two values that a reader could tell apart never give
// the same bytes: repeated keys are all kept, a lone surrogate stays an escape, -0 is not 0, and a number with a huge
// exponent is kept as its text. The error is ErrNotJSON.
func Canonical(raw []byte) ([]byte, error) {
	if !json.Valid(raw) {
		return nil, fmt.Errorf("canonical: %w", ErrNotJSON)
	}
	p := canon{in: raw}
	return p.value(make([]byte, 0, len(raw)), 0), nil
}

// canon walks JSON that is known to be valid, so it does not check it.
type canon struct {
	in []byte
	at int
}

func (p *canon) space() {
	for p.at < len(p.in) && (p.in[p.at] == ' ' || p.in[p.at] == '\t' || p.in[p.at] == '\n' || p.in[p.at] == '\r') {
		p.at++
	}
}

func (p *canon) value(out []byte, depth int) []byte {
	p.space()
	switch c := p.in[p.at]; c {
	case '{', '[':
		if depth >= canonicalDepth {
			return p.verbatim(out)
		}
		if c == '{' {
			return p.object(out, depth)
		}
		return p.array(out, depth)
	case '"':
		return appendString(out, p.str())
	case 't', 'n':
		p.at += 4
		return append(out, p.in[p.at-4:p.at]...)
	case 'f':
		p.at += 5
		return append(out, p.in[p.at-5:p.at]...)
	}
	from := p.at
	for p.at < len(p.in) && bytes.IndexByte([]byte("+-.0123456789eE"), p.in[p.at]) >= 0 {
		p.at++
	}
	return appendNumber(out, p.in[from:p.at])
}

type canonPair struct{ key, value []byte }

func (p *canon) object(out []byte, depth int) []byte {
	p.at++
	var pairs []canonPair
	for {
		p.space()
		switch p.in[p.at] {
		case '}':
			p.at++
			// Stable: of repeated keys the last one counts for most readers, so their order is part of the value.
			slices.SortStableFunc(pairs, func(a, b canonPair) int { return bytes.Compare(a.key, b.key) })
			out = append(out, '{')
			for i, kv := range pairs {
				if i > 0 {
					out = append(out, ',')
				}
				out = append(append(append(out, kv.key...), ':'), kv.value...)
			}
			return append(out, '}')
		case ',':
			p.at++
			p.space()
		}
		key := appendString(nil, p.str())
		p.space()
		p.at++ // the colon
		pairs = append(pairs, canonPair{key, p.value(nil, depth+1)})
	}
}

func (p *canon) array(out []byte, depth int) []byte {
	p.at++
	out = append(out, '[')
	for {
		p.space()
		switch p.in[p.at] {
		case ']':
			p.at++
			return append(out, ']')
		case ',':
			p.at++
			out = append(out, ',')
		}
		out = p.value(out, depth+1)
	}
}

// str returns the string at the cursor with its quotes, as it came.
func (p *canon) str() []byte {
	from := p.at
	for p.at++; p.in[p.at] != '"'; p.at++ {
		if p.in[p.at] == '\\' {
			p.at++
		}
	}
	p.at++
	return p.in[from:p.at]
}

// verbatim copies a container as it came.
func (p *canon) verbatim(out []byte) []byte {
	from, open := p.at, 0
	for {
		switch p.in[p.at] {
		case '"':
			p.str()
			continue
		case '{', '[':
			open++
		case '}', ']':
			open--
		}
		p.at++
		if open == 0 {
			return append(out, p.in[from:p.at]...)
		}
	}
}

var shortEscapes = map[byte]byte{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', '"': '"', '\\': '\\', '/': '/'}

// appendString writes the string in one spelling: escapes only for the quote, the backslash, control characters, and
// surrogates that have no partner (decoding those would make different strings equal).
func appendString(out, quoted []byte) []byte {
	s := quoted[1 : len(quoted)-1]
	out = append(out, '"')
	for i := 0; i < len(s); {
		if s[i] != '\\' {
			out = append(out, s[i])
			i++
			continue
		}
		if s[i+1] != 'u' {
			out = appendChar(out, rune(shortEscapes[s[i+1]]))
			i += 2
			continue
		}
		r := hex4(s[i+2:])
		i += 6
		if !utf16.IsSurrogate(r) {
			out = appendChar(out, r)
			continue
		}
		if i+6 <= len(s) && s[i] == '\\' && s[i+1] == 'u' {
			if pair := utf16.DecodeRune(r, hex4(s[i+2:])); pair != utf8.RuneError {
				out = utf8.AppendRune(out, pair)
				i += 6
				continue
			}
		}
		out = fmt.Appendf(out, `\u%04x`, r)
	}
	return append(out, '"')
}

func appendChar(out []byte, r rune) []byte {
	switch {
	case r == '"' || r == '\\':
		return append(out, '\\', byte(r))
	case r < 0x20:
		return fmt.Appendf(out, `\u%04x`, r)
	}
	return utf8.AppendRune(out, r)
}

func hex4(s []byte) rune {
	n, err := strconv.ParseUint(string(s[:4]), 16, 16)
	if err != nil {
		return utf8.RuneError // unreachable: the input is valid JSON
	}
	return rune(n)
}

// appendNumber writes a number as digits and a power of ten with no zeros at either end: 1.50e3 is 15e2, 100 is 1e2.
func appendNumber(out, text []byte) []byte {
	mantissa, exp := text, int64(0)
	if i := bytes.IndexAny(text, "eE"); i >= 0 {
		n, err := strconv.ParseInt(string(text[i+1:]), 10, 32)
		if err != nil {
			return append(out, text...)
		}
		mantissa, exp = text[:i], n
	}
	negative := mantissa[0] == '-'
	if negative {
		mantissa = mantissa[1:]
	}
	digits := mantissa
	if i := bytes.IndexByte(mantissa, '.'); i >= 0 {
		digits = slices.Concat(mantissa[:i], mantissa[i+1:])
		exp -= int64(len(mantissa) - i - 1)
	}
	digits = bytes.TrimLeft(digits, "0")
	if negative {
		out = append(out, '-')
	}
	if len(digits) == 0 {
		return append(out, '0')
	}
	trimmed := bytes.TrimRight(digits, "0")
	exp += int64(len(digits) - len(trimmed))
	out = append(out, trimmed...)
	if exp != 0 {
		out = append(out, 'e')
		out = strconv.AppendInt(out, exp, 10)
	}
	return out
}
