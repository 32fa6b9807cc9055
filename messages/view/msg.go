package view

import (
	"bytes"
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Msg is one message of a conversation: what one role says at a time. A tool's result is a message of the role tool.
// An assistant's message has its texts, thoughts and tool calls together, though the responses wire writes them as
// several items; a user turn of the messages wire that holds results of tools is one message for each of them and one
// for the rest. A Msg is a value: edits return another one.
type Msg struct {
	// Raw is the message of a chat body; nil on the other wires, see Bytes.
	Raw []byte

	of    dialect  // nil: chat
	role  string   // not for chat
	parts [][]byte // items or blocks, raw
	home  home
}

// home is where a message stood in its request; the zero value is nowhere.
type home struct {
	place place
	turn  int    // of the messages wire: the number of the message that the parts are from, from 1
	raw   []byte // and that message
}

type place byte

const (
	inList  place = iota // among the messages or items
	inField              // the system prompt in its own field: system, instructions
	asInput              // the whole input is a string
)

// dialect reads the pieces of the wires that write a message in several.
type dialect interface {
	// content returns the part's content and the types of parts in it that are text, and how to put another one in.
	content(part []byte) (raw []byte, types []string, with func([]byte) []byte)
	// call returns the field of the arguments where the part calls a tool.
	call(part []byte) (args string, ok bool)
	// callID is the field of the id that pairs a call with its result.
	callID() string
	// resultID is the field that names the call which a result answers.
	resultID() string
	// object says that arguments are a JSON object, not JSON in a string.
	object() bool
	// text makes a part that says the text.
	text(text string) []byte
	// says reports whether a part is output of the model other than text.
	says(part []byte) bool
}

// Bytes returns all bytes of the message. Two messages with the same bytes say the same.
func (m Msg) Bytes() []byte {
	if m.of == nil {
		return m.Raw
	}
	return bytes.Join(append([][]byte{[]byte(m.role)}, m.parts...), []byte{'\n'})
}

// Role returns the role: system, developer, user, assistant, tool or function.
func (m Msg) Role() string {
	if m.of == nil {
		return rawjson.Text(m.Raw, "role")
	}
	return m.role
}

// System reports whether the message instructs: role system or developer.
func (m Msg) System() bool { r := m.Role(); return r == "system" || r == "developer" }

// Text returns what the message says, its text parts joined by a newline. Images, thoughts and the like are left out.
func (m Msg) Text() string {
	if m.of == nil {
		return textOf(rawjson.At(m.Raw, "content"), "text")
	}
	var out []string
	for _, p := range m.parts {
		if raw, types, _ := m.of.content(p); raw != nil {
			if s := textOf(raw, types...); s != "" {
				out = append(out, s)
			}
		}
	}
	return strings.Join(out, "\n")
}

// MapText returns the message with each of its texts replaced by edit's result. Everything else stays as it is.
// changed reports whether any text differs.
func (m Msg) MapText(edit func(string) string) (out Msg, changed bool) {
	if m.of == nil {
		raw, ok := rawjson.Field(m.Raw, "content")
		if !ok {
			return m, false
		}
		t := mapText(raw, edit, "text")
		if string(t) == string(raw) {
			return m, false
		}
		return Msg{Raw: rawjson.SetField(m.Raw, "content", t)}, true
	}
	return m.mapParts(func(p []byte) []byte {
		raw, types, with := m.of.content(p)
		if raw == nil {
			return p
		}
		if t := mapText(raw, edit, types...); string(t) != string(raw) {
			return with(t)
		}
		return p
	})
}

func (m Msg) mapParts(edit func([]byte) []byte) (out Msg, changed bool) {
	out = m
	out.parts = slices.Clone(m.parts)
	for i, p := range m.parts {
		out.parts[i] = edit(p)
		changed = changed || !bytes.Equal(out.parts[i], p)
	}
	if !changed {
		return m, false
	}
	return out, true
}

// WithText returns the message with the text as its content. On wires that write several parts, those that are no text
// stay.
func (m Msg) WithText(text string) Msg {
	if m.of == nil {
		return Msg{Raw: rawjson.SetFieldString(m.Raw, "content", text)}
	}
	done := false
	out := m
	out.parts = nil
	for _, p := range m.parts {
		raw, _, with := m.of.content(p)
		switch {
		case raw == nil: // a call, a thought, an image
			out.parts = append(out.parts, p)
		case !done:
			out.parts, done = append(out.parts, with(rawjson.Encode(text))), true
		}
	}
	if !done {
		out.parts = append(out.parts, m.of.text(text))
	}
	return out
}

// WithoutEmptyTexts drops texts that say nothing; ok is false if nothing is left of the message.
func (m Msg) WithoutEmptyTexts() (out Msg, ok bool) {
	if m.of == nil {
		raw, has := rawjson.Field(m.Raw, "content")
		if !has {
			return m, true
		}
		kept := withoutEmpty(raw, "text")
		if kept == nil {
			return Msg{}, false
		}
		return Msg{Raw: set(m.Raw, "content", kept)}, true
	}
	out = m
	out.parts = nil
	for _, p := range m.parts {
		raw, types, with := m.of.content(p)
		if raw == nil {
			out.parts = append(out.parts, p)
		} else if kept := withoutEmpty(raw, types...); kept != nil {
			if !bytes.Equal(kept, raw) {
				p = with(kept)
			}
			out.parts = append(out.parts, p)
		}
	}
	return out, len(out.parts) > 0
}

// Kinds returns the types of the message's parts that are neither text nor tool calls: image_url, thinking.
func (m Msg) Kinds() (out []string) {
	if m.of == nil {
		return kinds(rawjson.At(m.Raw, "content"), "text")
	}
	for _, p := range m.parts {
		raw, types, _ := m.of.content(p)
		if _, call := m.of.call(p); raw == nil && !call {
			out = append(out, rawjson.Text(p, "type"))
		}
		out = append(out, kinds(raw, types...)...)
	}
	return out
}

// Name returns the name that the message itself gives: of a tool's result, where the wire has one.
func (m Msg) Name() string { return rawjson.Text(m.Raw, "name") }

// ToolCallID is the id of the call that a result answers.
func (m Msg) ToolCallID() string {
	if m.of == nil {
		return rawjson.Text(m.Raw, "tool_call_id")
	}
	if m.role != "tool" || len(m.parts) == 0 {
		return ""
	}
	return rawjson.Text(m.parts[0], m.of.resultID())
}

// WithToolCallID returns a result that answers the call with that id.
func (m Msg) WithToolCallID(id string) Msg {
	if m.of == nil {
		return Msg{Raw: rawjson.SetFieldString(m.Raw, "tool_call_id", id)}
	}
	out, _ := m.mapParts(func(p []byte) []byte { return rawjson.SetFieldString(p, m.of.resultID(), id) })
	return out
}

// ToolCalls returns the tool calls of an assistant message.
func (m Msg) ToolCalls() []ToolCall {
	if m.of == nil {
		elems := rawjson.Elements(rawjson.At(m.Raw, "tool_calls"))
		out := make([]ToolCall, len(elems))
		for i, e := range elems {
			out[i] = ToolCall{Raw: e}
		}
		return out
	}
	var out []ToolCall
	for _, p := range m.parts {
		if _, ok := m.of.call(p); ok {
			out = append(out, ToolCall{Raw: p, of: m.of})
		}
	}
	return out
}

// WithToolCalls returns the message with other tool calls. They take the places of those that it has, in order.
func (m Msg) WithToolCalls(calls []ToolCall) Msg {
	if m.of == nil {
		elems := make([][]byte, len(calls))
		for i, c := range calls {
			elems[i] = c.Raw
		}
		return Msg{Raw: rawjson.SetField(m.Raw, "tool_calls", rawjson.Array(elems))}
	}
	out := m
	out.parts = nil
	for _, p := range m.parts {
		if _, ok := m.of.call(p); !ok {
			out.parts = append(out.parts, p)
		} else if len(calls) > 0 {
			out.parts, calls = append(out.parts, calls[0].Raw), calls[1:]
		}
	}
	for _, c := range calls {
		out.parts = append(out.parts, c.Raw)
	}
	return out
}

// CallsOnly returns a message that holds nothing but the calls, for whoever wants to know what they cost.
func (m Msg) CallsOnly(calls []ToolCall) Msg {
	if m.of == nil {
		return Msg{Raw: []byte(`{"role":"assistant"}`)}.WithToolCalls(calls)
	}
	return Msg{of: m.of, role: "assistant"}.WithToolCalls(calls)
}

// says reports whether the message holds output of the model.
func (m Msg) says() bool {
	if m.of == nil {
		return chatSays(m)
	}
	return m.Text() != "" || slices.ContainsFunc(m.parts, m.of.says)
}

// NewResult makes the result of one of the message's calls, in the message's own wire.
func (m Msg) NewResult(of ToolCall, text string) Msg {
	if v, ok := m.of.(View); ok {
		return v.NewResult(of, text)
	}
	return chat{}.NewResult(of, text)
}
