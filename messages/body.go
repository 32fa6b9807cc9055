package messages

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"sync/atomic"
)

// body is one distinct body. ref is its claim check, a name in an object store, if it was stored there; raw is nil
// until the bus has fetched it.
type body struct {
	raw  []byte
	text bool // the caller's body was not JSON; raw holds it as a JSON string
	ref  string
	size int
	// away says that a question left the bytes with its owner. from is the line of the question, counted from 1, that
	// this body came on, as long as it has not changed.
	away bool
	from int
	// sum is the SHA-256 of raw; empty until somebody asks for it.
	sum string
}

// bodies is the body table of a call: names point at lines, and several names may share one.
type bodies struct {
	names map[string]int
	lines []body
	// missed is set in a question's call: one bit for each body that was read although it is away.
	missed *atomic.Uint32
}

func (b *bodies) get(name string) []byte {
	i, ok := b.names[name]
	if !ok {
		return nil
	}
	if b.lines[i].away {
		b.missed.Or(1 << rank(name))
	}
	return b.lines[i].raw
}

// digest is the size of a body and its SHA-256 in hexadecimal, which is empty without a body. It is computed once for
// each line.
func (b *bodies) digest(name string) (size int, sum string) {
	raw := b.get(name)
	if raw == nil {
		return 0, ""
	}
	l := &b.lines[b.names[name]]
	if l.sum == "" {
		sum := sha256.Sum256(raw)
		l.sum = hex.EncodeToString(sum[:])
	}
	return len(raw), l.sum
}

func (b *bodies) has(name string) bool { _, ok := b.names[name]; return ok }

func (b *bodies) text(name string) (string, bool) {
	raw := b.get(name)
	if raw == nil || !b.lines[b.names[name]].text {
		return "", false
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return "", false
	}
	return s, true
}

func (b *bodies) set(name string, raw []byte) {
	if i, ok := b.names[name]; ok && b.lines[i].raw != nil && bytes.Equal(b.lines[i].raw, raw) {
		return // an unchanged body stays one line
	}
	b.assign(name, compact(raw))
}

// assign puts a line in place, unless the body is that already.
func (b *bodies) assign(name string, line body) {
	if i, ok := b.names[name]; ok && b.lines[i].text == line.text && bytes.Equal(b.lines[i].raw, line.raw) {
		return
	}
	b.put(name, line)
}

func (b *bodies) put(name string, line body) {
	if b.names == nil {
		b.names = map[string]int{}
	}
	if i, ok := b.names[name]; ok && b.alone(i) {
		b.lines[i] = line // no other name needs the old body: another attempt does not add a line
		return
	}
	b.lines = append(b.lines, line)
	b.names[name] = len(b.lines) - 1
}

// alone reports whether only one name points at the line.
func (b *bodies) alone(line int) bool {
	n := 0
	for _, i := range b.names {
		if i == line {
			n++
		}
	}
	return n == 1
}

// push adds a line that has no name yet and returns its index.
func (b *bodies) push(line body) int {
	b.lines = append(b.lines, line)
	return len(b.lines) - 1
}

// name makes a name point at a line.
func (b *bodies) name(name string, line int) {
	if b.names == nil {
		b.names = map[string]int{}
	}
	b.names[name] = line
}

// packed returns the table without lines that have no name, so that their bytes can be freed.
func (b *bodies) packed() (out bodies) {
	at := make([]int, len(b.lines))
	for name, i := range b.names {
		if at[i] == 0 {
			at[i] = out.push(b.lines[i]) + 1
		}
		out.name(name, at[i]-1)
	}
	return out
}

func (b *bodies) drop(name string) { delete(b.names, name) }

func (b *bodies) alias(name, of string) bool {
	i, ok := b.names[of]
	if !ok {
		return false
	}
	b.names[name] = i
	return true
}

func (b *bodies) clone() bodies {
	return bodies{names: maps.Clone(b.names), lines: slices.Clone(b.lines), missed: b.missed}
}

// compact removes only insignificant white space: key order, number text, escapes and duplicates stay.
func compact(raw []byte) body {
	valid, spaced := inspect(raw)
	switch {
	case !valid:
		return textBody(raw)
	case spaced:
		raw = appendCompact(make([]byte, 0, len(raw)), raw)
	}
	return body{raw: raw, size: len(raw)}
}

// textBody makes a text body, even of a text that could be read as JSON.
func textBody(raw []byte) body {
	s, _ := json.Marshal(string(bytes.ToValidUTF8(raw, []byte("\uFFFD"))))
	return body{raw: s, text: true, size: len(s)}
}

// Refs lists the claim checks whose bytes are not here yet, so that the bus can fetch them before a stage reads.
func (c *Call) Refs() []string {
	if !slices.ContainsFunc(c.bodies.lines, func(l body) bool { return l.ref != "" && l.raw == nil }) {
		return nil
	}
	var refs []string
	for _, name := range slices.Sorted(maps.Keys(c.bodies.names)) {
		l := c.bodies.lines[c.bodies.names[name]]
		if l.ref != "" && l.raw == nil && !slices.Contains(refs, l.ref) {
			refs = append(refs, l.ref)
		}
	}
	return refs
}

// Fill puts the bytes behind a claim check in place. The check stays with them, so that an unchanged body is not
// stored again when the call goes on.
func (c *Call) Fill(ref string, raw []byte) {
	for i := range c.bodies.lines {
		if c.bodies.lines[i].ref == ref {
			c.bodies.lines[i].raw = raw
		}
	}
}

// Uncheck lets go of the claim checks whose bytes are here: who stored them will delete them. If the call goes on,
// these bodies are stored anew.
func (c *Call) Uncheck() {
	for i := range c.bodies.lines {
		if l := &c.bodies.lines[i]; l.raw != nil {
			l.ref = ""
		}
	}
}

// Spill replaces each body of more than limit bytes by a claim check. store is called once for each such body and
// returns the reference; the same bytes may be stored under the same reference again.
func (c *Call) Spill(limit int, store func(raw []byte) (ref string, err error)) error {
	for _, i := range c.bodies.names {
		l := &c.bodies.lines[i]
		if l.ref != "" || len(l.raw) <= limit {
			continue
		}
		ref, err := store(l.raw)
		if err != nil {
			return err
		}
		l.ref = ref
	}
	return nil
}

// Sizes returns the size in bytes of each named body, spilled or not.
func (c *Call) Sizes() map[string]int {
	out := make(map[string]int, len(c.bodies.names))
	for name, i := range c.bodies.names {
		out[name] = c.bodies.lines[i].size
	}
	return out
}
