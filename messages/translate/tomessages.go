package translate

import (
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

func (r *request) toMessages() []byte {
	p := r.params
	limit := p.limit
	if limit <= 0 {
		limit = r.pair.OutputLimit
	}
	if limit <= 0 {
		limit = defaultLimit
	}
	var system, msgs [][]byte
	for _, s := range r.system {
		if strings.TrimSpace(s.text) != "" {
			system = append(system, r.blockOf(s))
		}
	}
	for _, t := range r.turns {
		if b := r.messageOf(t); b != nil {
			msgs = append(msgs, b)
		}
	}
	body := obj("model", r.model, "max_tokens", limit, "system", list(system), "messages", rawjson.Array(msgs))
	if len(p.stop) > 0 {
		body = rawjson.SetField(body, "stop_sequences", rawjson.Encode(p.stop))
	}
	if p.stream {
		body = rawjson.SetField(body, "stream", []byte("true"))
	}
	if p.user != "" {
		body = rawjson.SetField(body, "metadata", obj("user_id", p.user))
	}
	if p.logs {
		r.refuse("logprobs", "log probabilities cannot be had")
	}
	config := obj("effort", text0(efforts[p.effort]))
	switch p.effort {
	case "":
	case "none":
		body = rawjson.SetField(body, "thinking", []byte(`{"type":"disabled"}`))
	default:
		body = rawjson.SetField(body, "thinking", []byte(`{"type":"adaptive"}`))
	}
	switch p.format.kind {
	case "json_schema":
		config = rawjson.SetField(config, "format", obj("type", "json_schema", "schema", p.format.schema))
	case "json_object":
		r.drop("response_format json_object")
	}
	if string(config) != "{}" {
		body = rawjson.SetField(body, "output_config", config)
	}
	return r.thoughtful(r.writeSettings(messages.MessagesWire, r.messagesToolsOut(body)))
}

// thoughtful drops the settings that exclude thinking on this wire.
func (r *request) thoughtful(body []byte) []byte {
	if rawjson.Text(rawjson.At(body, "thinking"), "type") != "adaptive" {
		return body
	}
	for _, key := range []string{"temperature", "top_p", "top_k"} {
		raw, ok := rawjson.Field(body, key)
		if !ok {
			continue
		}
		body = rawjson.DropField(body, key)
		if key != "temperature" || string(raw) != "1" {
			r.drop(key + " with reasoning")
		}
	}
	return body
}

func (r *request) messagesToolsOut(body []byte) []byte {
	var tools [][]byte
	for _, t := range r.offered() {
		if t.custom && len(t.format) > 0 && rawjson.Text(t.format, "type") == "grammar" {
			r.drop("tools.format grammar")
		}
		tools = append(tools, obj("name", t.name, "description", text0(t.description), "input_schema", t.schemaOr(),
			"strict", strictOnly(t.strict), "cache_control", cached(t.cache)))
	}
	if len(tools) == 0 {
		return body
	}
	body = rawjson.SetField(body, "tools", rawjson.Array(tools))
	choice := []byte(nil)
	switch c := r.choice; c.mode {
	case "auto", "any", "none":
		choice = obj("type", c.mode)
	case "tool":
		choice = obj("type", "tool", "name", c.name)
	case "hosted":
		r.refuse("tool_choice", "nobody runs the tool %s here", c.name)
	}
	forced := r.choice.mode == "any" || r.choice.mode == "tool"
	if t := rawjson.At(body, "thinking"); rawjson.Text(t, "type") == "adaptive" && forced {
		body = rawjson.DropField(body, "thinking") // a forced tool and thinking exclude each other there
		r.drop("reasoning with a forced tool")
	}
	if r.choice.serial && r.choice.mode != "none" {
		if choice == nil {
			choice = obj("type", "auto")
		}
		choice = rawjson.SetField(choice, "disable_parallel_tool_use", []byte("true"))
	}
	if choice != nil {
		body = rawjson.SetField(body, "tool_choice", choice)
	}
	return body
}

func strictOnly(raw []byte) []byte {
	if string(raw) == "true" {
		return raw
	}
	return nil
}

// messageOf writes a turn. Results come first in a user's turn; instructions within a conversation become the user's
// words, which every model of this wire takes.
func (r *request) messageOf(t turn) []byte {
	var first, rest [][]byte
	for _, p := range t.parts {
		b := r.blockOf(p)
		switch {
		case b == nil:
		case p.kind == result:
			first = append(first, b)
		default:
			rest = append(rest, b)
		}
	}
	role := t.role
	if role != "assistant" {
		role = "user"
	}
	if len(first)+len(rest) == 0 {
		return nil
	}
	return obj("role", role, "content", rawjson.Array(append(first, rest...)))
}

func (r *request) blockOf(p part) []byte {
	cache := cached(p.cache)
	switch p.kind {
	case image:
		if d := p.media.detail; d != "" && d != "auto" {
			r.drop("image detail")
		}
		return obj("type", "image", "source", r.source(p.media, "image"), "cache_control", cache)
	case file:
		return obj("type", "document", "source", r.source(p.media, "file"), "title", text0(p.media.name),
			"cache_control", cache)
	case audio:
		r.refuse("input_audio", "audio")
		return nil
	case thought:
		return p.raw
	case call:
		return obj("type", "tool_use", "id", callID(p.id), "name", p.name, "input", p.object(), "cache_control", cache)
	case result:
		content := rawjson.Encode(texts(p.inner))
		if !only(p.inner, text, refusal) {
			var blocks [][]byte
			for _, in := range p.inner {
				blocks = append(blocks, r.blockOf(in))
			}
			content = rawjson.Array(blocks)
		}
		failed := []byte(nil)
		if p.failed {
			failed = []byte("true")
		}
		return obj("type", "tool_result", "tool_use_id", callID(p.id), "content", content, "is_error", failed,
			"cache_control", cache)
	}
	if strings.TrimSpace(p.text) == "" {
		return nil // refused there
	}
	return obj("type", "text", "text", p.text, "cache_control", cache)
}

func (r *request) source(m media, what string) []byte {
	switch {
	case m.data != "":
		return obj("type", "base64", "media_type", m.kind, "data", m.data)
	case m.url != "":
		return obj("type", "url", "url", m.url)
	}
	r.refuse(what, "a file that only another provider has (%s)", m.id)
	return []byte("null")
}
