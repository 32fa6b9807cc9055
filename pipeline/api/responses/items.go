package responses

import "github.com/shallot-nats/shallot/messages/rawjson"

// Shown is an item of an input as clients read items: of a type, with a status, and a message with its text in a part.
// Clients may send it shorter; models get it as it was sent.
func Shown(item []byte) []byte {
	kind, role := rawjson.Text(item, "type"), rawjson.Text(item, "role")
	switch {
	case kind == "function_call", kind == "function_call_output", kind == "custom_tool_call",
		kind == "custom_tool_call_output":
		return add(item, `{"status":"completed"}`)
	case kind != "message" && (kind != "" || role == ""):
		return item
	}
	item = add(item, `{"type":"message","status":"completed"}`)
	s, ok := rawjson.FieldString(item, "content")
	if !ok {
		return item
	}
	part := rawjson.SetFieldString([]byte(`{"type":"input_text"}`), "text", s)
	if role == "assistant" {
		part = rawjson.SetFieldString([]byte(`{"type":"output_text","text":"","annotations":[],"logprobs":[]}`), "text", s)
	}
	return rawjson.SetField(item, "content", rawjson.Array([][]byte{part}))
}
