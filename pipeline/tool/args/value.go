package args

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Limits of arguments and schemas. What a model writes is bounded before anything walks it.
const (
	MaxDepth  = 64
	MaxNodes  = 100_000
	maxDigits = 1024 // of one number, and of its exponent's value: exact arithmetic on 1e999999 would cost seconds
)

type form byte

const (
	kNull form = iota
	kBool
	kNumber
	kString
	kArray
	kObject
)

var kindNames = [...]string{"null", "boolean", "number", "string", "array", "object"}

// value is JSON as it was written: numbers and strings keep their own text, objects their order. A key that came twice
// is there once, with its last value, so that no two readers of the arguments can disagree.
type value struct {
	kind form
	raw  []byte // scalars: the text as it came; objects and arrays: built when written
	str  string // the decoded string
	keys []string
	vals []*value
	at   map[string]int // index of the keys, for wide objects only
}

const wide = 16

func (v *value) find(key string) int {
	if v.at != nil {
		if i, ok := v.at[key]; ok {
			return i
		}
		return -1
	}
	return slices.Index(v.keys, key)
}

func (v *value) get(key string) *value {
	if v == nil || v.kind != kObject {
		return nil
	}
	if i := v.find(key); i >= 0 {
		return v.vals[i]
	}
	return nil
}

func (v *value) set(key string, x *value) {
	if i := v.find(key); i >= 0 {
		v.vals[i] = x
		return
	}
	v.keys, v.vals = append(v.keys, key), append(v.vals, x)
	switch {
	case v.at != nil:
		v.at[key] = len(v.keys) - 1
	case len(v.keys) > wide:
		v.at = make(map[string]int, 2*len(v.keys))
		for i, k := range v.keys {
			v.at[k] = i
		}
	}
}

// keep drops the keys that keep refuses.
func (v *value) keep(keep func(key string) bool) {
	keys, vals := v.keys, v.vals
	v.keys, v.vals, v.at = nil, nil, nil
	for i, k := range keys {
		if keep(k) {
			v.set(k, vals[i])
		}
	}
}

func newString(s string) *value { return &value{kind: kString, str: s, raw: rawjson.Encode(s)} }
func newNumber(t string) *value { return &value{kind: kNumber, raw: []byte(t)} }
func newBool(b bool) *value {
	if b {
		return &value{kind: kBool, raw: []byte("true")}
	}
	return &value{kind: kBool, raw: []byte("false")}
}

// clone copies the tree. Scalars are shared, because nothing changes them.
func (v *value) clone() *value {
	if v.kind < kArray {
		return v
	}
	n := &value{kind: v.kind, vals: make([]*value, len(v.vals))}
	for i, x := range v.vals {
		n.vals[i] = x.clone()
	}
	if v.kind == kObject {
		n.keys = slices.Clone(v.keys)
		if v.at != nil {
			n.at = make(map[string]int, len(v.at))
			for k, i := range v.at {
				n.at[k] = i
			}
		}
	}
	return n
}

// write appends the value as compact JSON.
func (v *value) write(b []byte) []byte { return v.encode(b, false) }

// canonical appends the value in the form that equal values share: names sorted, numbers and strings written one way.
func (v *value) canonical(b []byte) []byte { return v.encode(b, true) }

func (v *value) encode(b []byte, canonical bool) []byte {
	switch v.kind {
	case kArray:
		b = append(b, '[')
		for i, x := range v.vals {
			if i > 0 {
				b = append(b, ',')
			}
			b = x.encode(b, canonical)
		}
		return append(b, ']')
	case kObject:
		b = append(b, '{')
		var sorted []int
		if canonical {
			sorted = sortedIndex(v.keys)
		}
		for i := range v.keys {
			if i > 0 {
				b = append(b, ',')
			}
			at := i
			if canonical {
				at = sorted[i]
			}
			b = append(append(b, rawjson.Encode(v.keys[at])...), ':')
			b = v.vals[at].encode(b, canonical)
		}
		return append(b, '}')
	}
	switch {
	case canonical && v.kind == kNumber:
		d, _ := decimalOf(string(v.raw))
		return append(b, d.text()...)
	case canonical && v.kind == kString:
		return append(b, rawjson.Encode(v.str)...)
	}
	return append(b, v.raw...)
}

// plain is the value as the schema library wants it: numbers as json.Number.
func (v *value) plain() any {
	switch v.kind {
	case kNull:
		return nil
	case kBool:
		return v.raw[0] == 't'
	case kNumber:
		return json.Number(v.raw)
	case kString:
		return v.str
	case kArray:
		out := make([]any, len(v.vals))
		for i, x := range v.vals {
			out[i] = x.plain()
		}
		return out
	}
	out := make(map[string]any, len(v.keys))
	for i, k := range v.keys {
		out[k] = v.vals[i].plain()
	}
	return out
}

// fromPlain is the way back, for values that a schema holds (defaults, members of an enumeration).
func fromPlain(x any) *value {
	raw, err := json.Marshal(x)
	if err != nil {
		return &value{kind: kNull, raw: []byte("null")}
	}
	v, err := parseValue(raw)
	if err != nil {
		return &value{kind: kNull, raw: []byte("null")}
	}
	return v
}

// Clip shortens a value for a message.
func Clip(s string) string { return messages.Clip(s, 60) }

// pointer adds a name to a JSON pointer (RFC 6901).
func pointer(at, name string) string {
	if strings.ContainsAny(name, "~/") {
		name = strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
	}
	return at + "/" + name
}

// unpoint reads one part of a JSON pointer.
func unpoint(part string) string {
	return strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
}
