// Package chat reads and edits OpenAI bodies: the messages of a request, the choices of a reply, the chunks of a stream
// and the reply that they add up to. An edit changes only its own field. Messages and choices are those of package
// view.
package chat

import (
	"slices"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/view"
)

// What a chat body is made of; see package view.
type (
	Msg      = view.Msg
	ToolCall = view.ToolCall
	Choice   = view.Choice
)

var wire = view.Of(messages.ChatWire)

// Messages returns the messages of a chat request; nil if there are none.
func Messages(request []byte) []Msg { return wire.Messages(request) }

// WithMessages returns the request with other messages.
func WithMessages(request []byte, msgs []Msg) []byte { return wire.WithMessages(request, msgs) }

// NewMsg returns a text message of a role.
func NewMsg(role, text string) Msg { return wire.NewMsg(role, text) }

// NewestUser returns the index of the newest user message, or -1.
func NewestUser(msgs []Msg) int { return view.NewestUser(msgs) }

// AppendSystem returns the request with text at the end of its system prompt. The prompt is the last of the leading
// system or developer messages; where there is none, a system message with the text is added.
func AppendSystem(request []byte, text string) []byte { return wire.AppendSystem(request, text) }

// SystemText returns the text of the leading system or developer messages.
func SystemText(request []byte) string { return view.SystemText(wire, request) }

// ModelName returns the model that a chat request names.
func ModelName(request []byte) string { return view.ModelName(request) }

// Choices returns the choices of a chat reply.
func Choices(reply []byte) []Choice { return wire.Choices(reply) }

// WithChoices returns the reply with other choices.
func WithChoices(reply []byte, choices []Choice) []byte { return wire.WithChoices(reply, choices) }

// EmptyReply reports whether a chat reply says nothing; see view.EmptyReply.
func EmptyReply(reply []byte) bool { return view.EmptyReply(wire, reply) }

// TextReply makes a whole chat reply with one assistant message; for stages that answer themselves.
func TextReply(id, model, text string, created int64) []byte {
	return wire.TextReply(id, model, text, created)
}

// nothing reports whether a value is null or has nothing in it.
func nothing(raw []byte) bool {
	return slices.Contains([]string{"null", `""`, "[]", "{}", "false"}, string(raw))
}
