package translate

import (
	"fmt"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

func (r *request) fromChat(body []byte) {
	known := r.readSettings(messages.ChatWire, body)
	for k := range names("model", "messages", "stream", "stream_options", "tools", "tool_choice", "parallel_tool_calls",
		"functions", "function_call", "max_tokens", "max_completion_tokens", "stop", "n", "reasoning_effort",
		"response_format", "user", "logprobs", "modalities", "audio", "reasoning") {
		known[k] = true
	}
	r.leftover(body, known)
	p := &r.params
	p.stream = flag(body, "stream")
	p.limit = max(r.limited(body, "max_completion_tokens"), r.limited(body, "max_tokens"))
	p.stop, p.user, p.logs = stops(rawjson.At(body, "stop")), rawjson.Text(body, "user"), flag(body, "logprobs")
	p.format = formatOf(rawjson.At(body, "response_format"))
	if p.effort = rawjson.Text(body, "reasoning_effort"); p.effort == "" {
		p.effort = rawjson.Text(rawjson.At(body, "reasoning"), "effort") // as OpenRouter has it
	}
	if integer(body, "n") > 1 {
		r.refuse("n", "one answer can be had, not several")
	}
	if raw := rawjson.At(body, "modalities"); len(raw) > 0 && !rawjson.IsNull(raw) && string(raw) != `["text"]` {
		r.refuse("modalities", "only text can be had")
	}
	r.chatTools(body)
	for i, m := range rawjson.Elements(rawjson.At(body, "messages")) {
		r.chatMessage(i, m)
	}
}

func (r *request) chatMessage(i int, m []byte) {
	parts := r.chatParts(rawjson.At(m, "content"))
	role := rawjson.Text(m, "role")
	for _, key := range []string{"name", "audio"} {
		if !rawjson.IsNull(rawjson.At(m, key)) && role != "function" && role != "tool" {
			r.drop("messages." + key)
		}
	}
	switch role {
	case "system", "developer":
		if len(r.turns) == 0 {
			r.system = append(r.system, parts...)
			return
		}
		r.turns = append(r.turns, turn{"system", parts})
	case "tool":
		r.turns = append(r.turns, turn{"user", []part{{kind: result, id: rawjson.Text(m, "tool_call_id"), inner: parts,
			cache: cacheOf(m)}}})
	case "function":
		r.turns = append(r.turns, turn{"user", []part{{kind: result, id: rawjson.Text(m, "name"), inner: parts}}})
	case "assistant":
		r.turns = append(r.turns, turn{"assistant", r.chatAnswer(m, parts)})
	case "user":
		r.turns = append(r.turns, turn{"user", parts})
	default:
		r.refuse(fmt.Sprintf("messages[%d].role", i), "a message of the role %q", role)
	}
}

// chatAnswer reads an assistant message. Reasoning comes first: that is where the other wires have it.
func (r *request) chatAnswer(m []byte, parts []part) (out []part) {
	for _, d := range rawjson.Elements(rawjson.At(m, "reasoning_details")) {
		s := rawjson.Text(d, "signature")
		if s == "" {
			s = rawjson.Text(d, "data")
		}
		raw := r.pair.mine(s)
		if raw != nil {
			out = append(out, part{kind: thought, raw: raw})
		}
	}
	out = append(out, parts...)
	if s := rawjson.Text(m, "refusal"); s != "" {
		out = append(out, part{kind: refusal, text: s})
	}
	for _, c := range rawjson.Elements(rawjson.At(m, "tool_calls")) {
		p := part{kind: call, id: rawjson.Text(c, "id")}
		if f := rawjson.At(c, "custom"); len(f) > 0 {
			p.name, p.args, p.custom = rawjson.Text(f, "name"), rawjson.Text(f, "input"), true
		} else {
			f = rawjson.At(c, "function")
			p.name, p.args = rawjson.Text(f, "name"), rawjson.Text(f, "arguments")
		}
		out = append(out, p)
	}
	if f := rawjson.At(m, "function_call"); len(f) > 0 && f[0] == '{' {
		name := rawjson.Text(f, "name")
		out = append(out, part{kind: call, id: name, name: name, args: rawjson.Text(f, "arguments")})
	}
	return out
}

func (r *request) chatParts(content []byte) (out []part) {
	if s, ok := rawjson.IsString(content); ok {
		return []part{{kind: text, text: s}}
	}
	for _, p := range rawjson.Elements(content) {
		c := part{cache: cacheOf(p)}
		switch kind := rawjson.Text(p, "type"); kind {
		case "text":
			c.text = rawjson.Text(p, "text")
		case "refusal":
			c.kind, c.text = refusal, rawjson.Text(p, "refusal")
		case "image_url":
			c.kind, c.media = image, mediaOf(rawjson.Text(rawjson.At(p, "image_url"), "url"))
			c.media.detail = rawjson.Text(rawjson.At(p, "image_url"), "detail")
		case "file":
			f := rawjson.At(p, "file")
			c.kind, c.media = file, fileMedia(rawjson.Text(f, "file_data"), rawjson.Text(f, "file_id"),
				rawjson.Text(f, "filename"))
		case "input_audio":
			c.kind, c.raw = audio, rawjson.At(p, "input_audio")
		default:
			r.refuse("messages", "a content part of type %q", kind)
			continue
		}
		out = append(out, c)
	}
	return out
}

// fileMedia reads a file's bytes: a data URL, or base64 alone.
func fileMedia(data, id, name string) media {
	m := mediaOf(data)
	if m.data == "" && m.url != "" {
		m = media{data: m.url, kind: "application/pdf"}
	}
	m.id, m.name = id, name
	return m
}

func (r *request) chatTools(body []byte) {
	for _, t := range rawjson.Elements(rawjson.At(body, "tools")) {
		in := rawjson.At(t, "function")
		if c := rawjson.At(t, "custom"); len(c) > 0 {
			r.tools = append(r.tools, tool{name: rawjson.Text(c, "name"), description: rawjson.Text(c, "description"),
				custom: true, format: rawjson.At(c, "format"), cache: cacheOf(t)})
			continue
		}
		if len(in) == 0 {
			r.refuse("tools", "a tool of type %q", rawjson.Text(t, "type"))
			continue
		}
		r.tools = append(r.tools, tool{name: rawjson.Text(in, "name"), description: rawjson.Text(in, "description"),
			schema: rawjson.At(in, "parameters"), strict: rawjson.At(in, "strict"), cache: cacheOf(t)})
	}
	for _, f := range rawjson.Elements(rawjson.At(body, "functions")) {
		r.tools = append(r.tools, tool{name: rawjson.Text(f, "name"), description: rawjson.Text(f, "description"),
			schema: rawjson.At(f, "parameters")})
	}
	raw := rawjson.At(body, "tool_choice")
	if len(raw) == 0 {
		raw = rawjson.At(body, "function_call")
	}
	r.choice = openAIChoice(raw)
	r.choice.serial = string(rawjson.At(body, "parallel_tool_calls")) == "false"
	r.choice.parallel = flag(body, "parallel_tool_calls")
}

// openAIChoice reads a tool_choice of chat (nested) or responses (flat).
func openAIChoice(raw []byte) (c toolChoice) {
	if s, ok := rawjson.IsString(raw); ok {
		if s == "required" {
			s = "any"
		}
		return toolChoice{mode: s}
	}
	name := func(t []byte) string {
		for _, key := range []string{"function", "custom"} {
			if in := rawjson.At(t, key); len(in) > 0 {
				return rawjson.Text(in, "name")
			}
		}
		return rawjson.Text(t, "name")
	}
	switch kind := rawjson.Text(raw, "type"); {
	case kind == "allowed_tools":
		in := raw
		if nested := rawjson.At(raw, "allowed_tools"); len(nested) > 0 {
			in = nested
		}
		c.mode = "auto"
		if rawjson.Text(in, "mode") == "required" {
			c.mode = "any"
		}
		for _, t := range rawjson.Elements(rawjson.At(in, "tools")) {
			c.allowed = append(c.allowed, name(t))
		}
	case name(raw) != "":
		c.mode, c.name = "tool", name(raw)
	case kind != "":
		c.mode, c.name = "hosted", kind
	}
	return c
}
