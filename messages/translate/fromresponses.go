package translate

import (
	"fmt"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

func (r *request) fromResponses(body []byte) {
	known := r.readSettings(messages.ResponsesWire, body)
	for k := range names("model", "input", "instructions", "stream", "stream_options", "tools", "tool_choice", "text",
		"parallel_tool_calls", "max_output_tokens", "reasoning", "include", "user", "prompt", "previous_response_id",
		"conversation") {
		known[k] = true
	}
	rawjson.EachField(body, func(key string, raw []byte) {
		if !known[key] && !rawjson.IsNull(raw) && unsaid[key] != string(raw) {
			r.drop(key)
		}
	})
	p := &r.params
	p.stream, p.user = flag(body, "stream"), rawjson.Text(body, "user")
	p.limit = r.limited(body, "max_output_tokens")
	p.format = formatOf(rawjson.At(body, "text", "format"))
	if v := rawjson.At(body, "text", "verbosity"); len(v) > 0 && !rawjson.IsNull(v) {
		p.plain["verbosity"] = v
	}
	p.effort = rawjson.Text(rawjson.At(body, "reasoning"), "effort")
	rawjson.EachField(rawjson.At(body, "reasoning"), func(key string, raw []byte) {
		if key != "effort" && !rawjson.IsNull(raw) {
			r.drop("reasoning." + key)
		}
	})
	for _, e := range rawjson.Elements(rawjson.At(body, "include")) {
		switch s, _ := rawjson.IsString(e); s {
		case "reasoning.encrypted_content": // it always comes
		case "message.output_text.logprobs":
			p.logs = true
		default:
			r.drop("include " + s)
		}
	}
	for _, key := range []string{"prompt", "previous_response_id", "conversation"} {
		if raw, ok := rawjson.Field(body, key); ok && !rawjson.IsNull(raw) {
			r.refuse(key, "what it stands for is not known to the provider")
		}
	}
	r.responsesTools(body)
	if s := rawjson.Text(body, "instructions"); s != "" {
		r.system = append(r.system, part{kind: text, text: s})
	}
	if s, ok := rawjson.FieldString(body, "input"); ok {
		r.turns = append(r.turns, turn{"user", []part{{kind: text, text: s}}})
	}
	for i, item := range rawjson.Elements(rawjson.At(body, "input")) {
		r.item(i, item)
	}
}

// item reads one item of the input. Items that tell of what another provider's own tools did are dropped and said.
func (r *request) item(i int, item []byte) {
	say := func(role string, parts ...part) { r.turns = append(r.turns, turn{role, parts}) }
	switch kind := rawjson.Text(item, "type"); kind {
	case "message", "":
		role := rawjson.Text(item, "role")
		if role == "" {
			r.refuse(fmt.Sprintf("input[%d]", i), "an item without a type that nobody has looked up")
			return
		}
		if rawjson.Text(item, "phase") != "" {
			r.drop("input.phase")
		}
		parts := r.inputParts(rawjson.At(item, "content"))
		switch {
		case role == "user" || role == "assistant":
			say(role, parts...)
		case role != "system" && role != "developer":
			r.refuse(fmt.Sprintf("input[%d].role", i), "a message of the role %q", role)
		case len(r.turns) == 0:
			r.system = append(r.system, parts...)
		default:
			say("system", parts...)
		}
	case "function_call", "custom_tool_call":
		p := part{kind: call, id: rawjson.Text(item, "call_id"), args: rawjson.Text(item, "arguments"),
			name: flatName(rawjson.Text(item, "namespace"), rawjson.Text(item, "name"))}
		if kind == "custom_tool_call" {
			p.custom, p.args = true, rawjson.Text(item, "input")
		}
		say("assistant", p)
	case "function_call_output", "custom_tool_call_output":
		say("user", part{kind: result, id: rawjson.Text(item, "call_id"), inner: r.inputParts(rawjson.At(item, "output"))})
	case "reasoning":
		if raw := r.pair.mine(rawjson.Text(item, "encrypted_content")); raw != nil {
			say("assistant", part{kind: thought, raw: raw})
		}
	case "item_reference":
		r.refuse(fmt.Sprintf("input[%d]", i), "an item_reference that nobody has looked up")
	case "additional_tools":
		r.readTools(rawjson.At(item, "tools"))
	default:
		r.drop("input " + kind)
	}
}

func (r *request) inputParts(content []byte) (out []part) {
	if s, ok := rawjson.IsString(content); ok {
		return []part{{kind: text, text: s}}
	}
	for _, p := range rawjson.Elements(content) {
		c := part{cache: cacheOf(p)}
		switch kind := rawjson.Text(p, "type"); kind {
		case "input_text", "output_text", "text", "summary_text":
			c.text = rawjson.Text(p, "text")
		case "refusal":
			c.kind, c.text = refusal, rawjson.Text(p, "refusal")
		case "input_image":
			c.kind, c.media = image, mediaOf(rawjson.Text(p, "image_url"))
			c.media.id, c.media.detail = rawjson.Text(p, "file_id"), rawjson.Text(p, "detail")
		case "input_file":
			c.kind, c.media = file, fileMedia(rawjson.Text(p, "file_data"), rawjson.Text(p, "file_id"),
				rawjson.Text(p, "filename"))
			if u := rawjson.Text(p, "file_url"); u != "" {
				c.media.url = u
			}
		case "input_audio":
			c.kind, c.raw = audio, rawjson.At(p, "input_audio")
		default:
			r.refuse("input", "a content part of type %q", kind)
			continue
		}
		out = append(out, c)
	}
	return out
}

// Tools that clients offer whether or not they are needed: without them the model works on.
var optionalTools = []string{"web_search", "web_fetch", "tool_search", "programmatic_tool_calling"}

func (r *request) responsesTools(body []byte) {
	r.choice = openAIChoice(rawjson.At(body, "tool_choice"))
	if r.choice.mode == "tool" {
		r.choice.name = flatName(rawjson.Text(rawjson.At(body, "tool_choice"), "namespace"), r.choice.name)
	}
	r.choice.serial = string(rawjson.At(body, "parallel_tool_calls")) == "false"
	r.choice.parallel = flag(body, "parallel_tool_calls")
	r.readTools(rawjson.At(body, "tools"))
}

func (r *request) readTools(list []byte) {
	eachTool(list, "", func(space string, t []byte) {
		switch kind := rawjson.Text(t, "type"); kind {
		case "function", "custom":
			r.tools = append(r.tools, tool{name: flatName(space, rawjson.Text(t, "name")),
				description: rawjson.Text(t, "description"), schema: rawjson.At(t, "parameters"),
				strict: rawjson.At(t, "strict"), custom: kind == "custom", format: rawjson.At(t, "format")})
			for _, key := range []string{"defer_loading", "async", "output_schema", "allowed_callers"} {
				if v, ok := rawjson.Field(t, key); ok && !rawjson.IsNull(v) && string(v) != "false" {
					r.drop("tools." + key)
				}
			}
		default:
			r.hosted(kind)
		}
	})
}

// hosted handles a tool that only the maker of its wire runs: it is refused by name, but for those that clients always
// send along.
func (r *request) hosted(kind string) {
	for _, o := range optionalTools {
		if strings.HasPrefix(kind, o) {
			if r.choice.mode == "hosted" && strings.HasPrefix(r.choice.name, o) || r.choice.name == o {
				r.refuse("tool_choice", "the tool %s is chosen, and nobody runs it here", kind)
			}
			r.drop("tool " + kind)
			return
		}
	}
	r.refuse("tools", "nobody runs the tool %s here", kind)
}

// eachTool visits the tools of a list, those in a namespace too.
func eachTool(list []byte, space string, visit func(space string, t []byte)) {
	for _, t := range rawjson.Elements(list) {
		if rawjson.Text(t, "type") == "namespace" {
			eachTool(rawjson.At(t, "tools"), rawjson.Text(t, "name"), visit)
			continue
		}
		visit(space, t)
	}
}

// flatName is the name of a tool in a namespace for a provider that has none.
func flatName(space, name string) string {
	if space == "" {
		return name
	}
	return callID(space + "__" + name)
}
