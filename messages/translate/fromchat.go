package translate

import (
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
	p.limit = max(int64(integer(body, "max_completion_tokens")), int64(integer(body, "max_tokens")))
	p.stop, p.user, p.logs = stops(field(body, "stop")), str(body, "user"), flag(body, "logprobs")
	p.format = formatOf(field(body, "response_format"))
	if p.effort = str(body, "reasoning_effort"); p.effort == "" {
		p.effort = str(field(body, "reasoning"), "effort") // as OpenRouter has it
	}
	if integer(body, "n") > 1 {
		r.refuse("n", "one answer can be had, not several")
	}
	if raw := field(body, "modalities"); len(raw) > 0 && !rawjson.IsNull(raw) && string(raw) != `["text"]` {
		r.refuse("modalities", "only text can be had")
	}
	r.chatTools(body)
	for i, m := range rawjson.Elements(field(body, "messages")) {
		r.chatMessage(i, m)
	}
}

func (r *request) chatMessage(i int, m []byte) {
	parts := r.chatParts(field(m, "content"))
	for _, key := range []string{"name", "audio"} {
		if v := field(m, key); len(v) > 0 && !rawjson.IsNull(v) && str(m, "role") != "function" && str(m, "role") != "tool" {
			r.drop("messages." + key)
		}
	}
	switch role := str(m, "role"); role {
	case "system", "developer":
		if len(r.turns) == 0 {
			r.system = append(r.system, parts...)
			return
		}
		r.turns = append(r.turns, turn{"system", parts})
	case "tool":
		r.turns = append(r.turns, turn{"user", []part{{kind: result, id: str(m, "tool_call_id"), inner: parts,
			cache: cacheOf(m)}}})
	case "function":
		r.turns = append(r.turns, turn{"user", []part{{kind: result, id: str(m, "name"), inner: parts}}})
	case "assistant":
		r.turns = append(r.turns, turn{"assistant", r.chatAnswer(m, parts)})
	default:
		r.turns = append(r.turns, turn{"user", parts})
	}
}

// chatAnswer reads an assistant message. Reasoning comes first: that is where the other wires have it.
func (r *request) chatAnswer(m []byte, parts []part) (out []part) {
	for _, d := range rawjson.Elements(field(m, "reasoning_details")) {
		s := str(d, "signature")
		if s == "" {
			s = str(d, "data")
		}
		raw := r.pair.mine(s)
		if raw != nil {
			out = append(out, part{kind: thought, raw: raw})
		}
	}
	out = append(out, parts...)
	if s := str(m, "refusal"); s != "" {
		out = append(out, part{kind: refusal, text: s})
	}
	for _, c := range rawjson.Elements(field(m, "tool_calls")) {
		p := part{kind: call, id: str(c, "id")}
		if f := field(c, "custom"); len(f) > 0 {
			p.name, p.args, p.custom = str(f, "name"), str(f, "input"), true
		} else {
			f = field(c, "function")
			p.name, p.args = str(f, "name"), str(f, "arguments")
		}
		out = append(out, p)
	}
	if f := field(m, "function_call"); len(f) > 0 && f[0] == '{' {
		out = append(out, part{kind: call, id: str(f, "name"), name: str(f, "name"), args: str(f, "arguments")})
	}
	return out
}

func (r *request) chatParts(content []byte) (out []part) {
	if s, ok := rawjson.IsString(content); ok {
		return []part{{kind: text, text: s}}
	}
	for _, p := range rawjson.Elements(content) {
		c := part{cache: cacheOf(p)}
		switch kind := str(p, "type"); kind {
		case "text":
			c.text = str(p, "text")
		case "refusal":
			c.kind, c.text = refusal, str(p, "refusal")
		case "image_url":
			c.kind, c.media = image, mediaOf(str(field(p, "image_url"), "url"))
			c.media.detail = str(field(p, "image_url"), "detail")
		case "file":
			f := field(p, "file")
			c.kind, c.media = file, fileMedia(str(f, "file_data"), str(f, "file_id"), str(f, "filename"))
		case "input_audio":
			c.kind, c.raw = audio, field(p, "input_audio")
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
	for _, t := range rawjson.Elements(field(body, "tools")) {
		in := field(t, "function")
		if c := field(t, "custom"); len(c) > 0 {
			r.tools = append(r.tools, tool{name: str(c, "name"), description: str(c, "description"), custom: true,
				format: field(c, "format"), cache: cacheOf(t)})
			continue
		}
		if len(in) == 0 {
			r.refuse("tools", "a tool of type %q", str(t, "type"))
			continue
		}
		r.tools = append(r.tools, tool{name: str(in, "name"), description: str(in, "description"),
			schema: field(in, "parameters"), strict: field(in, "strict"), cache: cacheOf(t)})
	}
	for _, f := range rawjson.Elements(field(body, "functions")) {
		r.tools = append(r.tools, tool{name: str(f, "name"), description: str(f, "description"),
			schema: field(f, "parameters")})
	}
	raw := field(body, "tool_choice")
	if len(raw) == 0 {
		raw = field(body, "function_call")
	}
	r.choice = openAIChoice(raw)
	r.choice.serial = string(field(body, "parallel_tool_calls")) == "false"
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
			if in := field(t, key); len(in) > 0 {
				return str(in, "name")
			}
		}
		return str(t, "name")
	}
	switch kind := str(raw, "type"); {
	case kind == "allowed_tools":
		in := raw
		if nested := field(raw, "allowed_tools"); len(nested) > 0 {
			in = nested
		}
		c.mode = "auto"
		if str(in, "mode") == "required" {
			c.mode = "any"
		}
		for _, t := range rawjson.Elements(field(in, "tools")) {
			c.allowed = append(c.allowed, name(t))
		}
	case name(raw) != "":
		c.mode, c.name = "tool", name(raw)
	case kind != "":
		c.mode, c.name = "hosted", kind
	}
	return c
}
