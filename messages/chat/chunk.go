package chat

import (
	"slices"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
)

// Says reports whether a chunk of a stream says something: text, a tool call or a refusal (or audio, or a legacy
// function call) in any choice. Once the caller has seen such a chunk, no standby can take over; while only roles and
// thoughts have come, one still can.
func Says(chunk []byte) bool {
	raw, _ := rawjson.Field(chunk, "choices")
	return slices.ContainsFunc(rawjson.Elements(raw), func(c []byte) bool {
		delta, _ := rawjson.Field(c, "delta")
		return DeltaSays(delta)
	})
}

// DeltaSays is Says for one delta.
func DeltaSays(delta []byte) bool {
	says := false
	rawjson.EachField(delta, func(key string, v []byte) {
		switch key {
		case "content", "refusal", "tool_calls", "audio", "function_call":
			switch string(v) {
			case "null", `""`, "[]", "{}":
			default:
				says = true
			}
		}
	})
	return says
}

// Thinks reports whether a chunk holds a piece of the model's thoughts, in any choice. A caller may see them before the
// first chunk that says something; they do not keep a standby from taking over.
func Thinks(chunk []byte) bool {
	raw, _ := rawjson.Field(chunk, "choices")
	return slices.ContainsFunc(rawjson.Elements(raw), func(c []byte) bool {
		delta, _ := rawjson.Field(c, "delta")
		return slices.ContainsFunc(view.Thoughts, func(key string) bool {
			v, ok := rawjson.Field(delta, key)
			return ok && !nothing(v)
		})
	})
}

// WantsUsage reports whether a request asks for the usage chunk of a stream (stream_options.include_usage).
func WantsUsage(request []byte) bool {
	o, _ := rawjson.Field(request, "stream_options")
	v, _ := rawjson.Field(o, "include_usage")
	return string(v) == "true"
}

// Replay turns a whole chat reply into the chunks of a stream that adds up to it, for replies that were never streamed:
// cache hits, answers of stages, streams that were held back. For each choice the role comes first, then what else the
// message says, its text, its refusal, its tool calls, and the finish reason. The usage chunk comes last, and only if
// usage is true. A reply without choices gives no chunks.
func Replay(reply []byte, usage bool) [][]byte {
	top := envelope(reply)
	var out [][]byte
	emit := func(choice *fields) { out = append(out, chunkOf(top, rawjson.Array([][]byte{choice.raw()}), nil)) }
	for i, c := range Choices(reply) {
		replayChoice(c, int64(i), emit)
	}
	u, ok := rawjson.Field(reply, "usage")
	if len(out) > 0 && usage && ok && !rawjson.IsNull(u) {
		out = append(out, chunkOf(top, []byte("[]"), u))
	}
	return out
}

// envelope is what all chunks of a reply have in common: everything but object, choices and usage.
func envelope(reply []byte) fields {
	var top fields
	rawjson.EachField(reply, func(key string, raw []byte) {
		switch key {
		case "choices", "usage":
		case "object":
			top.set(key, []byte(`"chat.completion.chunk"`))
		default:
			top.set(key, raw)
		}
	})
	if !slices.Contains(top.keys, "object") {
		top.set("object", []byte(`"chat.completion.chunk"`))
	}
	return top
}

func chunkOf(top fields, choices, usage []byte) []byte {
	f := fields{keys: slices.Clone(top.keys), vals: slices.Clone(top.vals)}
	f.set("choices", choices)
	if usage != nil {
		f.set("usage", usage)
	}
	return f.raw()
}

// Chunk makes one chunk with one choice in the style of another chunk or reply: the same id, created, model and
// whatever else they have in common. finish is a raw value; nil is null.
func Chunk(like []byte, index int64, delta, finish []byte) []byte {
	return chunkOf(envelope(like), rawjson.Array([][]byte{deltaChoice(index, delta, finish).raw()}), nil)
}

// UsageChunk makes the last chunk of a stream, which has no choices.
func UsageChunk(like, usage []byte) []byte { return chunkOf(envelope(like), []byte("[]"), usage) }

func deltaChoice(index int64, delta, finish []byte) *fields {
	f := &fields{}
	f.set("index", rawjson.Encode(index))
	f.set("delta", delta)
	if finish == nil {
		finish = []byte("null")
	}
	f.set("finish_reason", finish)
	return f
}

func replayChoice(c Choice, at int64, emit func(*fields)) {
	index := at
	if v, ok := rawjson.Field(c.Raw, "index"); ok {
		if n, ok := rawjson.Int(v); ok {
			index = n
		}
	}
	var rest, open, more fields
	var tools []ToolCall
	var texts [2][]byte // content, refusal
	open.set("role", []byte(`"assistant"`))
	rawjson.EachField(c.Message().Raw, func(key string, v []byte) {
		s, text := rawjson.IsString(v)
		switch {
		case key == "role":
			open.set(key, v)
		case key == "content" && text && s != "":
			open.set(key, []byte(`""`))
			texts[0] = v
		case key == "refusal" && text && s != "":
			texts[1] = v
		case key == "tool_calls" && isArray(v):
			tools = Msg{Raw: c.Message().Raw}.ToolCalls()
			if len(tools) == 0 {
				open.set(key, v)
			}
		case rawjson.IsNull(v) || text && s == "":
			open.set(key, v)
		default:
			more.set(key, v)
		}
	})
	logs, hasLogs := rawjson.Field(c.Raw, "logprobs")
	rawjson.EachField(c.Raw, func(key string, v []byte) {
		if key != "index" && key != "message" && key != "logprobs" && key != "finish_reason" {
			rest.set(key, v)
		}
	})
	say := func(delta []byte) {
		f := deltaChoice(index, delta, nil)
		if hasLogs && !rawjson.IsNull(logs) {
			f.set("logprobs", logs)
			hasLogs = false
		}
		emit(f)
	}
	emit(deltaChoice(index, open.raw(), nil))
	if len(more.keys) > 0 {
		emit(deltaChoice(index, more.raw(), nil))
	}
	for i, key := range []string{"content", "refusal"} {
		if texts[i] != nil {
			say(rawjson.SetField([]byte("{}"), key, texts[i]))
		}
	}
	for i, t := range tools {
		say(rawjson.SetField([]byte("{}"), "tool_calls", rawjson.Array([][]byte{Indexed(t.Raw, int64(i))})))
	}
	finish, _ := rawjson.Field(c.Raw, "finish_reason")
	last := deltaChoice(index, []byte("{}"), finish)
	if hasLogs {
		last.set("logprobs", logs)
	}
	for i, key := range rest.keys {
		last.set(key, rest.vals[i])
	}
	emit(last)
}

// Indexed returns a tool call as a stream has it: with its position in front.
func Indexed(call []byte, index int64) []byte {
	f := fields{keys: []string{"index"}, vals: [][]byte{rawjson.Encode(index)}}
	rawjson.EachField(call, func(key string, raw []byte) {
		if key != "index" {
			f.set(key, raw)
		}
	})
	return f.raw()
}
