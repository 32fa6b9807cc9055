// Package chat is light views over OpenAI bodies: the messages of a request, the choices of a reply, the chunks of a
// stream and the reply that they add up to. Every view is the raw bytes; an edit touches only its own field.
package chat

import (
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// The model views read and edit chat bodies in place. They are light: a view decodes only the field that is asked
// for, and an edit touches only the field edited.

// Msg is one message of a chat as it came.
type Msg struct{ Raw []byte }

// Messages returns the messages of a chat request; nil if there are none.
func Messages(request []byte) []Msg {
	raw, _ := rawjson.Field(request, "messages")
	elems := rawjson.Elements(raw)
	out := make([]Msg, len(elems))
	for i, e := range elems {
		out[i] = Msg{Raw: e}
	}
	return out
}

// WithMessages returns the request with other messages.
func WithMessages(request []byte, msgs []Msg) []byte {
	elems := make([][]byte, len(msgs))
	for i, m := range msgs {
		elems[i] = m.Raw
	}
	return rawjson.SetField(request, "messages", rawjson.Array(elems))
}

// NewMsg returns a text message of a role.
func NewMsg(role, text string) Msg {
	return Msg{Raw: rawjson.Encode(struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}{role, text})}
}

// Role returns the role: system, developer, user, assistant, tool or function.
func (m Msg) Role() string { s, _ := rawjson.FieldString(m.Raw, "role"); return s }

// System reports whether the message instructs: role system or developer.
func (m Msg) System() bool { r := m.Role(); return r == "system" || r == "developer" }

// Text returns what the message says: its string content, or its text parts joined by a newline. Other parts
// (images, audio, files) say nothing.
func (m Msg) Text() string {
	raw, _ := rawjson.Field(m.Raw, "content")
	return contentText(raw)
}

func contentText(raw []byte) string {
	if s, ok := rawjson.IsString(raw); ok {
		return s
	}
	var parts []string
	for _, p := range rawjson.Elements(raw) {
		if kind, _ := rawjson.FieldString(p, "type"); kind == "text" {
			s, _ := rawjson.FieldString(p, "text")
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, "\n")
}

// MapText returns the message with each of its texts (string content, or each text part) replaced by edit's result.
// Parts that are no text, and everything else, stay as they are. changed reports whether any text differs.
func (m Msg) MapText(edit func(string) string) (out Msg, changed bool) {
	raw, ok := rawjson.Field(m.Raw, "content")
	if !ok {
		return m, false
	}
	if s, ok := rawjson.IsString(raw); ok {
		t := edit(s)
		if t == s {
			return m, false
		}
		return Msg{Raw: rawjson.SetFieldString(m.Raw, "content", t)}, true
	}
	elems := rawjson.Elements(raw)
	for i, p := range elems {
		if kind, _ := rawjson.FieldString(p, "type"); kind != "text" {
			continue
		}
		s, _ := rawjson.FieldString(p, "text")
		if t := edit(s); t != s {
			elems[i] = rawjson.SetFieldString(p, "text", t)
			changed = true
		}
	}
	if !changed {
		return m, false
	}
	return Msg{Raw: rawjson.SetField(m.Raw, "content", rawjson.Array(elems))}, true
}

// WithText returns the message with string content in place of whatever content it had.
func (m Msg) WithText(text string) Msg {
	return Msg{Raw: rawjson.SetFieldString(m.Raw, "content", text)}
}

// ToolCallID is the id that a tool message answers.
func (m Msg) ToolCallID() string { s, _ := rawjson.FieldString(m.Raw, "tool_call_id"); return s }

// ToolCall is one tool call of an assistant message as it came.
type ToolCall struct{ Raw []byte }

// ToolCalls returns the tool calls of an assistant message.
func (m Msg) ToolCalls() []ToolCall {
	raw, _ := rawjson.Field(m.Raw, "tool_calls")
	elems := rawjson.Elements(raw)
	out := make([]ToolCall, len(elems))
	for i, e := range elems {
		out[i] = ToolCall{Raw: e}
	}
	return out
}

// WithToolCalls returns the message with other tool calls.
func (m Msg) WithToolCalls(calls []ToolCall) Msg {
	elems := make([][]byte, len(calls))
	for i, c := range calls {
		elems[i] = c.Raw
	}
	return Msg{Raw: rawjson.SetField(m.Raw, "tool_calls", rawjson.Array(elems))}
}

// ID is the id of the tool call.
func (t ToolCall) ID() string { s, _ := rawjson.FieldString(t.Raw, "id"); return s }

// Name is the name of the called tool: of a function call, or of a custom tool.
func (t ToolCall) Name() string {
	raw, key := t.inner()
	if key == "" {
		return ""
	}
	s, _ := rawjson.FieldString(raw, "name")
	return s
}

// Arguments is the argument text as the model wrote it; for a custom tool its input.
func (t ToolCall) Arguments() string {
	raw, key := t.inner()
	switch key {
	case "function":
		s, _ := rawjson.FieldString(raw, "arguments")
		return s
	case "custom":
		s, _ := rawjson.FieldString(raw, "input")
		return s
	}
	return ""
}

// WithArguments returns the call with other argument text; a custom tool's input likewise.
func (t ToolCall) WithArguments(text string) ToolCall {
	raw, key := t.inner()
	field := map[string]string{"function": "arguments", "custom": "input"}[key]
	if field == "" {
		return t
	}
	return ToolCall{Raw: rawjson.SetField(t.Raw, key, rawjson.SetFieldString(raw, field, text))}
}

func (t ToolCall) inner() (raw []byte, key string) {
	for _, key := range []string{"function", "custom"} {
		if raw, ok := rawjson.Field(t.Raw, key); ok {
			return raw, key
		}
	}
	return nil, ""
}

// NewestUser returns the index of the newest user message, or -1.
func NewestUser(msgs []Msg) int {
	for i, m := range slices.Backward(msgs) {
		if m.Role() == "user" {
			return i
		}
	}
	return -1
}

// AppendSystem returns the request with text at the end of its system prompt. The prompt is the last of the leading
// system or developer messages; where there is none, one is made with the text alone (SA-10).
func AppendSystem(request []byte, text string) []byte {
	msgs := Messages(request)
	at := -1
	for i, m := range msgs {
		if !m.System() {
			break
		}
		at = i
	}
	if at < 0 {
		return WithMessages(request, append([]Msg{NewMsg("system", text)}, msgs...))
	}
	m := msgs[at]
	raw, _ := rawjson.Field(m.Raw, "content")
	if s, ok := rawjson.IsString(raw); ok {
		if s != "" {
			s += "\n\n"
		}
		msgs[at] = m.WithText(s + text)
		return WithMessages(request, msgs)
	}
	part := rawjson.Encode(struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}{"text", text})
	msgs[at] = Msg{Raw: rawjson.SetField(m.Raw, "content", rawjson.Array(append(rawjson.Elements(raw), part)))}
	return WithMessages(request, msgs)
}

// SystemText returns the text of the leading system or developer messages.
func SystemText(request []byte) string {
	var out []string
	for _, m := range Messages(request) {
		if !m.System() {
			break
		}
		out = append(out, m.Text())
	}
	return strings.Join(out, "\n\n")
}

// ModelName returns the model that a chat request names.
func ModelName(request []byte) string { s, _ := rawjson.FieldString(request, "model"); return s }

// Choice is one choice of a chat reply as it came.
type Choice struct{ Raw []byte }

// Choices returns the choices of a chat reply.
func Choices(reply []byte) []Choice {
	raw, _ := rawjson.Field(reply, "choices")
	elems := rawjson.Elements(raw)
	out := make([]Choice, len(elems))
	for i, e := range elems {
		out[i] = Choice{Raw: e}
	}
	return out
}

// WithChoices returns the reply with other choices.
func WithChoices(reply []byte, choices []Choice) []byte {
	elems := make([][]byte, len(choices))
	for i, c := range choices {
		elems[i] = c.Raw
	}
	return rawjson.SetField(reply, "choices", rawjson.Array(elems))
}

// Message returns the choice's message.
func (c Choice) Message() Msg { raw, _ := rawjson.Field(c.Raw, "message"); return Msg{Raw: raw} }

// WithMessage returns the choice with another message.
func (c Choice) WithMessage(m Msg) Choice {
	return Choice{Raw: rawjson.SetField(c.Raw, "message", m.Raw)}
}

// EmptyReply reports whether a chat reply says nothing: each choice ended by itself (finish reason stop, or none) and
// has no content of any kind. A reply that was cut short, filtered or spent on thoughts is an answer.
func EmptyReply(reply []byte) bool {
	for _, c := range Choices(reply) {
		finish, _ := rawjson.Field(c.Raw, "finish_reason")
		if reason, ok := rawjson.IsString(finish); ok && reason != "" && reason != "stop" {
			return false
		}
		if c.Message().says() {
			return false
		}
	}
	return true
}

// thoughts are the fields in which providers write what a model thinks.
var thoughts = []string{
	"reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks", "thoughts",
}

// contents are the fields of a message that hold some of what the model made, besides content and thoughts.
var contents = []string{
	"tool_calls", "function_call", "refusal", "audio", "image", "images", "video", "videos", "file", "files",
	"annotations", "citations", "parsed", "executed_tools",
}

func (m Msg) says() bool {
	if m.Text() != "" {
		return true
	}
	raw, _ := rawjson.Field(m.Raw, "content")
	for _, part := range rawjson.Elements(raw) { // a part that is not text is an image, audio or a file
		if kind, _ := rawjson.FieldString(part, "type"); kind != "" && kind != "text" && kind != "output_text" {
			return true
		}
	}
	for _, key := range slices.Concat(contents, thoughts) {
		if raw, ok := rawjson.Field(m.Raw, key); ok && !nothing(raw) {
			return true
		}
	}
	return false
}

// nothing reports whether a value is null or has nothing in it.
func nothing(raw []byte) bool {
	switch string(raw) {
	case "null", `""`, "[]", "{}", "false":
		return true
	}
	return false
}

// TextReply makes a whole chat reply with one assistant message; for stages that answer themselves.
func TextReply(id, model, text string, created int64) []byte {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	type choice struct {
		Index        int     `json:"index"`
		Message      message `json:"message"`
		FinishReason string  `json:"finish_reason"`
	}
	return rawjson.Encode(struct {
		ID      string   `json:"id"`
		Object  string   `json:"object"`
		Created int64    `json:"created"`
		Model   string   `json:"model"`
		Choices []choice `json:"choices"`
	}{"chatcmpl-" + id, "chat.completion", created, model, []choice{{0, message{"assistant", text}, "stop"}}})
}
