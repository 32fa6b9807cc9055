package config

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
)

type kind int

const (
	null kind = iota
	text
	integer
	float
	boolean
	mapping
	sequence
)

func (k kind) String() string {
	return [...]string{"nothing", "text", "a whole number", "a number", "true or false", "a mapping", "a list"}[k]
}

// node is one value of the file, of a variable, or of a flag, with its place.
type node struct {
	kind kind
	text string // of scalars, as written but for quotes and ${VAR}
	// loose says that the text came from outside the file (a variable, a flag, ${VAR}): it may be read as any scalar,
	// is split by comma for lists, and is not shown.
	loose bool
	place
	entries []entry
	items   []*node
}

type entry struct {
	key string
	place
	value *node
}

// count bounds what aliases expand to, because everything later walks the expanded tree.
func (n *node) count(left *int, depth int) bool {
	*left--
	if *left < 0 || depth > maxDepth {
		return false
	}
	for _, e := range n.entries {
		if !e.value.count(left, depth+1) {
			return false
		}
	}
	for _, v := range n.items {
		if !v.count(left, depth+1) {
			return false
		}
	}
	return true
}

func dot(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// json writes a node as JSON, with the order of its keys and, where JSON allows, the text of its numbers.
func (n *node) json(b *bytes.Buffer) {
	switch n.kind {
	case null:
		b.WriteString("null")
	case boolean:
		b.WriteString(n.text)
	case integer, float:
		if json.Valid([]byte(n.text)) {
			b.WriteString(n.text)
		} else if i, err := strconv.ParseInt(n.text, 0, 64); err == nil {
			b.WriteString(strconv.FormatInt(i, 10))
		} else if f, err := strconv.ParseFloat(n.text, 64); err == nil && f-f == 0 {
			b.WriteString(strconv.FormatFloat(f, 'g', -1, 64))
		} else {
			quote(b, n.text)
		}
	case text:
		quote(b, n.text)
	case mapping:
		b.WriteByte('{')
		for i, e := range n.entries {
			if i > 0 {
				b.WriteByte(',')
			}
			quote(b, e.key)
			b.WriteByte(':')
			e.value.json(b)
		}
		b.WriteByte('}')
	case sequence:
		b.WriteByte('[')
		for i, v := range n.items {
			if i > 0 {
				b.WriteByte(',')
			}
			v.json(b)
		}
		b.WriteByte(']')
	}
}

// quote writes a string with < and > as they are.
func quote(b *bytes.Buffer, s string) {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always encodes
	b.Truncate(b.Len() - 1)
}

// shaped gives text from outside the file the shape of the type that it is for: YAML flow as it is, such as
// SHALLOT_...='[{name: a}]'; else a list by comma, a map as key=value by comma. What is no text stays as it is.
// It returns nil for flow that is not readable.
func (n *node) shaped(t reflect.Type) *node {
	if !n.loose || n.kind != text {
		return n
	}
	if flow := strings.TrimSpace(n.text); strings.HasPrefix(flow, "[") || strings.HasPrefix(flow, "{") {
		s := newSource("", nil)
		r := s.parse([]byte(strings.ReplaceAll(flow, "$", "$$")))
		if len(s.found) > 0 || r == nil {
			return nil
		}
		r.moveTo(n.place)
		return r
	}
	switch {
	case t.Kind() == reflect.Map:
		return n.pairs()
	case t.Kind() == reflect.Slice && t != rawType:
		return n.split()
	}
	return n
}

// moveTo gives a tree read from outside the place of the text it came from.
func (n *node) moveTo(at place) {
	n.place, n.loose = at, true
	for i := range n.entries {
		n.entries[i].place = at
		n.entries[i].value.moveTo(at)
	}
	for _, v := range n.items {
		v.moveTo(at)
	}
}

// split reads a list by comma.
func (n *node) split() *node {
	out := &node{kind: sequence, place: n.place, loose: true}
	if strings.TrimSpace(n.text) == "" {
		return out
	}
	for part := range strings.SplitSeq(n.text, ",") {
		out.items = append(out.items, &node{kind: text, text: strings.TrimSpace(part), place: n.place, loose: true})
	}
	return out
}

// pairs reads a map as key=value by comma; without = it stays what it is and is refused.
func (n *node) pairs() *node {
	out := &node{kind: mapping, place: n.place, loose: true}
	for _, item := range n.split().items {
		key, value, ok := strings.Cut(item.text, "=")
		if !ok {
			return n
		}
		item.text = strings.TrimSpace(value)
		out.entries = append(out.entries, entry{key: strings.TrimSpace(key), value: item})
	}
	return out
}
