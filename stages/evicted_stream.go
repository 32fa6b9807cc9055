package stages

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// evictionFilter lets the beginning of a streamed result pass and holds the rest back until its size is known: a small
// one then goes on whole, of a large one the after saves all and replaces what did not pass. So what the caller saw is
// the beginning of the reply, and the reply is never above the limit, which is what the cache relies on.
type evictionFilter struct {
	c      *messages.Call
	most   int // characters of a result that is not evicted
	room   int // of them, those that may pass before the end
	chars  int // seen so far
	passed int
	held   strings.Builder
}

// filter makes the filter; nil where nothing is evicted.
func (l *largeResultEviction) filter(c *messages.Call) (pipeline.ChunkFilter, error) {
	c.Unnote(notePassed) // of an earlier attempt
	ctx, cancel := context.WithTimeout(context.Background(), policyTime)
	defer cancel()
	limit := l.limit(ctx, c)
	if limit < 0 {
		return nil, nil
	}
	most := 4*limit + 3 // a quarter of them is no more than the limit
	return &evictionFilter{c: c, most: most, room: max(0, most-l.reserve(c))}, nil
}

// policyTime is how long the tool's definition may take to be found.
const policyTime = 5 * time.Second

// reserve is the room of the lines that stand after what was let pass, with the longest numbers.
func (l *largeResultEviction) reserve(c *messages.Call) int {
	tool, _, _ := cutVersion(c.Tool)
	path := l.keep.path(evictedName(c.Tenant, c.Agent, tool, longestMs, longestSuffix))
	return utf8.RuneCountInString(savedLines(path) + sizeLine(longestMs))
}

const (
	longestMs     = 9_999_999_999_999 // of the year 2286; as many characters do not fit into a reply either
	longestSuffix = 1000
)

// Text implements pipeline.ChunkFilter.
func (f *evictionFilter) Text(_ pipeline.ChunkKey, piece string) string {
	f.chars += utf8.RuneCountInString(piece)
	pass := prefix(piece, f.room-f.passed)
	f.passed += utf8.RuneCountInString(pass)
	if f.chars > f.most {
		f.held.Reset() // it will not be shown; the endpoint has the whole
	} else {
		f.held.WriteString(piece[len(pass):])
	}
	return pass
}

// Flush implements pipeline.ChunkFilter: the result is whole.
func (f *evictionFilter) Flush(pipeline.ChunkKey) string {
	rest := f.held.String()
	if utf8.RuneCountInString(textOf(largest(f.c))) > f.most {
		rest = "" // the after replaces it, because of the structured content
	}
	f.passed += utf8.RuneCountInString(rest)
	f.c.Note(notePassed, f.passed)
	return rest
}
