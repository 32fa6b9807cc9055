package view

import (
	"slices"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// chat is the wire of OpenAI chat completions.
type chat struct{}

func (chat) Wire() messages.Wire { return messages.ChatWire }

func (chat) Messages(request []byte) []Msg {
	elems := rawjson.Elements(rawjson.At(request, "messages"))
	out := make([]Msg, len(elems))
	for i, e := range elems {
		out[i] = Msg{Raw: e}
	}
	return out
}

func (chat) WithMessages(request []byte, msgs []Msg) []byte {
	elems := make([][]byte, len(msgs))
	for i, m := range msgs {
		elems[i] = m.Raw
	}
	if same(rawjson.Elements(rawjson.At(request, "messages")), elems) {
		return request
	}
	return rawjson.SetField(request, "messages", rawjson.Array(elems))
}

func (chat) NewMsg(role, text string) Msg {
	return Msg{Raw: rawjson.Encode(struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}{role, text})}
}

func (chat) NewResult(of ToolCall, text string) Msg {
	return Msg{Raw: rawjson.Encode(struct {
		Role    string `json:"role"`
		ID      string `json:"tool_call_id"`
		Content string `json:"content"`
	}{"tool", of.ID(), text})}
}

// AppendSystem appends to the last of the leading system or developer messages.
func (v chat) AppendSystem(request []byte, text string) []byte {
	msgs := v.Messages(request)
	at := leadingSystem(msgs)
	if at < 0 {
		return v.WithMessages(request, append([]Msg{v.NewMsg("system", text)}, msgs...))
	}
	content := appendText(rawjson.At(msgs[at].Raw, "content"), text, "text")
	msgs[at] = Msg{Raw: rawjson.SetField(msgs[at].Raw, "content", content)}
	return v.WithMessages(request, msgs)
}

// leadingSystem returns the last of the leading system messages, or -1.
func leadingSystem(msgs []Msg) int {
	at := -1
	for i, m := range msgs {
		if !m.System() {
			break
		}
		at = i
	}
	return at
}

// appendText appends to a content: to its string, or a part of the type.
func appendText(content []byte, text, kind string) []byte {
	if s, ok := rawjson.IsString(content); ok {
		if s != "" {
			s += "\n\n"
		}
		return rawjson.Encode(s + text)
	}
	return rawjson.Array(append(rawjson.Elements(content), textPart(kind, text)))
}

func textPart(kind, text string) []byte {
	return rawjson.Encode(struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}{kind, text})
}

func (chat) OutputLimit(request []byte) int64 {
	if n := count(request, "max_completion_tokens"); n > 0 {
		return n
	}
	return count(request, "max_tokens")
}

func (chat) Choices(reply []byte) []Choice {
	elems := rawjson.Elements(rawjson.At(reply, "choices"))
	out := make([]Choice, len(elems))
	for i, e := range elems {
		out[i] = Choice{Raw: e}
	}
	return out
}

func (chat) WithChoices(reply []byte, choices []Choice) []byte {
	elems := make([][]byte, len(choices))
	for i, c := range choices {
		elems[i] = c.Raw
	}
	if same(rawjson.Elements(rawjson.At(reply, "choices")), elems) {
		return reply
	}
	return rawjson.SetField(reply, "choices", rawjson.Array(elems))
}

func (chat) Usage(reply []byte) Usage {
	u := rawjson.At(reply, "usage")
	return Usage{
		Input: count(u, "prompt_tokens"), CacheRead: count(u, "prompt_tokens_details", "cached_tokens"),
		CacheWrite: count(u, "prompt_tokens_details", "cache_write_tokens"),
		Output:     count(u, "completion_tokens"),
		Reasoning:  count(u, "completion_tokens_details", "reasoning_tokens"), Total: count(u, "total_tokens"),
	}
}

func (chat) TextReply(id, model, text string, created int64) []byte {
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
	}{"chatcmpl-" + id, "chat.completion", created, model, []choice{{0, message{"assistant", text}, FinishStop}}})
}

// Thoughts lists the fields of a chat message in which providers send the model's reasoning.
var Thoughts = []string{
	"reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks", "thoughts",
}

// contents lists the other fields of a message that hold output of the model.
var contents = []string{
	"tool_calls", "function_call", "refusal", "audio", "image", "images", "video", "videos", "file", "files",
	"annotations", "citations", "parsed", "executed_tools",
}

func chatSays(m Msg) bool {
	if m.Text() != "" {
		return true
	}
	for _, kind := range m.Kinds() { // a part that is not text is an image, audio or a file
		if kind != "" && kind != "output_text" {
			return true
		}
	}
	return slices.ContainsFunc(slices.Concat(contents, Thoughts), func(key string) bool {
		return !nothing(rawjson.At(m.Raw, key))
	})
}
