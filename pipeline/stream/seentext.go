package stream

import "hash/maphash"

// seenText stands for a text that a caller has seen, such as the whole reply so far. The text itself is not kept: it
// would be there twice for each stream that is read slowly.
type seenText struct {
	sum  maphash.Hash
	size int
}

func (t *seenText) add(s string) {
	_, _ = t.sum.WriteString(s) // never fails
	t.size += len(s)
}

// empty reports whether nothing was seen. A nil text is empty.
func (t *seenText) empty() bool { return t == nil || t.size == 0 }

// rest is what follows in full after the text; ok is false if full does not begin with it.
func (t *seenText) rest(full string) (more string, ok bool) {
	switch {
	case t.empty():
		return full, true
	case len(full) < t.size, maphash.String(t.sum.Seed(), full[:t.size]) != t.sum.Sum64():
		return "", false
	}
	return full[t.size:], true
}
