package translate

import (
	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

func (r *request) toChat() []byte {
	p := r.params
	r.saidCaches()
	var msgs [][]byte
	if len(r.system) > 0 {
		msgs = append(msgs, obj("role", "system", "content", texts(r.system)))
	}
	for _, t := range r.turns {
		msgs = append(msgs, r.chatTurn(t)...)
	}
	limit := "max_completion_tokens"
	if r.pair.OldLimit {
		limit = "max_tokens"
	}
	body := obj("model", r.model, "messages", rawjson.Array(msgs), limit, number(p.limit), "user", text0(p.user),
		"reasoning_effort", text0(openAIEffort(p.effort)))
	if len(p.stop) > 0 {
		body = rawjson.SetField(body, "stop", rawjson.Encode(p.stop))
	}
	if p.stream {
		body = rawjson.SetField(body, "stream", []byte("true"))
		body = rawjson.SetField(body, "stream_options", []byte(`{"include_usage":true}`))
	}
	if p.logs {
		body = rawjson.SetField(body, "logprobs", []byte("true"))
	}
	switch p.format.kind {
	case "json_object":
		body = rawjson.SetField(body, "response_format", []byte(`{"type":"json_object"}`))
	case "json_schema":
		body = rawjson.SetField(body, "response_format", obj("type", "json_schema", "json_schema",
			obj(p.format.fields()...)))
	}
	if v := p.plain["verbosity"]; v != nil {
		body = rawjson.SetField(body, "verbosity", v)
	}
	body = r.openAITools(body, func(t tool) []byte {
		return obj("type", "function", "function", obj("name", t.name, "description", text0(t.description),
			"parameters", t.schemaOr(), "strict", t.strict))
	}, func(name string) []byte { return obj("type", "function", "function", obj("name", name)) })
	return r.writeSettings(messages.ChatWire, body)
}

// openAITools writes tools and choice for chat and responses.
func (r *request) openAITools(body []byte, write func(tool) []byte, one func(string) []byte) []byte {
	var tools [][]byte
	for _, t := range r.offered() {
		tools = append(tools, write(t))
	}
	if len(tools) == 0 {
		return body // a choice without tools is an error
	}
	body = rawjson.SetField(body, "tools", rawjson.Array(tools))
	switch c := r.choice; c.mode {
	case "auto", "none":
		body = rawjson.SetFieldString(body, "tool_choice", c.mode)
	case "any":
		body = rawjson.SetFieldString(body, "tool_choice", "required")
	case "tool":
		body = rawjson.SetField(body, "tool_choice", one(c.name))
	case "hosted":
		r.refuse("tool_choice", "nobody runs the tool %s here", c.name)
	}
	switch {
	case r.choice.serial:
		body = rawjson.SetField(body, "parallel_tool_calls", []byte("false"))
	case r.choice.parallel:
		body = rawjson.SetField(body, "parallel_tool_calls", []byte("true"))
	}
	return body
}

// chatTurn writes a turn: results first, each a message of its own, then what the user says beside them.
func (r *request) chatTurn(t turn) (out [][]byte) {
	if t.role == "assistant" {
		return [][]byte{r.chatAssistant(t.parts)}
	}
	var rest []part
	for _, p := range t.parts {
		if p.kind != result {
			rest = append(rest, p)
			continue
		}
		content := texts(p.inner)
		if !only(p.inner, text, refusal) { // tool messages hold text alone: what else came stands in the user's message
			for _, in := range p.inner {
				if in.kind != text && in.kind != refusal {
					rest = append(rest, in)
				}
			}
			if content == "" {
				content = "(see the next message)"
			}
		}
		out = append(out, obj("role", "tool", "tool_call_id", callID(p.id), "content", content))
	}
	if len(rest) == 0 {
		return out
	}
	if only(rest, text) && len(rest) == 1 {
		return append(out, obj("role", t.role, "content", rest[0].text))
	}
	var parts [][]byte
	for _, p := range rest {
		parts = append(parts, r.chatPart(p))
	}
	return append(out, obj("role", t.role, "content", rawjson.Array(parts)))
}

func (r *request) chatPart(p part) []byte {
	switch p.kind {
	case image:
		if p.media.id != "" && p.media.link() == "" {
			r.refuse("image", "an image that only another provider has (%s)", p.media.id)
		}
		return obj("type", "image_url", "image_url", obj("url", p.media.link(), "detail", text0(p.media.detail)))
	case file:
		switch {
		case p.media.data != "":
			return obj("type", "file", "file", obj("filename", orName(p.media.name), "file_data", p.media.link()))
		case p.media.id != "":
			r.refuse("file", "a file that only another provider has (%s)", p.media.id)
		default:
			r.refuse("file", "a file by its address; send its bytes")
		}
	case audio:
		return obj("type", "input_audio", "input_audio", p.raw)
	}
	return obj("type", "text", "text", p.text)
}

func orName(name string) string {
	if name == "" {
		return "file.pdf"
	}
	return name
}

func (r *request) chatAssistant(parts []part) []byte {
	var calls, details [][]byte
	var said []part
	var no string
	extras := map[string][]byte{}
	for _, p := range parts {
		switch {
		case p.kind == thought && rawjson.Text(p.raw, "type") == "extra":
			extras[callID(rawjson.Text(p.raw, "call"))] = rawjson.At(p.raw, "value")
		case p.kind == thought:
			details = append(details, p.raw)
		case p.kind == refusal:
			no += p.text
		case p.kind == text:
			said = append(said, p)
		}
	}
	for _, p := range parts {
		if p.kind == call {
			calls = append(calls, obj("id", callID(p.id), "type", "function", "function", obj("name", p.name,
				"arguments", p.argText()), "extra_content", extras[callID(p.id)]))
		}
	}
	content := []byte("null")
	if len(said) > 0 {
		content = rawjson.Encode(texts(said))
	}
	return obj("role", "assistant", "content", content, "refusal", text0(no), "reasoning_details", list(details),
		"tool_calls", list(calls))
}
