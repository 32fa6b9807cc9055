package translate

import (
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

func (r *request) fromMessages(body []byte) {
	known := r.readSettings(messages.MessagesWire, body)
	for k := range names("model", "messages", "system", "max_tokens", "stop_sequences", "stream", "tools",
		"tool_choice", "metadata", "thinking", "output_config", "output_format") {
		known[k] = true
	}
	r.leftover(body, known)
	p := &r.params
	p.stream, p.limit = flag(body, "stream"), int64(integer(body, "max_tokens"))
	p.stop, p.user = stops(field(body, "stop_sequences")), str(field(body, "metadata"), "user_id")
	p.effort = effortOf(body)
	if p.format = formatOf(field(body, "output_config", "format")); p.format.kind == "" {
		p.format = formatOf(field(body, "output_format"))
	}
	rawjson.EachField(field(body, "output_config"), func(key string, raw []byte) {
		if key != "effort" && key != "format" {
			r.drop("output_config." + key)
		}
	})
	r.messagesTools(body)
	for i, s := range r.blocks(field(body, "system")) {
		if i == 0 && strings.HasPrefix(s.text, "x-anthropic-billing-header:") {
			continue // a mark for Anthropic, which others would take for a prompt
		}
		r.system = append(r.system, s)
	}
	for _, m := range rawjson.Elements(field(body, "messages")) {
		r.turns = append(r.turns, turn{str(m, "role"), r.blocks(field(m, "content"))})
	}
}

func (r *request) blocks(content []byte) (out []part) {
	if s, ok := rawjson.IsString(content); ok {
		return []part{{kind: text, text: s}}
	}
	for _, b := range rawjson.Elements(content) {
		if p, ok := r.block(b); ok {
			out = append(out, p)
		}
	}
	return out
}

func (r *request) block(b []byte) (p part, ok bool) {
	p.cache = cacheOf(b)
	if c := field(b, "citations"); len(c) > 2 && !rawjson.IsNull(c) {
		r.drop("citations")
	}
	switch kind := str(b, "type"); kind {
	case "text":
		p.text = str(b, "text")
	case "image":
		p.kind, p.media = image, sourceOf(field(b, "source"))
	case "document":
		p.kind, p.media = file, sourceOf(field(b, "source"))
		p.media.name = str(b, "title")
		if s := field(b, "source"); str(s, "type") == "text" {
			return part{kind: text, text: str(s, "data"), cache: p.cache}, true
		}
	case "search_result":
		p.text = str(b, "title") + "\n" + texts(r.blocks(field(b, "content")))
	case "tool_use":
		p.kind, p.id, p.name, p.args = call, str(b, "id"), str(b, "name"), string(field(b, "input"))
	case "tool_result":
		p.kind, p.id, p.failed = result, str(b, "tool_use_id"), flag(b, "is_error")
		p.inner = r.blocks(field(b, "content"))
	case "thinking", "redacted_thinking":
		p.kind = thought
		s := str(b, "signature")
		if kind == "redacted_thinking" {
			s = str(b, "data")
		}
		p.raw = r.pair.mine(s)
		return p, p.raw != nil
	default:
		r.drop("content " + kind)
		return p, false
	}
	return p, true
}

func sourceOf(s []byte) media {
	switch str(s, "type") {
	case "base64":
		return media{kind: str(s, "media_type"), data: str(s, "data")}
	case "url":
		return media{url: str(s, "url")}
	case "file":
		return media{id: str(s, "file_id")}
	}
	return media{}
}

func (r *request) messagesTools(body []byte) {
	raw := field(body, "tool_choice")
	r.choice = toolChoice{mode: str(raw, "type"), name: str(raw, "name"),
		serial: flag(raw, "disable_parallel_tool_use")}
	for _, t := range rawjson.Elements(field(body, "tools")) {
		if kind := str(t, "type"); kind != "" && kind != "custom" {
			r.hosted(kind)
			if r.choice.name != "" && r.choice.name == str(t, "name") {
				r.refuse("tool_choice", "the tool %s is chosen, and nobody runs it here", kind)
			}
			continue
		}
		for _, key := range []string{"defer_loading", "input_examples", "allowed_callers", "eager_input_streaming"} {
			if v, ok := rawjson.Field(t, key); ok && !rawjson.IsNull(v) && string(v) != "false" {
				r.drop("tools." + key)
			}
		}
		r.tools = append(r.tools, tool{name: str(t, "name"), description: str(t, "description"),
			schema: field(t, "input_schema"), strict: field(t, "strict"), cache: cacheOf(t)})
	}
}
