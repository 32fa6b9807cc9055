package args

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kaptinlin/jsonrepair"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// repair reads one object out of a text that is not JSON: with a fence or sentences around it, comments, trailing
// commas, single quotes, bare names, the words of Python and JavaScript, or without its last brackets. It fails if the
// text could mean two things: a cut string, a bare word, arithmetic, two objects. The scan below decides what may be
// repaired; the library repairs it; and the result must have the same names, strings and numbers as the text.
func repair(text string) (*value, error) {
	s := &scan{in: text}
	s.at = strings.IndexByte(text, '{')
	if s.at < 0 {
		return nil, errors.New("it contains no object")
	}
	if strings.ContainsAny(text[:s.at], "[]}\"") {
		return nil, errors.New("the text before the object is more than a sentence")
	}
	from := s.at
	if err := s.object(); err != nil {
		return nil, err
	}
	if strings.ContainsAny(text[s.at:], "{}[]") {
		return nil, errors.New("something follows the object")
	}
	fixed, err := jsonrepair.Repair(s.without(from))
	if err != nil {
		return nil, err
	}
	if !json.Valid([]byte(fixed)) {
		return nil, errors.New("it could not be repaired")
	}
	v, err := parseValue([]byte(fixed))
	if err != nil {
		return nil, err
	}
	var have [][]byte
	if v.kind != kObject || !slices.EqualFunc(s.scalars, flatten(v, have), bytes.Equal) {
		return nil, errors.New("it could mean more than one thing")
	}
	return v, nil
}

// flatten lists names and scalars in order, as JSON.
func flatten(v *value, out [][]byte) [][]byte {
	if v.kind < kArray {
		if v.kind == kString {
			return append(out, rawjson.Encode(v.str))
		}
		return append(out, v.raw)
	}
	for i, x := range v.vals {
		if v.kind == kObject {
			out = append(out, rawjson.Encode(v.keys[i]))
		}
		out = flatten(x, out)
	}
	return out
}

// scan reads the near-JSON of models and gives up where it is ambiguous.
type scan struct {
	in      string
	at      int
	deep    int
	scalars [][]byte // names and values as JSON, in order
	remarks [][2]int // where comments begin and end; the library does not know all of them
}

// without is the text that was read, from a place on, without its comments.
func (s *scan) without(from int) string {
	var b strings.Builder
	for _, r := range s.remarks {
		b.WriteString(s.in[from:r[0]] + " ")
		from = r[1]
	}
	b.WriteString(s.in[from:max(from, s.at)])
	return b.String()
}

var (
	jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)
	bareName   = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$-]*$`)
	words      = map[string]string{
		"true": "true", "false": "false", "null": "null",
		"True": "true", "False": "false", "None": "null", "undefined": "null",
	}
)

func (s *scan) object() error {
	return s.members('}', func() error {
		if err := s.name(); err != nil {
			return err
		}
		if s.space(); s.at >= len(s.in) || s.in[s.at] != ':' {
			return fmt.Errorf("at byte %d: a name without a value", s.at)
		}
		s.at++
		return s.value()
	})
}

func (s *scan) array() error { return s.members(']', s.value) }

// members reads what is between two brackets; one reads a single member.
func (s *scan) members(end byte, one func() error) error {
	s.at++
	if s.deep++; s.deep > MaxDepth {
		return fmt.Errorf("it is nested more than %d levels deep", MaxDepth)
	}
	defer func() { s.deep-- }()
	for n := 0; ; n++ {
		done, err := s.next(end, n)
		if err != nil || done {
			return err
		}
		if err := one(); err != nil {
			return err
		}
	}
}

// next moves to the next member or past the closing bracket. A text that ends between two members only lacks brackets;
// one that ends after a comma lacks a member too.
func (s *scan) next(end byte, n int) (done bool, err error) {
	s.space()
	comma := false
	if n > 0 && s.at < len(s.in) && s.in[s.at] == ',' {
		s.at++
		comma = true
		s.space()
	}
	switch {
	case s.at >= len(s.in) && (comma || n == 0):
		return false, errors.New("it is cut off")
	case s.at >= len(s.in):
		return true, nil
	case s.in[s.at] == end:
		s.at++
		return true, nil
	case n > 0 && !comma:
		return false, fmt.Errorf("at byte %d: a comma or %q is missing", s.at, end)
	}
	return false, nil
}

func (s *scan) name() error {
	if s.quoted() {
		return s.text()
	}
	w := s.word()
	if !bareName.MatchString(w) {
		return fmt.Errorf("at byte %d: a name is missing", s.at)
	}
	s.scalars = append(s.scalars, rawjson.Encode(w))
	return nil
}

func (s *scan) value() error {
	s.space()
	switch {
	case s.at >= len(s.in):
		return errors.New("it is cut off")
	case s.in[s.at] == '{':
		return s.object()
	case s.in[s.at] == '[':
		return s.array()
	case s.quoted():
		return s.text()
	}
	from := s.at
	w := s.word()
	switch {
	case words[w] != "":
		s.scalars = append(s.scalars, []byte(words[w]))
	case jsonNumber.MatchString(w):
		s.scalars = append(s.scalars, []byte(w))
	default:
		return fmt.Errorf("at byte %d: %q is not a value", from, Clip(w))
	}
	return nil
}

func (s *scan) quoted() bool { return s.at < len(s.in) && (s.in[s.at] == '"' || s.in[s.at] == '\'') }

// text reads a string in either quotes.
func (s *scan) text() error {
	quote, from := s.in[s.at], s.at
	body := []byte{'"'}
	for s.at++; s.at < len(s.in); s.at++ {
		switch c := s.in[s.at]; {
		case c == quote:
			s.at++
			var out string
			if json.Unmarshal(append(body, '"'), &out) != nil {
				return fmt.Errorf("at byte %d: the string cannot be read", from)
			}
			s.scalars = append(s.scalars, rawjson.Encode(out))
			return nil
		case c == '\\' && s.at+1 < len(s.in):
			if s.at++; s.in[s.at] != '\'' {
				body = append(body, '\\')
			}
			body = append(body, s.in[s.at])
		case c == '"':
			body = append(body, '\\', '"')
		case c == '\n':
			body = append(body, '\\', 'n')
		case c == '\t':
			body = append(body, '\\', 't')
		default:
			body = append(body, c)
		}
	}
	return errors.New("it is cut off in a string")
}

// word reads up to a character that cannot be part of a bare word.
func (s *scan) word() string {
	from := s.at
	for s.at < len(s.in) && !strings.ContainsRune(" \t\r\n,:{}[]()\"'`/#", rune(s.in[s.at])) {
		s.at++
	}
	return s.in[from:s.at]
}

func (s *scan) remark(length int) {
	s.remarks = append(s.remarks, [2]int{s.at, s.at + length})
	s.at += length
}

// space skips white space and comments.
func (s *scan) space() {
	for s.at < len(s.in) {
		rest := s.in[s.at:]
		switch {
		case strings.ContainsRune(" \t\r\n", rune(rest[0])):
			s.at++
		case strings.HasPrefix(rest, "//"), strings.HasPrefix(rest, "#"):
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				n = len(rest)
			}
			s.remark(n)
		case strings.HasPrefix(rest, "/*"):
			n := strings.Index(rest, "*/")
			if n < 0 {
				return // the text ends in a comment, where no value can follow
			}
			s.remark(n + 2)
		default:
			return
		}
	}
}
