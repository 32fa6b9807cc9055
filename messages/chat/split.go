package chat

import (
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// SplitChunk cuts a chunk of more than most bytes into several that together say the same, because NATS limits the size
// of a message. It cuts the longest text of the delta, or the arguments of its only tool call; a chunk with more than
// one choice, or one that is long elsewhere, comes back whole. The finish reason and the usage stay with the last
// piece. A chunk of a tool's result is cut in its text.
func SplitChunk(chunk []byte, most int) [][]byte {
	if len(chunk) <= most {
		return [][]byte{chunk}
	}
	if text, ok := ToolChunkText(chunk); ok && most/8 >= utf8.UTFMax {
		var out [][]byte
		for _, piece := range SplitText(text, most/8) {
			out = append(out, ToolChunk(piece))
		}
		return out
	}
	raw, _ := rawjson.Field(chunk, "choices")
	choices := rawjson.Elements(raw)
	if len(choices) != 1 {
		return [][]byte{chunk}
	}
	delta, _ := rawjson.Field(choices[0], "delta")
	text, with, only := longest(delta)
	size := most / 8 // an escape in JSON has up to six bytes, and the rest of the chunk needs room
	if len(text) <= size || size < utf8.UTFMax || len(chunk)-len(text) > len(chunk)/2 {
		return [][]byte{chunk}
	}
	var out [][]byte
	for first := true; text != ""; first = false {
		n := cutAt(text, size)
		d := only(text[:n])
		if first {
			d = with(text[:n])
		}
		text = text[n:]
		choice := rawjson.SetField(choices[0], "delta", d)
		piece := chunk
		if text != "" {
			choice = rawjson.SetField(choice, "finish_reason", []byte("null"))
			piece = rawjson.DropField(piece, "usage")
		}
		out = append(out, rawjson.SetField(piece, "choices", rawjson.Array([][]byte{choice})))
	}
	return out
}

// SplitText cuts a text into pieces of at most size bytes, never within a character; size is at least utf8.UTFMax.
func SplitText(text string, size int) (out []string) {
	for text != "" {
		n := cutAt(text, size)
		out = append(out, text[:n])
		text = text[n:]
	}
	return out
}

// cutAt returns the largest number of bytes, at most size, that ends between two characters.
func cutAt(text string, size int) int {
	n := min(size, len(text))
	for n < len(text) && n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	if n == 0 {
		return min(size, len(text)) // not UTF-8
	}
	return n
}

// longest returns the longest text of a delta, and two functions that make the delta with another text: with the
// delta's other fields, and without them.
func longest(delta []byte) (text string, with, only func(string) []byte) {
	rawjson.EachField(delta, func(key string, raw []byte) {
		if s, ok := rawjson.IsString(raw); ok && len(s) > len(text) {
			text = s
			with = func(s string) []byte { return rawjson.SetFieldString(delta, key, s) }
			only = func(s string) []byte { return rawjson.SetFieldString([]byte("{}"), key, s) }
		}
	})
	raw, _ := rawjson.Field(delta, "tool_calls")
	calls := rawjson.Elements(raw)
	if len(calls) != 1 {
		return text, with, only
	}
	for _, at := range [][2]string{{"function", "arguments"}, {"custom", "input"}} {
		inner, _ := rawjson.Field(calls[0], at[0])
		if s, _ := rawjson.FieldString(inner, at[1]); len(s) > len(text) {
			text = s
			put := func(delta, call, inner []byte, s string) []byte {
				return rawjson.SetField(delta, "tool_calls",
					rawjson.Array([][]byte{rawjson.SetField(call, at[0], rawjson.SetFieldString(inner, at[1], s))}))
			}
			with = func(s string) []byte { return put(delta, calls[0], inner, s) }
			only = func(s string) []byte {
				call := []byte("{}")
				if i, ok := rawjson.Field(calls[0], "index"); ok {
					call = rawjson.SetField(call, "index", i)
				}
				return put([]byte("{}"), call, []byte("{}"), s)
			}
		}
	}
	return text, with, only
}
