// Package evict is the engine of large-result-eviction: what passes of a streamed result, and the texts that stand in
// the place of one that was moved away. It knows no stage.
package evict

import (
	"strings"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/evicted"
)

// filter lets the beginning of a streamed result pass and holds the rest back until its size is known: a small
// one then goes on whole, of a large one the after saves all and replaces what did not pass. So what the caller saw is
// the beginning of the reply, and the reply is never above the limit, which is what the cache relies on.
type filter struct {
	c      *messages.Call
	most   int // characters of a result that is not evicted
	room   int // of them, those that may pass before the end
	chars  int // seen so far
	passed int
	held   strings.Builder
}

// NewFilter makes the filter of one attempt. A result of up to most characters is not evicted; reserve is the room of
// the lines that stand after what was let pass of a larger one.
func NewFilter(c *messages.Call, most, reserve int) pipeline.ChunkFilter {
	return &filter{c: c, most: most, room: max(0, most-reserve)}
}

// Text implements pipeline.ChunkFilter.
func (f *filter) Text(_ pipeline.ChunkKey, piece string) string {
	f.chars += utf8.RuneCountInString(piece)
	pass := evicted.Prefix(piece, f.room-f.passed)
	f.passed += utf8.RuneCountInString(pass)
	if f.chars > f.most {
		f.held.Reset() // it will not be shown; the endpoint has the whole
	} else {
		f.held.WriteString(piece[len(pass):])
	}
	return pass
}

// Flush implements pipeline.ChunkFilter: the result is whole.
func (f *filter) Flush(pipeline.ChunkKey) string {
	rest := f.held.String()
	if utf8.RuneCountInString(Text(Largest(f.c))) > f.most {
		rest = "" // the after replaces it, because of the structured content
	}
	f.passed += utf8.RuneCountInString(rest)
	f.c.Note(messages.NoteEvictedPassed, f.passed)
	return rest
}

// Largest is the result that counts. Structured content beside a text is the same result for programs; if it alone is
// large, it is what is saved.
func Largest(c *messages.Call) []byte {
	raw := c.Reply()
	if s := c.Notes[messages.NoteStructured]; len(s) > len(raw) {
		return s
	}
	return raw
}

// Text is the text of a result: the string that it is, or its JSON.
func Text(raw []byte) string {
	if text, ok := rawjson.IsString(raw); ok {
		return text
	}
	return string(raw)
}
