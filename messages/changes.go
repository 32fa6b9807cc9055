package messages

// Change is one difference between two forms of a body, for people.
type Change struct {
	Op string `json:"op"` // set, add, remove
	// At is where, as a JSON pointer; empty for the whole body.
	At string `json:"at,omitempty"`
	// Was and Now are the old and the new value, as JSON; nil where there is none. An add has all added elements in Now.
	Was, Now []byte `json:"-"`
}

// mostChanges is how many differences are told apart. What is more than that is one change of the whole.
const mostChanges = 16

// Changes returns what turns the compact JSON value was into now; nil if they are the same. An empty value is none.
func Changes(was, now []byte) []Change {
	if len(was) == 0 || len(now) == 0 {
		return whole(was, now)
	}
	d := differ{budget: len(now) + len(was), most: mostChanges}
	if !d.value(was, now, "") {
		return whole(was, now)
	}
	out := make([]Change, 0, len(d.edits))
	for _, e := range d.edits {
		c := Change{Op: "set", At: e.at, Was: e.was, Now: e.set}
		switch {
		case e.remove:
			c.Op = "remove"
		case e.add != nil:
			c.Op, c.Now = "add", arrayOf(e.add)
		}
		out = append(out, c)
	}
	return out
}

func whole(was, now []byte) []Change {
	switch {
	case len(was) == 0 && len(now) == 0:
		return nil
	case len(was) == 0:
		return []Change{{Op: "add", Now: now}}
	case len(now) == 0:
		return []Change{{Op: "remove", Was: was}}
	}
	return []Change{{Op: "set", Was: was, Now: now}}
}

func arrayOf(elements [][]byte) []byte {
	out := []byte{'['}
	for i, e := range elements {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, e...)
	}
	return append(out, ']')
}
