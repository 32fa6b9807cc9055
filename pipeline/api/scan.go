package api

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// scanner reads a body once, before anything recursive does. It does not judge the grammar.
type scanner struct {
	body   []byte
	unique bool // whether a key may not come twice in an object
	values int
	keys   []string // of the open objects, the innermost last
	open   []level
}

// level is an open object or array.
type level struct {
	from int                 // of its keys
	seen map[string]struct{} // its keys, where they are many
}

// fewKeys are compared one by one.
const fewKeys = 16

// scan bounds nesting, values and the keys of one object, and finds keys that come twice.
func scan(body []byte, unique bool) *messages.Fault {
	s := scanner{body: body, unique: unique}
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '"':
			end := s.closing(i)
			if f := s.text(i, end); f != nil {
				return f
			}
			i = end
		case '{', '[':
			s.values++
			if s.open = append(s.open, level{from: len(s.keys)}); len(s.open) > MaxDepth {
				return tooLarge("the body is nested deeper than %d levels", MaxDepth)
			}
		case '}', ']':
			if n := len(s.open); n > 0 {
				s.keys, s.open = s.keys[:s.open[n-1].from], s.open[:n-1]
			}
		case ',':
			s.values++
		}
		if s.values > maxValues {
			return tooLarge("the body has more than %d values", maxValues)
		}
	}
	return nil
}

func tooLarge(format string, limit int) *messages.Fault {
	return messages.NewFault(messages.TooLarge, format, limit).From("entry")
}

// closing is where the text that begins at i ends; the body's length if it does not.
func (s *scanner) closing(i int) int {
	for i++; i < len(s.body); {
		n := bytes.IndexByte(s.body[i:], '"')
		if n < 0 {
			break
		}
		escapes := 0
		for escapes < n && s.body[i+n-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i + n
		}
		i += n + 1
	}
	return len(s.body)
}

// text takes a text; one that a colon follows is a key.
func (s *scanner) text(begin, end int) *messages.Fault {
	after := end + 1
	for after < len(s.body) && strings.IndexByte(" \t\r\n", s.body[after]) >= 0 {
		after++
	}
	if after >= len(s.body) || s.body[after] != ':' || len(s.open) == 0 {
		return nil
	}
	key := string(s.body[begin+1 : end])
	if bytes.IndexByte(s.body[begin:end], '\\') >= 0 {
		_ = json.Unmarshal(s.body[begin:end+1], &key) // what cannot be read is refused with the whole body
	}
	return s.key(key)
}

func (s *scanner) key(key string) *messages.Fault {
	l := &s.open[len(s.open)-1]
	own := s.keys[l.from:]
	if len(own) >= maxKeys {
		return tooLarge("an object of the body has more than %d keys", maxKeys)
	}
	if s.unique && s.known(l, own, key) {
		return Invalid(messages.Clip(key, 60), "the key %q comes twice in one object; write it once", messages.Clip(key, 60))
	}
	s.keys = append(s.keys, key)
	return nil
}

func (s *scanner) known(l *level, own []string, key string) bool {
	if l.seen == nil && len(own) >= fewKeys {
		l.seen = make(map[string]struct{}, 2*fewKeys)
		for _, k := range own {
			l.seen[k] = struct{}{}
		}
	}
	if l.seen != nil {
		_, twice := l.seen[key]
		l.seen[key] = struct{}{}
		return twice
	}
	return slices.Contains(own, key)
}

// maxControl bounds the body of a request that says what is to be done: a definition, a decision, an edit, a switch.
const maxControl = 1 << 20

// ControlBody checks such a body: a JSON object within the bounds, whose own keys are written in small letters. Two
// readers must not take two decisions, and one of them may not mind the case.
func ControlBody(body []byte) *messages.Fault {
	if len(body) > maxControl {
		return tooLarge("the body is larger than %d bytes", maxControl)
	}
	if f := WellFormed(body); f != nil {
		return f
	}
	var odd string
	rawjson.EachField(body, func(key string, _ []byte) {
		if key != strings.ToLower(key) {
			odd = key
		}
	})
	if odd != "" {
		return Invalid(messages.Clip(odd, 60), "the key %q is not known; keys are written in small letters",
			messages.Clip(odd, 60))
	}
	return nil
}
