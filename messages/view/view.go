// Package view reads and edits the bodies of model calls whatever their wire: system texts, turns, tool calls and their
// results, tool definitions, usage, the end. It edits in place: what nobody edits keeps every byte, order and unknown
// fields among it, so that signatures and cache breakpoints survive.
package view

import (
	"slices"
	"strconv"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// View is one wire. Its methods never change the bytes that they are given; each may be called at any time from
// anywhere. Bodies that are not of the wire read as empty and are returned as they are.
type View interface {
	Wire() messages.Wire

	// Messages returns the conversation of a request, its system texts first; nil if there is none.
	Messages(request []byte) []Msg
	// WithMessages returns the request with other messages, as a rule those of Messages, some of them edited, left out
	// or added.
	WithMessages(request []byte, msgs []Msg) []byte
	// NewMsg makes a text message of a role: system, user or assistant.
	NewMsg(role, text string) Msg
	// NewResult makes the result of a tool call.
	NewResult(of ToolCall, text string) Msg
	// AppendSystem returns the request with text at the end of its system prompt, or as its system prompt. What stands
	// in the prompt already stays where it is.
	AppendSystem(request []byte, text string) []byte
	// OutputLimit returns how many tokens the request lets the model write; 0 if it does not say.
	OutputLimit(request []byte) int64

	// Choices returns the answers of a reply: one, but for chat with n above 1.
	Choices(reply []byte) []Choice
	// WithChoices returns the reply with other choices.
	WithChoices(reply []byte, choices []Choice) []byte
	// Usage returns what a reply says that it cost.
	Usage(reply []byte) Usage
	// TextReply makes a whole reply with one assistant message, for stages that answer themselves.
	TextReply(id, model, text string, created int64) []byte
}

// Of returns the view of a wire. The empty wire is chat.
func Of(w messages.Wire) View {
	switch w {
	case messages.ResponsesWire:
		return responses{}
	case messages.MessagesWire:
		return anthropic{}
	case messages.EmbeddingsWire:
		return embeddings{}
	}
	return chat{}
}

// Usage counts the tokens of a reply as OpenAI does: Input includes what came from a cache and what went into one,
// Output includes reasoning. Zero is unknown.
type Usage struct {
	Input, CacheRead, CacheWrite int64
	Output, Reasoning            int64
	Total                        int64
}

// ModelName returns the model that a request asks for or a reply names; all wires have it in the same place.
func ModelName(body []byte) string { s, _ := rawjson.FieldString(body, "model"); return s }

// NewestUser returns the index of the newest user message, or -1.
func NewestUser(msgs []Msg) int {
	for i, m := range slices.Backward(msgs) {
		if m.Role() == "user" {
			return i
		}
	}
	return -1
}

// EmptyReply reports whether a reply says nothing: each choice ended by itself and has no content of any kind. A reply
// that was cut short, was filtered, or holds only thoughts is not empty: it is an answer.
func EmptyReply(v View, reply []byte) bool {
	for _, c := range v.Choices(reply) {
		if f := c.Finish(); f != "" && f != FinishStop || c.Message().says() {
			return false
		}
	}
	return true
}

// Calls returns all tool calls of a reply.
func Calls(v View, reply []byte) (out []ToolCall) {
	for _, c := range v.Choices(reply) {
		out = append(out, c.Message().ToolCalls()...)
	}
	return out
}

// SystemText returns the text of the leading system messages.
func SystemText(v View, request []byte) string {
	var out []string
	for _, m := range v.Messages(request) {
		if !m.System() {
			break
		}
		out = append(out, m.Text())
	}
	return strings.Join(out, "\n\n")
}

// How an answer ended, in the words of the chat wire. A reason that is none of these is the provider's own word.
const (
	FinishStop   = "stop"
	FinishLength = "length"
	FinishTools  = "tool_calls"
	FinishFilter = "content_filter"
	FinishError  = "error"
)

// count reads a number of tokens; anything that is not a sensible one is 0.
func count(obj []byte, path ...string) int64 {
	n, err := strconv.ParseFloat(string(rawjson.At(obj, path...)), 64)
	if err != nil || !(n >= 0 && n <= 1e12) {
		return 0
	}
	return int64(n)
}

// nothing reports whether a value is null or has nothing in it.
func nothing(raw []byte) bool {
	switch string(raw) {
	case "", "null", `""`, "[]", "{}", "false":
		return true
	}
	return false
}

// textOf reads a content: its string, or its parts of the given types joined by a newline.
func textOf(content []byte, types ...string) string {
	if s, ok := rawjson.IsString(content); ok {
		return s
	}
	var parts []string
	for _, p := range rawjson.Elements(content) {
		if slices.Contains(types, rawjson.Text(p, "type")) {
			parts = append(parts, rawjson.Text(p, "text"))
		}
	}
	return strings.Join(parts, "\n")
}

// mapText edits the texts of a content, and only those.
func mapText(content []byte, edit func(string) string, types ...string) []byte {
	if s, ok := rawjson.IsString(content); ok {
		if t := edit(s); t != s {
			return rawjson.Encode(t)
		}
		return content
	}
	elems, changed := rawjson.Elements(content), false
	for i, p := range elems {
		if !slices.Contains(types, rawjson.Text(p, "type")) {
			continue
		}
		s := rawjson.Text(p, "text")
		if t := edit(s); t != s {
			elems[i], changed = rawjson.SetFieldString(p, "text", t), true
		}
	}
	if !changed {
		return content
	}
	return rawjson.Array(elems)
}

// withoutEmpty drops parts of the given types that have no text, since some providers refuse them; nil if nothing is
// left.
func withoutEmpty(content []byte, types ...string) []byte {
	if s, ok := rawjson.IsString(content); ok {
		if s == "" {
			return nil
		}
		return content
	}
	elems := rawjson.Elements(content)
	kept := slices.DeleteFunc(slices.Clone(elems), func(p []byte) bool {
		return slices.Contains(types, rawjson.Text(p, "type")) && rawjson.Text(p, "text") == ""
	})
	switch {
	case len(kept) == 0:
		return nil
	case len(kept) == len(elems):
		return content
	}
	return rawjson.Array(kept)
}

// kinds returns the types of a content's parts that are not text.
func kinds(content []byte, types ...string) (out []string) {
	for _, p := range rawjson.Elements(content) {
		if kind := rawjson.Text(p, "type"); !slices.Contains(types, kind) {
			out = append(out, kind)
		}
	}
	return out
}

// set sets a field of an object, and returns the object itself where the field has that value already.
func set(obj []byte, key string, raw []byte) []byte {
	if had, ok := rawjson.Field(obj, key); ok && string(had) == string(raw) {
		return obj
	}
	return rawjson.SetField(obj, key, raw)
}
