package view

import (
	"encoding/json"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// ToolCall is one tool call of an assistant message as it came.
type ToolCall struct {
	Raw []byte

	of dialect // nil: chat
}

// ID is the id that the call's result names.
func (t ToolCall) ID() string { return rawjson.Text(t.Raw, t.idField()) }

// WithID returns the call with another id.
func (t ToolCall) WithID(id string) ToolCall {
	return ToolCall{Raw: rawjson.SetFieldString(t.Raw, t.idField(), id), of: t.of}
}

func (t ToolCall) idField() string {
	if t.of == nil {
		return "id"
	}
	return t.of.callID()
}

// Name is the name of the called tool: of a function, or of a custom tool.
func (t ToolCall) Name() string {
	if t.of != nil {
		return rawjson.Text(t.Raw, "name")
	}
	raw, _ := t.inner()
	return rawjson.Text(raw, "name")
}

// Custom reports whether the tool takes free text and not JSON.
func (t ToolCall) Custom() bool {
	if t.of == nil {
		_, key := t.inner()
		return key == "custom"
	}
	return rawjson.Text(t.Raw, "type") == "custom_tool_call"
}

// Arguments is the argument text as the model wrote it; for a custom tool its input.
func (t ToolCall) Arguments() string {
	if t.of != nil {
		key, _ := t.of.call(t.Raw)
		raw := rawjson.At(t.Raw, key)
		if s, ok := rawjson.IsString(raw); ok {
			return s
		}
		return string(raw)
	}
	raw, key := t.inner()
	return rawjson.Text(raw, argsField[key])
}

// WithArguments returns the call with other argument text; a custom tool's input likewise. Where the wire has an object
// in its place, a text that is not one leaves the call as it is.
func (t ToolCall) WithArguments(text string) ToolCall {
	if t.of != nil {
		key, _ := t.of.call(t.Raw)
		switch {
		case !t.of.object():
			return ToolCall{Raw: rawjson.SetFieldString(t.Raw, key, text), of: t.of}
		case json.Valid([]byte(text)) && text[0] == '{':
			return ToolCall{Raw: rawjson.SetField(t.Raw, key, []byte(text)), of: t.of}
		}
		return t
	}
	raw, key := t.inner()
	if key == "" {
		return t
	}
	return ToolCall{Raw: rawjson.SetField(t.Raw, key, rawjson.SetFieldString(raw, argsField[key], text))}
}

var argsField = map[string]string{"function": "arguments", "custom": "input"}

func (t ToolCall) inner() (raw []byte, key string) {
	for _, key := range []string{"function", "custom"} {
		if raw, ok := rawjson.Field(t.Raw, key); ok {
			return raw, key
		}
	}
	return nil, ""
}

// Choice is one answer of a reply as it came.
type Choice struct {
	// Raw is the choice of a chat reply; on the other wires it is the whole reply.
	Raw []byte

	of  View // nil: chat
	msg Msg
}

// Message returns the choice's message.
func (c Choice) Message() Msg {
	if c.of == nil {
		return Msg{Raw: rawjson.At(c.Raw, "message")}
	}
	return c.msg
}

// WithMessage returns the choice with another message.
func (c Choice) WithMessage(m Msg) Choice {
	if c.of == nil {
		return Choice{Raw: rawjson.SetField(c.Raw, "message", m.Raw)}
	}
	c.msg = m
	return c
}

// Finish says how the answer ended: one of the Finish constants, the provider's own word, or empty.
func (c Choice) Finish() string {
	switch v := c.of.(type) {
	case responses:
		return v.finish(c.Raw)
	case anthropic:
		return v.finish(c.Raw)
	case embeddings:
		return FinishStop
	}
	return rawjson.Text(c.Raw, "finish_reason")
}
