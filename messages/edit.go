package messages

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// edit changes one place of a JSON body: it sets a value, adds to a list, or removes a field. The place is a JSON
// pointer whose names are written as the body writes them. Edits are applied in order.
type edit struct {
	at     string
	set    []byte
	add    [][]byte
	remove bool
}

// Bounds of a list of edits: each one copies the body.
const (
	mostEdits   = 8
	editFrom    = 4 << 10 // smaller bodies are sent whole
	editPortion = 4       // edits may have 1/editPortion of the body's bytes
)

// editsOf returns the edits that turn was into now, or nil where it is better to send the whole body.
func editsOf(was, now []byte) []edit {
	if len(now) < editFrom || len(was) == 0 {
		return nil
	}
	d := differ{budget: len(now) / editPortion}
	if !d.value(was, now, "") {
		return nil
	}
	out := was
	for _, e := range d.edits {
		var err error
		if out, err = e.apply(out); err != nil {
			return nil
		}
	}
	if !bytes.Equal(out, now) {
		return nil
	}
	return d.edits
}

// differ compares two compact JSON values. It gives up where the edits become too many or too long.
type differ struct {
	edits  []edit
	budget int
}

func (d *differ) add(e edit, size int) bool {
	d.edits = append(d.edits, e)
	d.budget -= size + len(e.at)
	return d.budget >= 0 && len(d.edits) <= mostEdits
}

func (d *differ) value(was, now []byte, at string) bool {
	switch {
	case bytes.Equal(was, now):
		return true
	case was[0] == '{' && now[0] == '{':
		return d.object(members(was), members(now), at)
	case was[0] == '[' && now[0] == '[':
		return d.list(members(was), members(now), now, at)
	}
	return d.add(edit{at: at, set: now}, len(now))
}

// object compares field by field, in order: fields that only was has are removed, fields that only now has are added at
// the end.
func (d *differ) object(was, now []member, at string) bool {
	n := 0
	for _, m := range was {
		path := at + "/" + pointer(m.key)
		switch {
		case n < len(now) && m.key == now[n].key:
			if !d.value(m.raw, now[n].raw, path) {
				return false
			}
			n++
		case !d.add(edit{at: path, remove: true}, 0):
			return false
		}
	}
	for _, m := range now[n:] {
		if !d.add(edit{at: at + "/" + pointer(m.key), set: m.raw}, len(m.raw)) {
			return false
		}
	}
	return true
}

func (d *differ) list(was, now []member, whole []byte, at string) bool {
	if len(now) < len(was) {
		return d.add(edit{at: at, set: whole}, len(whole))
	}
	for i, m := range was {
		if !d.value(m.raw, now[i].raw, at+"/"+strconv.Itoa(i)) {
			return false
		}
	}
	if len(now) == len(was) {
		return true
	}
	e, size := edit{at: at}, 0
	for _, m := range now[len(was):] {
		e.add = append(e.add, m.raw)
		size += len(m.raw)
	}
	return d.add(e, size)
}

// member is one field of an object or one element of a list, and where it is. The key is written as in the body.
type member struct {
	key            string
	raw            []byte
	pair, from, to int // the pair begins at pair, its value is from..to
}

// members splits an object or a list into its members; raw is compact JSON.
func members(raw []byte) (out []member) {
	l := lexer{b: raw, i: 1}
	for l.i < len(raw)-1 {
		m := member{pair: l.i}
		if raw[0] == '{' {
			l.i++
			l.text()
			m.key = string(raw[m.pair+1 : l.i-1])
			l.i++
		}
		m.from = l.i
		if !l.value() {
			return nil
		}
		m.to = l.i
		m.raw = raw[m.from:m.to:m.to]
		out = append(out, m)
		l.i++ // the comma or the end
	}
	return out
}

var (
	escapePointer   = strings.NewReplacer("~", "~0", "/", "~1")
	unescapePointer = strings.NewReplacer("~1", "/", "~0", "~")
)

func pointer(key string) string { return escapePointer.Replace(key) }

// field adds a field to the object body[from:to].
func (e edit) field(body []byte, from, to int, key string) ([]byte, error) {
	name := append(append([]byte{'"'}, key...), '"')
	if valid, _ := inspect(name); !valid {
		return nil, fmt.Errorf("at %q: the field's name is not JSON", e.at)
	}
	return join(body, to-1, append(append(comma(body[from:to]), name...), ':'), e.set), nil
}

// apply returns a copy of a compact body with the edit made.
func (e edit) apply(body []byte) ([]byte, error) {
	switch {
	case len(body) == 0:
		return nil, errors.New("the body is not here")
	case e.at == "" && e.set != nil:
		return e.set, nil
	case e.at != "" && e.at[0] != '/':
		return nil, fmt.Errorf("at %q: a place begins with /", e.at)
	}
	from, to := 0, len(body)
	var way []string
	if e.at != "" {
		way = strings.Split(e.at[1:], "/")
	}
	for i, step := range way {
		m, err := find(body[from:to], unescapePointer.Replace(step))
		switch {
		case err == nil:
		case errors.Is(err, errNoField) && i == len(way)-1 && e.set != nil:
			return e.field(body, from, to, unescapePointer.Replace(step))
		default:
			return nil, fmt.Errorf("at %q: %w", e.at, err)
		}
		if e.remove && i == len(way)-1 {
			return cutMember(body, from, m), nil
		}
		from, to = from+m.from, from+m.to
	}
	switch {
	case e.set != nil:
		return append(append(append(make([]byte, 0, len(body)+len(e.set)), body[:from]...), e.set...), body[to:]...),
			nil
	case len(e.add) > 0 && body[from] == '[':
		return join(body, to-1, comma(body[from:to]), bytes.Join(e.add, []byte{','})), nil
	}
	return nil, fmt.Errorf("at %q: it changes nothing that is there", e.at)
}

var errNoField = errors.New("there is no such field")

// find finds a field of an object, or an element of a list by its number.
func find(raw []byte, step string) (member, error) {
	switch {
	case raw[0] == '{':
		for _, m := range members(raw) {
			if m.key == step {
				return m, nil
			}
		}
		return member{}, errNoField
	case raw[0] == '[':
		all := members(raw)
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(all) {
			return all[i], nil
		}
	}
	return member{}, errors.New("there is no such element")
}

// comma returns the comma before a new member, or nothing if the object or list is empty.
func comma(raw []byte) []byte {
	if len(raw) > 2 {
		return []byte{','}
	}
	return nil
}

func join(body []byte, at int, lead, value []byte) []byte {
	out := make([]byte, 0, len(body)+len(lead)+len(value))
	out = append(append(append(out, body[:at]...), lead...), value...)
	return append(out, body[at:]...)
}

// cutMember removes a field, and one comma next to it, from the object that begins at from.
func cutMember(body []byte, from int, m member) []byte {
	a, b := from+m.pair, from+m.to
	switch {
	case body[b] == ',':
		b++
	case body[a-1] == ',':
		a--
	}
	return join(body[:a:a], a, nil, body[b:])
}
