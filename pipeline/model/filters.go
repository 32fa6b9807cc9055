package model

import (
	"slices"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// filters are the chunk filters of one streamed call, innermost first.
type filters struct {
	chain []pipeline.ChunkFilter
	slots map[int64]*messages.ToolSlots
	keys  []textKey // the texts seen, in order
}

// textKey is a text of a stream and where its pieces stand.
type textKey struct {
	at    pipeline.ChunkKey
	inner string // function, custom; function_call for the legacy form; empty for the content
}

// makeFilters builds the filters of the stages that the call is inside; nil if there are none. show is false if the
// stream is to be held back.
func (r *run) makeFilters() (f *filters, show bool) {
	chain, show := pipeline.ChunkFilters(r.call, r.Filters, r.Log)
	if len(chain) == 0 {
		return nil, show
	}
	return &filters{chain: chain, slots: map[int64]*messages.ToolSlots{}}, show
}

// text passes one piece through all filters.
func (f *filters) text(k textKey, piece string) string {
	if !slices.Contains(f.keys, k) {
		f.keys = append(f.keys, k)
	}
	return pipeline.PassText(f.chain, k.at, piece)
}

// flush returns what is held back of a choice's texts, as deltas.
func (f *filters) flush(index int64) (deltas [][]byte) {
	for _, k := range f.keys {
		if int64(k.at.Choice) != index {
			continue
		}
		text := pipeline.FlushText(f.chain, k.at)
		if text == "" {
			continue
		}
		switch k.inner {
		case "":
			deltas = append(deltas, messages.SetFieldString([]byte("{}"), "content", text))
		case "function_call":
			args := messages.SetFieldString([]byte("{}"), "arguments", text)
			deltas = append(deltas, messages.SetField([]byte("{}"), "function_call", args))
		default:
			call := messages.SetField([]byte("{}"), k.inner, messages.SetFieldString([]byte("{}"), argsField(k.inner), text))
			call = messages.Indexed(call, int64(k.at.Tool))
			deltas = append(deltas, messages.SetField([]byte("{}"), "tool_calls", messages.Array([][]byte{call})))
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
	raw, _ := messages.Field(chunk, "choices")
	var left [][]byte
	edited := false
	for _, c := range messages.Elements(raw) {
		delta, _ := messages.Field(c, "delta")
		d, changed, ok := f.delta(choiceIndex(c), delta)
		if !ok {
			return nil, false
		}
		if !changed {
			left = append(left, c)
			continue
		}
		edited = true
		if !substance(d) {
			if _, role := messages.Field(d, "role"); !role {
				continue
			}
		}
		c = messages.SetField(c, "delta", d)
		if logs, has := messages.Field(c, "logprobs"); has && !messages.IsNull(logs) {
			c = messages.SetField(c, "logprobs", []byte("null")) // its tokens are the unfiltered text
		}
		left = append(left, c)
	}
	switch {
	case !edited:
		return chunk, true
	case len(left) == 0:
		return nil, true
	}
	return messages.SetField(chunk, "choices", messages.Array(left)), true
}

func (f *filters) delta(index int64, delta []byte) (out []byte, changed, ok bool) {
	out, ok = delta, true
	choice := int(index)
	if raw, has := messages.Field(delta, "content"); has && !messages.IsNull(raw) {
		piece, text := messages.IsString(raw)
		if !text {
			return nil, false, false
		}
		if t := f.text(textKey{at: pipeline.ChunkKey{Choice: choice, Tool: -1}}, piece); t != piece {
			out, changed = messages.SetFieldString(out, "content", t), true
		}
	}
	if raw, has := messages.Field(delta, "function_call"); has {
		if piece, _ := messages.FieldString(raw, "arguments"); piece != "" {
			k := textKey{at: pipeline.ChunkKey{Choice: choice}, inner: "function_call"}
			if t := f.text(k, piece); t != piece {
				out, changed = messages.SetField(out, "function_call", messages.SetFieldString(raw, "arguments", t)), true
			}
		}
	}
	raw, _ := messages.Field(delta, "tool_calls")
	calls := messages.Elements(raw)
	edited := false
	for i, call := range calls {
		if f.slots[index] == nil {
			f.slots[index] = &messages.ToolSlots{}
		}
		t := messages.ToolCall{Raw: call}
		k := textKey{at: pipeline.ChunkKey{Choice: choice, Tool: f.slots[index].At(call)}, inner: "function"}
		if _, custom := messages.Field(call, "custom"); custom {
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
		out, changed = messages.SetField(out, "tool_calls", messages.Array(calls)), true
	}
	return out, changed, true
}
