package model

import (
	"slices"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

// filters are the chunk filters of one streamed call, innermost first.
type filters struct {
	chain  []pipeline.ChunkFilter
	slots  map[int64]*chat.ToolSlots
	keys   []textKey // the texts seen, in order
	fields []string  // the texts beside the content, as they came first
}

// textKey is a text of a stream, and where its pieces are found.
type textKey struct {
	at    pipeline.ChunkKey
	inner string // function, custom; function_call for the legacy form; empty for the content; else the field of the text
}

// makeFilters builds the filters of the stages that the call is inside; nil if there are none. show is false if the
// stream must be held back.
func (r *run) makeFilters() (f *filters, show bool) {
	chain, show := stream.ChunkFilters(r.call, r.Filters, r.Log)
	if len(chain) == 0 {
		return nil, show
	}
	return &filters{chain: chain, slots: map[int64]*chat.ToolSlots{}}, show
}

// text passes one piece through all filters.
func (f *filters) text(k textKey, piece string) string {
	if !slices.Contains(f.keys, k) {
		f.keys = append(f.keys, k)
	}
	return stream.PassText(f.chain, k.at, piece)
}

// beside is the key of a text that a choice has beside its content: a refusal, its reasoning.
func (f *filters) beside(choice int, field string) textKey {
	i := slices.Index(f.fields, field)
	if i < 0 {
		i = len(f.fields)
		f.fields = append(f.fields, field)
	}
	return textKey{at: pipeline.ChunkKey{Choice: choice, Tool: -2 - i}, inner: field}
}

// flush returns what is held back of a choice's texts, as deltas.
func (f *filters) flush(index int64) (deltas [][]byte) {
	for _, k := range f.keys {
		if int64(k.at.Choice) != index {
			continue
		}
		text := stream.FlushText(f.chain, k.at)
		if text == "" {
			continue
		}
		switch {
		case k.at.Tool < -1:
			deltas = append(deltas, rawjson.SetFieldString([]byte("{}"), k.inner, text))
		case k.inner == "":
			deltas = append(deltas, rawjson.SetFieldString([]byte("{}"), "content", text))
		case k.inner == "function_call":
			args := rawjson.SetFieldString([]byte("{}"), "arguments", text)
			deltas = append(deltas, rawjson.SetField([]byte("{}"), "function_call", args))
		default:
			call := rawjson.SetField([]byte("{}"), k.inner, rawjson.SetFieldString([]byte("{}"), argsField(k.inner),
				text))
			call = chat.Indexed(call, int64(k.at.Tool))
			deltas = append(deltas, rawjson.SetField([]byte("{}"), "tool_calls", rawjson.Array([][]byte{call})))
		}
	}
	return deltas
}

func argsField(inner string) string {
	if inner == "custom" {
		return "input"
	}
	return "arguments"
}

// chunk passes the texts of a chunk through the filters and edits only those. It returns nil if nothing is left to
// show, and ok is false if a text is in a form that the filters cannot read.
func (f *filters) chunk(chunk []byte) (out []byte, ok bool) {
	var left [][]byte
	edited := false
	for _, of := range choicesOf(chunk) {
		c := of.raw
		d, changed, ok := f.delta(of.index, of.delta)
		if !ok {
			return nil, false
		}
		if !changed {
			left = append(left, c)
			continue
		}
		edited = true
		if !substance(d) {
			if _, role := rawjson.Field(d, "role"); !role {
				continue
			}
		}
		c = rawjson.SetField(c, "delta", d)
		if logs, has := rawjson.Field(c, "logprobs"); has && !rawjson.IsNull(logs) {
			c = rawjson.SetField(c, "logprobs", []byte("null")) // its tokens hold the unfiltered text
		}
		left = append(left, c)
	}
	switch {
	case !edited:
		return chunk, true
	case len(left) == 0:
		return nil, true
	}
	return rawjson.SetField(chunk, "choices", rawjson.Array(left)), true
}

func (f *filters) delta(index int64, delta []byte) (out []byte, changed, ok bool) {
	out, ok = delta, true
	choice := int(index)
	if raw, has := rawjson.Field(delta, "content"); has && !rawjson.IsNull(raw) {
		piece, text := rawjson.IsString(raw)
		if !text {
			return nil, false, false
		}
		if t := f.text(textKey{at: pipeline.ChunkKey{Choice: choice, Tool: -1}}, piece); t != piece {
			out, changed = rawjson.SetFieldString(out, "content", t), true
		}
	}
	rawjson.EachField(delta, func(key string, raw []byte) {
		piece, text := rawjson.IsString(raw)
		if key == "role" || key == "content" || !text || piece == "" {
			return
		}
		if t := f.text(f.beside(choice, key), piece); t != piece {
			out, changed = rawjson.SetFieldString(out, key, t), true
		}
	})
	if raw, has := rawjson.Field(delta, "function_call"); has {
		if piece, _ := rawjson.FieldString(raw, "arguments"); piece != "" {
			k := textKey{at: pipeline.ChunkKey{Choice: choice}, inner: "function_call"}
			if t := f.text(k, piece); t != piece {
				out, changed = rawjson.SetField(out, "function_call", rawjson.SetFieldString(raw, "arguments", t)), true
			}
		}
	}
	raw, _ := rawjson.Field(delta, "tool_calls")
	calls := rawjson.Elements(raw)
	edited := false
	for i, call := range calls {
		if f.slots[index] == nil {
			f.slots[index] = &chat.ToolSlots{}
		}
		t := chat.ToolCall{Raw: call}
		k := textKey{at: pipeline.ChunkKey{Choice: choice, Tool: f.slots[index].At(call)}, inner: "function"}
		if _, custom := rawjson.Field(call, "custom"); custom {
			k.inner = "custom"
		}
		piece := t.Arguments()
		if piece == "" {
			continue
		}
		if text := f.text(k, piece); text != piece {
			calls[i], edited = t.WithArguments(text).Raw, true
		}
	}
	if edited {
		out, changed = rawjson.SetField(out, "tool_calls", rawjson.Array(calls)), true
	}
	return out, changed, true
}
