package events

import (
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// textEvent is an event of the responses wire with one text in a field of its own.
type textEvent struct {
	kind  Kind
	field string
	part  string // the field that numbers the part; empty: the item has one text
}

var textEvents = map[string]textEvent{
	"response.output_text.delta":            {Answer, "delta", "content_index"},
	"response.output_text.done":             {Answer, "text", "content_index"},
	"response.refusal.delta":                {Refusal, "delta", "content_index"},
	"response.refusal.done":                 {Refusal, "refusal", "content_index"},
	"response.reasoning_text.delta":         {Thought, "delta", "content_index"},
	"response.reasoning_text.done":          {Thought, "text", "content_index"},
	"response.reasoning_summary_text.delta": {Summary, "delta", "summary_index"},
	"response.reasoning_summary_text.done":  {Summary, "text", "summary_index"},
	"response.function_call_arguments.delta": {
		Args, "delta", ""},
	"response.function_call_arguments.done": {Args, "arguments", ""},
	"response.custom_tool_call_input.delta": {Args, "delta", ""},
	"response.custom_tool_call_input.done":  {Args, "input", ""},
	"response.mcp_call_arguments.delta":     {Args, "delta", ""},
	"response.mcp_call_arguments.done":      {Args, "arguments", ""},
	"response.code_interpreter_call_code.delta": {
		Thought, "delta", ""},
	"response.code_interpreter_call_code.done": {Thought, "code", ""},
}

func responseTexts(name string, event []byte, edit Edit) []byte {
	item := integer(event, "output_index")
	whole := strings.HasSuffix(name, ".done")
	if t, ok := textEvents[name]; ok {
		at := Key{Item: item, Kind: t.kind}
		if t.part != "" {
			at.Part = integer(event, t.part)
		}
		out := editField(event, t.field, func(s string) string { return edit(at, whole, s) })
		if string(out) != string(event) && t.kind == Answer {
			out = withoutLogprobs(out) // they spell the text as it was
		}
		return out
	}
	switch name {
	case "response.content_part.added", "response.content_part.done":
		return inside(event, "part", func(p []byte) []byte {
			return partTexts(p, item, integer(event, "content_index"), whole, edit)
		})
	case "response.reasoning_summary_part.added", "response.reasoning_summary_part.done":
		return inside(event, "part", func(p []byte) []byte {
			return partTexts(p, item, integer(event, "summary_index"), whole, edit)
		})
	case "response.output_item.added", "response.output_item.done":
		return inside(event, "item", func(raw []byte) []byte { return ItemTexts(raw, item, whole, edit) })
	}
	return event
}

func withoutLogprobs(obj []byte) []byte {
	if raw, ok := rawjson.Field(obj, "logprobs"); ok && string(raw) != "[]" && string(raw) != "null" {
		return rawjson.SetField(obj, "logprobs", []byte("[]"))
	}
	return obj
}

// ItemTexts edits the texts of an output item of the responses wire.
func ItemTexts(raw []byte, item int, whole bool, edit Edit) []byte {
	parts := func(p []byte) []byte {
		return each(p, func(i int, p []byte) []byte { return partTexts(p, item, i, whole, edit) })
	}
	args := func(s string) string { return edit(Key{Item: item, Kind: Args}, whole, s) }
	switch rawjson.Text(raw, "type") {
	case "message":
		return inside(raw, "content", parts)
	case "reasoning":
		return inside(inside(raw, "summary", parts), "content", parts)
	case "function_call", "mcp_call":
		return editField(raw, "arguments", args)
	case "custom_tool_call":
		return editField(raw, "input", args)
	case "code_interpreter_call":
		return editField(raw, "code", func(s string) string { return edit(Key{Item: item, Kind: Thought}, whole, s) })
	}
	return raw
}

var partKinds = map[string]Kind{
	"output_text": Answer, "text": Answer, "refusal": Refusal, "reasoning_text": Thought, "summary_text": Summary,
}

func partTexts(part []byte, item, index int, whole bool, edit Edit) []byte {
	name := rawjson.Text(part, "type")
	kind, ok := partKinds[name]
	if !ok {
		return part
	}
	key := "text"
	if kind == Refusal {
		key = "refusal"
	}
	at := Key{Item: item, Part: index, Kind: kind}
	out := editField(part, key, func(s string) string { return edit(at, whole, s) })
	if string(out) != string(part) {
		out = withoutLogprobs(out)
	}
	return out
}

func replayResponse(reply []byte) (out [][]byte) {
	output, ok := rawjson.Field(reply, "output")
	if !ok {
		return nil
	}
	begun := rawjson.SetFieldString(rawjson.SetField(reply, "output", []byte("[]")), "status", "in_progress")
	for _, key := range []string{"usage", "incomplete_details", "completed_at", "error"} {
		if _, has := rawjson.Field(begun, key); has {
			begun = rawjson.SetField(begun, key, []byte("null"))
		}
	}
	emit := func(events ...[]byte) {
		for _, e := range events {
			out = append(out, rawjson.SetField(e, "sequence_number", rawjson.Encode(len(out))))
		}
	}
	emit(object("response.created", "response", begun), object("response.in_progress", "response", begun))
	for i, item := range rawjson.Elements(output) {
		emit(replayItem(item, i)...)
	}
	name := "response.completed"
	switch rawjson.Text(reply, "status") {
	case "incomplete":
		name = "response.incomplete"
	case "failed", "cancelled":
		name = "response.failed"
	}
	emit(object(name, "response", reply))
	return out
}

func replayItem(item []byte, index int) (out [][]byte) {
	id := rawjson.Text(item, "id")
	at := func(kind string, pairs ...any) {
		out = append(out, object(kind, append([]any{"item_id", id, "output_index", index}, pairs...)...))
	}
	begun := item
	if _, ok := rawjson.Field(item, "status"); ok {
		begun = rawjson.SetFieldString(begun, "status", "in_progress")
	}
	added := func(raw []byte) {
		out = append(out, object("response.output_item.added", "output_index", index, "item", raw))
	}
	switch rawjson.Text(item, "type") {
	case "message":
		added(rawjson.SetField(begun, "content", []byte("[]")))
		for j, p := range rawjson.Elements(rawjson.At(item, "content")) {
			replayPart(p, j, at)
		}
	case "reasoning":
		begun = rawjson.DropField(begun, "encrypted_content")
		if _, ok := rawjson.Field(begun, "content"); ok {
			begun = rawjson.SetField(begun, "content", []byte("[]"))
		}
		added(rawjson.SetField(begun, "summary", []byte("[]")))
		for j, p := range rawjson.Elements(rawjson.At(item, "summary")) {
			text := rawjson.Text(p, "text")
			at("response.reasoning_summary_part.added", "summary_index", j, "part",
				rawjson.SetFieldString(p, "text", ""))
			at("response.reasoning_summary_text.delta", "summary_index", j, "delta", text)
			at("response.reasoning_summary_text.done", "summary_index", j, "text", text)
			at("response.reasoning_summary_part.done", "summary_index", j, "part", p)
		}
		for j, p := range rawjson.Elements(rawjson.At(item, "content")) {
			replayPart(p, j, at)
		}
	case "function_call":
		added(rawjson.SetFieldString(begun, "arguments", ""))
		at("response.function_call_arguments.delta", "delta", rawjson.Text(item, "arguments"))
		at("response.function_call_arguments.done", "arguments", rawjson.Text(item, "arguments"))
	case "custom_tool_call":
		added(rawjson.SetFieldString(begun, "input", ""))
		at("response.custom_tool_call_input.delta", "delta", rawjson.Text(item, "input"))
		at("response.custom_tool_call_input.done", "input", rawjson.Text(item, "input"))
	default:
		added(begun)
	}
	return append(out, object("response.output_item.done", "output_index", index, "item", item))
}

func replayPart(p []byte, j int, at func(kind string, pairs ...any)) {
	empty := []byte("[]")
	switch rawjson.Text(p, "type") {
	case "output_text":
		text := rawjson.Text(p, "text")
		begun := withoutLogprobs(rawjson.SetFieldString(p, "text", ""))
		if _, ok := rawjson.Field(p, "annotations"); ok {
			begun = rawjson.SetField(begun, "annotations", empty)
		}
		logs, ok := rawjson.Field(p, "logprobs")
		if !ok || rawjson.IsNull(logs) {
			logs = empty
		}
		at("response.content_part.added", "content_index", j, "part", begun)
		at("response.output_text.delta", "content_index", j, "delta", text, "logprobs", logs)
		at("response.output_text.done", "content_index", j, "text", text, "logprobs", logs)
	case "refusal":
		text := rawjson.Text(p, "refusal")
		at("response.content_part.added", "content_index", j, "part", rawjson.SetFieldString(p, "refusal", ""))
		at("response.refusal.delta", "content_index", j, "delta", text)
		at("response.refusal.done", "content_index", j, "refusal", text)
	case "reasoning_text":
		text := rawjson.Text(p, "text")
		at("response.content_part.added", "content_index", j, "part", rawjson.SetFieldString(p, "text", ""))
		at("response.reasoning_text.delta", "content_index", j, "delta", text)
		at("response.reasoning_text.done", "content_index", j, "text", text)
	default:
		at("response.content_part.added", "content_index", j, "part", p)
	}
	at("response.content_part.done", "content_index", j, "part", p)
}

// assembleResponse takes the response of the event that ends the stream. Some servers leave its output empty; then it
// is that of the finished items.
func assembleResponse(pieces [][]byte) ([]byte, error) {
	var items [][]byte
	for _, p := range pieces {
		if rawjson.Text(p, "type") == "response.output_item.done" {
			items = append(items, rawjson.At(p, "item"))
		}
	}
	for _, p := range slices.Backward(pieces) {
		reply, ok := rawjson.Field(p, "response")
		if !ok || !Ends(p) {
			continue
		}
		if output := rawjson.At(reply, "output"); len(items) > 0 && len(rawjson.Elements(output)) == 0 {
			reply = rawjson.SetField(reply, "output", rawjson.Array(items))
		}
		return reply, nil
	}
	return nil, chat.ErrNoChunks
}
