package translate

import (
	"slices"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

func (r *request) toResponses() []byte {
	p := r.params
	r.saidCaches()
	var items [][]byte
	for _, t := range r.turns {
		items = append(items, r.itemsOf(t)...)
	}
	body := obj("model", r.model, "instructions", text0(texts(r.system)), "input", rawjson.Array(items),
		"max_output_tokens", number(p.limit), "user", text0(p.user), "store", []byte("false"))
	if p.stream {
		body = rawjson.SetField(body, "stream", []byte("true"))
	}
	include := []string{"reasoning.encrypted_content"}
	if p.logs {
		include = append(include, "message.output_text.logprobs")
	}
	body = rawjson.SetField(body, "include", rawjson.Encode(include))
	if p.effort != "" {
		body = rawjson.SetField(body, "reasoning", obj("effort", openAIEffort(p.effort), "summary", "auto"))
	}
	if len(p.stop) > 0 {
		r.drop("stop")
	}
	format := []byte(nil)
	switch p.format.kind {
	case "json_object":
		format = []byte(`{"type":"json_object"}`)
	case "json_schema":
		format = obj(append([]any{"type", "json_schema"}, p.format.fields()...)...)
	}
	if v := p.plain["verbosity"]; v != nil || format != nil {
		body = rawjson.SetField(body, "text", obj("format", format, "verbosity", v))
	}
	body = r.openAITools(body, func(t tool) []byte {
		if t.custom {
			return obj("type", "custom", "name", t.name, "description", text0(t.description), "format",
				customFormat(t.format))
		}
		strict := t.strict
		if len(strict) == 0 {
			strict = []byte("false") // this wire's own default would change what a schema demands
		}
		return obj("type", "function", "name", t.name, "description", text0(t.description), "parameters", t.schemaOr(),
			"strict", strict)
	}, func(name string) []byte {
		kind := "function"
		if slices.ContainsFunc(r.tools, func(t tool) bool { return t.custom && t.name == name }) {
			kind = "custom"
		}
		return obj("type", kind, "name", name)
	})
	return r.writeSettings(messages.ResponsesWire, body)
}

// customFormat flattens the grammar of a chat request.
func customFormat(f []byte) []byte {
	if g := rawjson.At(f, "grammar"); len(g) > 0 {
		return obj("type", "grammar", "syntax", rawjson.At(g, "syntax"), "definition", rawjson.At(g, "definition"))
	}
	return f
}

func (r *request) itemsOf(t turn) (out [][]byte) {
	var open []part
	flush := func() {
		if len(open) > 0 {
			out = append(out, r.messageItem(t.role, open))
			open = nil
		}
	}
	for _, p := range t.parts {
		switch p.kind {
		case call:
			flush()
			if p.custom {
				out = append(out, obj("type", "custom_tool_call", "call_id", callID(p.id), "name", p.name, "input",
					p.args))
				continue
			}
			out = append(out, obj("type", "function_call", "call_id", callID(p.id), "name", p.name, "arguments",
				p.argText()))
		case result:
			flush()
			out = append(out, r.output(p))
		case thought:
			flush()
			out = append(out, p.raw)
		default:
			open = append(open, p)
		}
	}
	flush()
	return out
}

func (r *request) output(p part) []byte {
	kind := "function_call_output"
	for _, t := range r.turns {
		for _, c := range t.parts {
			if c.kind == call && c.id == p.id && c.custom {
				kind = "custom_tool_call_output"
			}
		}
	}
	content := rawjson.Encode(texts(p.inner))
	if !only(p.inner, text, refusal) {
		var parts [][]byte
		for _, in := range p.inner {
			parts = append(parts, r.inputPart("user", in))
		}
		content = rawjson.Array(parts)
	}
	return obj("type", kind, "call_id", callID(p.id), "output", content)
}

func (r *request) messageItem(role string, parts []part) []byte {
	var out [][]byte
	for _, p := range parts {
		out = append(out, r.inputPart(role, p))
	}
	return obj("type", "message", "role", role, "content", rawjson.Array(out))
}

func (r *request) inputPart(role string, p part) []byte {
	switch p.kind {
	case image:
		if p.media.id != "" && p.media.link() == "" {
			r.refuse("image", "an image that only another provider has (%s)", p.media.id)
		}
		detail := p.media.detail
		if detail == "" {
			detail = "auto"
		}
		return obj("type", "input_image", "image_url", p.media.link(), "detail", detail)
	case file:
		if p.media.id != "" && p.media.link() == "" {
			r.refuse("file", "a file that only another provider has (%s)", p.media.id)
		}
		if p.media.data == "" {
			return obj("type", "input_file", "file_url", p.media.url)
		}
		return obj("type", "input_file", "filename", orName(p.media.name), "file_data", p.media.link())
	case audio:
		return obj("type", "input_audio", "input_audio", p.raw)
	case refusal:
		return obj("type", "refusal", "refusal", p.text)
	}
	if role == "assistant" {
		return obj("type", "output_text", "text", p.text, "annotations", []byte("[]"))
	}
	return obj("type", "input_text", "text", p.text)
}
