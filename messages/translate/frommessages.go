package translate

import (
	"fmt"
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
	p.stream, p.limit = flag(body, "stream"), r.limited(body, "max_tokens")
	p.stop, p.user = stops(rawjson.At(body, "stop_sequences")), rawjson.Text(rawjson.At(body, "metadata"), "user_id")
	p.effort = effortOf(body)
	if p.format = formatOf(rawjson.At(body, "output_config", "format")); p.format.kind == "" {
		p.format = formatOf(rawjson.At(body, "output_format"))
	}
	rawjson.EachField(rawjson.At(body, "output_config"), func(key string, raw []byte) {
		if key != "effort" && key != "format" {
			r.drop("output_config." + key)
		}
	})
	r.messagesTools(body)
	for i, s := range r.blocks(rawjson.At(body, "system")) {
		if i == 0 && strings.HasPrefix(s.text, "x-anthropic-billing-header:") {
			continue // a mark for Anthropic, which others would take for a prompt
		}
		r.system = append(r.system, s)
	}
	for i, m := range rawjson.Elements(rawjson.At(body, "messages")) {
		role := rawjson.Text(m, "role")
		if role != "user" && role != "assistant" && role != "system" {
			r.refuse(fmt.Sprintf("messages[%d].role", i), "a message of the role %q", role)
		}
		r.turns = append(r.turns, turn{role, r.blocks(rawjson.At(m, "content"))})
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
	if c := rawjson.At(b, "citations"); len(c) > 2 && !rawjson.IsNull(c) {
		r.drop("citations")
	}
	switch kind := rawjson.Text(b, "type"); kind {
	case "text":
		p.text = rawjson.Text(b, "text")
	case "image":
		p.kind, p.media = image, sourceOf(rawjson.At(b, "source"))
	case "document":
		p.kind, p.media = file, sourceOf(rawjson.At(b, "source"))
		p.media.name = rawjson.Text(b, "title")
		if s := rawjson.At(b, "source"); rawjson.Text(s, "type") == "text" {
			return part{kind: text, text: rawjson.Text(s, "data"), cache: p.cache}, true
		}
	case "search_result":
		p.text = rawjson.Text(b, "title") + "\n" + texts(r.blocks(rawjson.At(b, "content")))
	case "tool_use":
		p.kind, p.id, p.name, p.args = call, rawjson.Text(b, "id"), rawjson.Text(b, "name"), string(rawjson.At(b, "input"))
	case "tool_result":
		p.kind, p.id, p.failed = result, rawjson.Text(b, "tool_use_id"), flag(b, "is_error")
		p.inner = r.blocks(rawjson.At(b, "content"))
	case "thinking", "redacted_thinking":
		p.kind = thought
		s := rawjson.Text(b, "signature")
		if kind == "redacted_thinking" {
			s = rawjson.Text(b, "data")
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
	switch rawjson.Text(s, "type") {
	case "base64":
		return media{kind: rawjson.Text(s, "media_type"), data: rawjson.Text(s, "data")}
	case "url":
		return media{url: rawjson.Text(s, "url")}
	case "file":
		return media{id: rawjson.Text(s, "file_id")}
	}
	return media{}
}

func (r *request) messagesTools(body []byte) {
	raw := rawjson.At(body, "tool_choice")
	r.choice = toolChoice{mode: rawjson.Text(raw, "type"), name: rawjson.Text(raw, "name"),
		serial: flag(raw, "disable_parallel_tool_use")}
	for _, t := range rawjson.Elements(rawjson.At(body, "tools")) {
		if kind := rawjson.Text(t, "type"); kind != "" && kind != "custom" {
			r.hosted(kind)
			if r.choice.name != "" && r.choice.name == rawjson.Text(t, "name") {
				r.refuse("tool_choice", "the tool %s is chosen, and nobody runs it here", kind)
			}
			continue
		}
		for _, key := range []string{"defer_loading", "input_examples", "allowed_callers", "eager_input_streaming"} {
			if v, ok := rawjson.Field(t, key); ok && !rawjson.IsNull(v) && string(v) != "false" {
				r.drop("tools." + key)
			}
		}
		r.tools = append(r.tools, tool{name: rawjson.Text(t, "name"), description: rawjson.Text(t, "description"),
			schema: rawjson.At(t, "input_schema"), strict: rawjson.At(t, "strict"), cache: cacheOf(t)})
	}
}
