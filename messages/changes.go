package messages

import (
	"bytes"
	"strconv"
)

// Change is one difference between two forms of a body, for people.
type Change struct {
	Op string // set, add, remove
	// At is where, as a JSON pointer; empty for the whole body. An element that was added stands where it is now, one that
	// was removed where it was.
	At string
	// Was and Now are the old and the new value, as JSON; nil where there is none.
	Was, Now []byte
}

// mostChanges is how many differences are told apart. What is more than that is one change of the whole.
const mostChanges = 16

// Changes returns what turns the compact JSON value was into now; nil if they are the same. An empty value is none.
func Changes(was, now []byte) []Change {
	var out changes
	switch {
	case bytes.Equal(was, now):
	case len(was) == 0:
		out.add("add", "", nil, now)
	case len(now) == 0:
		out.add("remove", "", was, nil)
	default:
		out.value("", was, now)
	}
	if len(out) > mostChanges {
		return []Change{{Op: "set", Was: was, Now: now}}
	}
	return out
}

type changes []Change

func (c *changes) add(op, at string, was, now []byte) {
	if len(*c) <= mostChanges {
		*c = append(*c, Change{Op: op, At: at, Was: was, Now: now})
	}
}

func (c *changes) value(at string, was, now []byte) {
	switch {
	case bytes.Equal(was, now) || len(*c) > mostChanges:
	case was[0] == '{' && now[0] == '{':
		c.object(at, members(was), members(now))
	case was[0] == '[' && now[0] == '[':
		c.list(at, was, now)
	default:
		c.add("set", at, was, now)
	}
}

func (c *changes) object(at string, was, now []member) {
	place := func(m member) string { return at + "/" + pointer(m.key) }
	old := make(map[string][]byte, len(was))
	for _, m := range was {
		old[m.key] = m.raw
	}
	kept := make(map[string]bool, len(now))
	for _, m := range now {
		kept[m.key] = true
		if raw, ok := old[m.key]; ok {
			c.value(place(m), raw, m.raw)
		} else {
			c.add("add", place(m), nil, m.raw)
		}
	}
	for _, m := range was {
		if !kept[m.key] {
			c.add("remove", place(m), m.raw, nil)
		}
	}
}

// list compares what is left between the elements that both lists begin with and those that both end with.
func (c *changes) list(at string, before, after []byte) {
	was, now := members(before), members(after)
	head := 0
	for head < len(was) && head < len(now) && bytes.Equal(was[head].raw, now[head].raw) {
		head++
	}
	tail := 0
	for tail < len(was)-head && tail < len(now)-head && bytes.Equal(was[len(was)-1-tail].raw, now[len(now)-1-tail].raw) {
		tail++
	}
	was, now = was[head:len(was)-tail], now[head:len(now)-tail]
	place := func(i int) string { return at + "/" + strconv.Itoa(head+i) }
	both := min(len(was), len(now))
	if len(was) != len(now) && both > 0 {
		c.add("set", at, before, after)
		return
	}
	for i := range both {
		c.value(place(i), was[i].raw, now[i].raw)
	}
	for i, m := range now[both:] {
		c.add("add", place(i), nil, m.raw)
	}
	for i, m := range was[both:] {
		c.add("remove", place(i), m.raw, nil)
	}
}
