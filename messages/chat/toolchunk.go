package chat

import (
	"strings"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// ToolChunk is a piece of a tool's result on its way to the caller: {"text": "..."}. A sign of life is
// {"progress": {...}} (ToolProgress).
func ToolChunk(text string) []byte { return rawjson.SetFieldString([]byte("{}"), "text", text) }

// ToolProgress is a sign of life of a tool; progress is a JSON object.
func ToolProgress(progress []byte) []byte {
	return rawjson.SetField([]byte("{}"), "progress", progress)
}

// ToolChunkText returns the text of a chunk that ToolChunk made.
func ToolChunkText(chunk []byte) (text string, ok bool) {
	if !strings.HasPrefix(string(chunk[:min(len(chunk), 8)]), `{"text":`) {
		return "", false
	}
	return rawjson.FieldString(chunk, "text")
}

// TextJoiner turns pieces that may be cut anywhere, even within a character, into text. Its results, joined, are the
// joined pieces with each run of invalid UTF-8 replaced by one replacement character, as SetReply does with the whole.
// The zero value is ready.
type TextJoiner struct {
	tail []byte // the beginning of a character, less than utf8.UTFMax bytes
	bad  bool   // the last bytes were not UTF-8
}

// Add takes the next piece and returns the text that later pieces cannot change.
func (j *TextJoiner) Add(piece string) string {
	if len(j.tail) == 0 && !j.bad && utf8.ValidString(piece) {
		return piece
	}
	raw := append(j.tail, piece...)
	j.tail = nil
	cut := len(raw)
	for i := len(raw) - 1; i >= 0 && len(raw)-i < utf8.UTFMax; i-- {
		if utf8.RuneStart(raw[i]) {
			if !utf8.FullRune(raw[i:]) {
				cut = i
			}
			break
		}
	}
	j.tail = append(j.tail, raw[cut:]...)
	return j.clean(raw[:cut])
}

// End returns what is left: the replacement of an incomplete character, or nothing.
func (j *TextJoiner) End() string {
	raw := j.tail
	j.tail = nil
	return j.clean(raw)
}

func (j *TextJoiner) clean(raw []byte) string {
	var out strings.Builder
	out.Grow(len(raw))
	for len(raw) > 0 {
		r, size := utf8.DecodeRune(raw)
		bad := r == utf8.RuneError && size == 1
		if !bad {
			out.Write(raw[:size])
		} else if !j.bad {
			out.WriteRune(utf8.RuneError)
		}
		j.bad, raw = bad, raw[size:]
	}
	return out.String()
}
