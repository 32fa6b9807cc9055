package args

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// parseValue reads one JSON value within the limits, in one pass whatever its depth.
func parseValue(raw []byte) (*value, error) { return (&reader{}).parse(raw) }

func (r *reader) parse(raw []byte) (*value, error) {
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte("\ufffd")) // as other readers of JSON read it
	}
	if d := depth(raw); d > MaxDepth {
		return nil, fmt.Errorf("nested %d levels deep; at most %d are read", d, MaxDepth)
	}
	if !json.Valid(raw) {
		return nil, broken(raw)
	}
	r.in, r.at, r.nodes = bytes.Clone(raw), 0, 0
	return r.value()
}

// reader walks valid JSON, so it checks nothing but the limits.
type reader struct {
	in    []byte
	at    int
	nodes int
	twice []string // names that came twice in one object
}

func (r *reader) space() {
	for r.at < len(r.in) && (r.in[r.at] == ' ' || r.in[r.at] == '\t' || r.in[r.at] == '\n' || r.in[r.at] == '\r') {
		r.at++
	}
}

func (r *reader) value() (*value, error) {
	if r.nodes++; r.nodes > MaxNodes {
		return nil, fmt.Errorf("more than %d values", MaxNodes)
	}
	r.space()
	from := r.at
	switch r.in[r.at] {
	case '{', '[':
		return r.container()
	case '"':
		raw := r.quoted()
		return &value{kind: kString, raw: raw, str: unquote(raw)}, nil
	case 't':
		r.at += 4
		return newBool(true), nil
	case 'f':
		r.at += 5
		return newBool(false), nil
	case 'n':
		r.at += 4
		return &value{kind: kNull, raw: []byte("null")}, nil
	}
	for r.at < len(r.in) && bytes.IndexByte([]byte("+-.0123456789eE"), r.in[r.at]) >= 0 {
		r.at++
	}
	text := r.in[from:r.at:r.at]
	if _, ok := decimalOf(string(text)); !ok {
		return nil, fmt.Errorf("the number %s has too many digits; at most %d are read", Clip(string(text)), maxDigits)
	}
	return &value{kind: kNumber, raw: text}, nil
}

func (r *reader) container() (*value, error) {
	v, end := &value{kind: kObject}, byte('}')
	if r.in[r.at] == '[' {
		v.kind, end = kArray, ']'
	}
	r.at++
	for {
		r.space()
		switch r.in[r.at] {
		case end:
			r.at++
			return v, nil
		case ',':
			r.at++
			r.space()
		}
		key := ""
		if v.kind == kObject {
			key = unquote(r.quoted())
			r.space()
			r.at++ // the colon
		}
		n, err := r.value()
		if err != nil {
			return nil, err
		}
		if v.kind == kArray {
			v.vals = append(v.vals, n)
		} else {
			if v.find(key) >= 0 {
				r.twice = append(r.twice, key)
			}
			v.set(key, n)
		}
	}
}

// quoted is the string at the cursor, with its quotes.
func (r *reader) quoted() []byte {
	from := r.at
	for r.at++; r.in[r.at] != '"'; r.at++ {
		if r.in[r.at] == '\\' {
			r.at++
		}
	}
	r.at++
	return r.in[from:r.at:r.at]
}

// unquote decodes a string as encoding/json does: half of a surrogate pair becomes U+FFFD, and what follows it stays.
func unquote(quoted []byte) string {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1 : len(quoted)-1])
	}
	var s string
	_ = json.Unmarshal(quoted, &s) // valid, so it cannot fail
	return s
}

// depth counts nesting without parsing, so that a bomb costs one pass.
func depth(raw []byte) int {
	deep, deepest, in := 0, 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case in && c == '\\':
			i++
		case c == '"':
			in = !in
		case in:
		case c == '{' || c == '[':
			deep++
			deepest = max(deepest, deep)
		case c == '}' || c == ']':
			deep--
		}
	}
	return deepest
}

// broken says where the JSON goes wrong.
func broken(raw []byte) error {
	var x any
	err := json.Unmarshal(raw, &x)
	if s, ok := err.(*json.SyntaxError); ok {
		from := max(0, min(int(s.Offset)-12, len(raw)))
		to := min(len(raw), int(s.Offset)+12)
		return fmt.Errorf("not valid JSON at byte %d, near %q: %v", s.Offset, bytes.ToValidUTF8(raw[from:to], nil), err)
	}
	return fmt.Errorf("not valid JSON: %v", err)
}
