// Package events reads, edits, cuts, replays and sums up the streams of all wires. A piece of a stream is one JSON
// object: a chunk of the chat wire, or the data of an event of the others, whose name is its field type. Numbers of
// events (sequence_number) are made where a stream goes out, see Number.
package events

import (
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Kind says what a text of a stream is.
type Kind byte

// The kinds of text.
const (
	Answer Kind = iota
	Refusal
	Thought // a reasoning text that nobody signed
	Summary // of the reasoning
	Args    // arguments of a tool call, or a custom tool's input
	Signed  // a reasoning text with a signature over it: nobody may change it
	Signature
)

// Key tells the texts of one stream apart: the place of the item or block, and of the part in it.
type Key struct {
	Item, Part int
	Kind       Kind
}

// Edit returns what stands in a text's place. whole is false for a piece of the text, and true where an event repeats
// all of it.
type Edit func(at Key, whole bool, text string) string

// Name is the event name of a piece; empty on the chat wire.
func Name(piece []byte) string { return rawjson.Text(piece, "type") }

// Says reports whether a piece shows the caller something, so that no standby can take over after it. On the chat wire
// thoughts do not count. On the others they do: a second stream could not begin with events that were sent already.
func Says(piece []byte) bool {
	name := Name(piece)
	switch {
	case name == "":
		return chat.Says(piece)
	case name == "response.output_item.added":
		kind := rawjson.Text(rawjson.At(piece, "item"), "type")
		return kind != "message" && kind != "reasoning"
	case name == "content_block_start":
		block := rawjson.At(piece, "content_block")
		kind := rawjson.Text(block, "type")
		return kind != "text" && kind != "thinking" || rawjson.Text(block, "text") != ""
	case name == "content_block_delta", strings.HasSuffix(name, ".delta"):
		return true
	}
	return false
}

// Ends reports whether a piece belongs to the end of the whole reply, which is sent when the final reply is known.
func Ends(piece []byte) bool {
	switch Name(piece) {
	case "response.completed", "response.incomplete", "response.failed", "message_delta", "message_stop":
		return true
	}
	return false
}

// Last reports whether nothing of the reply is missing after this piece.
func Last(piece []byte) bool {
	switch Name(piece) {
	case "response.completed", "response.incomplete", "message_stop":
		return true
	}
	return false
}

// Ephemeral reports whether a piece says nothing of the reply: a sign of life.
func Ephemeral(piece []byte) bool { name := Name(piece); return name == "ping" || name == "keepalive" }

// Texts edits the texts of an event in place; everything else keeps its bytes. It leaves pieces of the chat wire alone.
func Texts(event []byte, edit Edit) []byte {
	name := Name(event)
	switch {
	case strings.HasPrefix(name, "response."):
		return responseTexts(name, event, edit)
	case strings.HasPrefix(name, "content_block_"):
		return blockTexts(name, event, edit)
	}
	return event
}

// Delta returns the text of an event that carries a piece of one.
func Delta(event []byte) (at Key, text string, ok bool) {
	name := Name(event)
	if !strings.HasSuffix(name, "delta") {
		return at, "", false
	}
	Texts(event, func(k Key, _ bool, s string) string {
		at, text, ok = k, s, true
		return s
	})
	return at, text, ok
}

// WithDelta returns the event with another piece of text.
func WithDelta(event []byte, text string) []byte {
	return Texts(event, func(Key, bool, string) string { return text })
}

// Closes returns the item or block that an event closes a text of; -1 for events that close nothing.
func Closes(event []byte) int {
	switch name := Name(event); {
	case name == "content_block_stop":
		return integer(event, "index")
	case strings.HasPrefix(name, "response.") && strings.HasSuffix(name, ".done"):
		return integer(event, "output_index")
	}
	return -1
}

// Mark names an event that gives a reply its shape, so that two streams of one reply can be compared; empty for deltas
// and signs of life.
func Mark(event []byte) string {
	name := Name(event)
	if name == "" || strings.HasSuffix(name, "delta") && name != "message_delta" || Ephemeral(event) {
		return ""
	}
	mark := name
	for _, key := range []string{"output_index", "content_index", "summary_index", "annotation_index", "index"} {
		if raw, ok := rawjson.Field(event, key); ok {
			mark += " " + string(raw)
		}
	}
	return mark
}

// Number numbers an event of the responses wire and reports whether it is one that counts. An event that has the number
// already keeps its bytes.
func Number(event []byte, n int) (out []byte, counts bool) {
	have, numbered := rawjson.Field(event, "sequence_number")
	if !numbered && !strings.HasPrefix(Name(event), "response.") {
		return event, false
	}
	want := rawjson.Encode(n)
	if string(have) == string(want) {
		return event, true
	}
	return rawjson.SetField(event, "sequence_number", want), true
}

// Split cuts a piece of more than most bytes into several that together say the same, where its text can be cut.
func Split(piece []byte, most int) [][]byte {
	if len(piece) <= most || Name(piece) == "" {
		return chat.SplitChunk(piece, most)
	}
	_, text, ok := Delta(piece)
	if !ok || most/8 < 8 {
		return [][]byte{piece}
	}
	var out [][]byte
	for _, part := range chat.SplitText(text, most/8) {
		out = append(out, WithDelta(piece, part))
	}
	return out
}

// Replay turns a whole reply into the stream that adds up to it, for replies that were never streamed. The request says
// what the caller of the chat wire wants. A reply that is not of the wire gives no pieces.
func Replay(w messages.Wire, request, reply []byte) [][]byte {
	switch w {
	case messages.ResponsesWire:
		return replayResponse(reply)
	case messages.MessagesWire:
		return replayMessage(reply)
	}
	return chat.Replay(reply, chat.WantsUsage(request))
}

// Assemble returns the reply that a stream adds up to. The error is chat.ErrNoChunks if there is none.
func Assemble(w messages.Wire, pieces [][]byte) ([]byte, error) {
	switch w {
	case messages.ResponsesWire:
		return assembleResponse(pieces)
	case messages.MessagesWire:
		return assembleMessage(pieces)
	}
	return chat.Assemble(pieces)
}

func integer(obj []byte, key string) int {
	n, _ := rawjson.Int(rawjson.At(obj, key))
	return int(n)
}

// editField passes a string field through edit.
func editField(obj []byte, key string, edit func(string) string) []byte {
	s, ok := rawjson.FieldString(obj, key)
	if !ok {
		return obj
	}
	if t := edit(s); t != s {
		return rawjson.SetFieldString(obj, key, t)
	}
	return obj
}

// inside edits what a field holds.
func inside(obj []byte, key string, edit func([]byte) []byte) []byte {
	raw, ok := rawjson.Field(obj, key)
	if !ok {
		return obj
	}
	if t := edit(raw); string(t) != string(raw) {
		return rawjson.SetField(obj, key, t)
	}
	return obj
}

// each edits the elements of an array.
func each(raw []byte, edit func(i int, e []byte) []byte) []byte {
	elems := rawjson.Elements(raw)
	was := slices.Clone(elems)
	for i, e := range elems {
		elems[i] = edit(i, e)
	}
	if slices.EqualFunc(was, elems, func(a, b []byte) bool { return string(a) == string(b) }) {
		return raw
	}
	return rawjson.Array(elems)
}

// object writes an event: its type and then pairs of key and raw value.
func object(kind string, pairs ...any) []byte {
	out := rawjson.SetFieldString([]byte("{}"), "type", kind)
	for i := 0; i+1 < len(pairs); i += 2 {
		key, _ := pairs[i].(string)
		raw, ok := pairs[i+1].([]byte)
		if !ok {
			raw = rawjson.Encode(pairs[i+1])
		}
		out = rawjson.SetField(out, key, raw)
	}
	return out
}
