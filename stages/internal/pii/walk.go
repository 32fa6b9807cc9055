package pii

import (
	"encoding/json"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// notText are the fields whose strings the API defines as names, choices or bytes. Every other string is text that
// somebody wrote, in fields that are not known yet too.
var notText = set("type", "role", "id", "object", "model", "tool_call_id", "call_id", "finish_reason",
	"system_fingerprint", "service_tier", "format", "voice", "detail", "effort", "reasoning_effort", "verbosity",
	"modalities", "mime_type", "media_type", "file_id", "file_data", "data", "b64_json", "signature",
	"thought_signature", "encrypted_content", "tool_choice", "image_url", "video_url", "file_url", "tool_use_id",
	"item_id", "namespace", "logprobs", "include", "truncation", "prompt_cache_retention", "search_context_size")

// named are the objects whose name says which function is meant; elsewhere a name is that of a person.
var named = set("function", "custom", "function_call", "functions", "json_schema", "grammar", "tools")

// calls are the types of objects that call a tool, whose name is that of the tool.
var calls = set("function_call", "custom_tool_call", "mcp_call", "tool_use", "server_tool_use")

// signed are the types of pieces that a signature covers: a client must give them back as they are, so nobody edits
// them. In a reply the summaries of reasoning items are not signed.
var signed = set("thinking", "redacted_thinking")

// sources are the types of a source whose strings are bytes and addresses.
var sources = set("base64", "url", "file")

// arguments are the fields that hold JSON as a text; schemas those that hold a JSON Schema.
var (
	arguments = set("arguments")
	schemas   = set("parameters", "schema", "input_schema", "output_schema")
)

// Of a JSON Schema: texts for people, objects of schemas by name, and what holds schemas itself. The rest decides what
// is valid and stays.
var (
	schemaTexts = set("title", "description", "$comment", "default", "examples")
	schemaMaps  = set("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
	schemaParts = set("items", "prefixItems", "additionalProperties", "contains", "not", "if", "then", "else", "anyOf",
		"allOf", "oneOf", "propertyNames", "unevaluatedItems", "unevaluatedProperties")
)

func set(names ...string) map[string]bool {
	out := make(map[string]bool, len(names))
	for _, n := range names {
		out[n] = true
	}
	return out
}

// texts edits the texts of a request or a reply by the schema of the API.
type texts struct {
	text func(string) string // a text
	args func(string) string // arguments of a call: JSON as a text
	// result edits what a tool returned; nil: as everything else.
	result func(raw []byte) []byte
	// reply says that the texts are those of a reply.
	reply bool
}

var results = set("tool_result", "function_call_output", "custom_tool_call_output")

// value edits what stands under a key; in is the key of the object around it.
func (w texts) value(raw []byte, key, in string) []byte {
	if len(raw) == 0 || notText[key] || key == "name" && named[in] {
		return raw
	}
	switch raw[0] {
	case '"':
		edit := w.text
		if arguments[key] || key == "input" && in == "custom" {
			edit = w.args
		}
		s, ok := rawjson.IsString(raw)
		if t := edit(s); ok && t != s {
			return rawjson.Encode(t)
		}
	case '[':
		return mapElements(raw, func(e []byte) []byte { return w.value(e, key, in) })
	case '{':
		return w.object(raw, key)
	}
	return raw
}

// object edits an object that stands under a key.
func (w texts) object(raw []byte, key string) []byte {
	kind, _ := rawjson.FieldString(raw, "type")
	switch {
	case signed[kind], kind == "reasoning" && !w.reply:
		return raw
	case results[kind] && w.result != nil:
		return w.result(raw)
	case key == "source" && kind == "text": // a document that is a text
		return mapFields(raw, func(k string, v []byte) []byte {
			if k != "data" {
				return v
			}
			return w.value(v, "text", key)
		})
	case key == "source" && sources[kind]:
		return raw
	}
	out := mapFields(raw, func(k string, v []byte) []byte {
		switch {
		case calls[kind] && k == "name":
			return v
		case calls[kind] && k == "input":
			return w.input(v)
		case schemas[k]:
			return w.schema(v)
		}
		return w.value(v, k, key)
	})
	if logs, ok := rawjson.Field(out, "logprobs"); ok && kind == "output_text" && string(out) != string(raw) &&
		len(rawjson.Elements(logs)) > 0 {
		out = rawjson.SetField(out, "logprobs", []byte("[]")) // they spell the text as it was
	}
	return out
}

// input edits the input of a call: free text, or the object that chat has as a text.
func (w texts) input(raw []byte) []byte {
	if s, ok := rawjson.IsString(raw); ok {
		if t := w.args(s); t != s {
			return rawjson.Encode(t)
		}
		return raw
	}
	if t := w.args(string(raw)); json.Valid([]byte(t)) {
		return []byte(t)
	}
	return raw
}

func (w texts) schema(raw []byte) []byte {
	if len(raw) > 0 && raw[0] == '[' {
		return mapElements(raw, w.schema)
	}
	return mapFields(raw, func(k string, v []byte) []byte {
		switch {
		case schemaTexts[k]:
			return MapStrings(v, w.text)
		case schemaMaps[k]:
			return mapFields(v, func(_ string, v []byte) []byte { return w.schema(v) })
		case schemaParts[k]:
			return w.schema(v)
		}
		return v
	})
}

// mapFields edits the values of an object; one that nothing changed keeps every byte.
func mapFields(raw []byte, edit func(key string, v []byte) []byte) []byte {
	changed := false
	out := []byte{'{'}
	rawjson.EachField(raw, func(key string, v []byte) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		e := edit(key, v)
		changed = changed || string(e) != string(v)
		out = append(append(append(out, rawjson.Encode(key)...), ':'), e...)
	})
	if !changed {
		return raw
	}
	return append(out, '}')
}

func mapElements(raw []byte, edit func(v []byte) []byte) []byte {
	elems := rawjson.Elements(raw)
	changed := false
	for i, v := range elems {
		e := edit(v)
		changed = changed || string(e) != string(v)
		elems[i] = e
	}
	if !changed {
		return raw
	}
	return rawjson.Array(elems)
}

// editArguments edits the string values of an argument text; one that is not JSON is a plain text.
func (e *Editor) editArguments(args string) string {
	if !json.Valid([]byte(args)) {
		return e.Edit(args)
	}
	return string(MapStrings([]byte(args), e.Edit))
}

// EditRequest edits every text of a request. Tool results are edited if results says so, the rest if input does.
func (e *Editor) EditRequest(request []byte, input, results bool) []byte {
	w := texts{text: e.Edit, args: e.editArguments}
	all := w
	w.result = func(raw []byte) []byte {
		if results {
			return all.fields(raw)
		}
		return raw
	}
	return mapFields(request, func(key string, v []byte) []byte {
		if key != "messages" && (key != "input" || len(v) == 0 || v[0] != '[') {
			e.field, e.Message = key, -1
			switch {
			case !input:
				return v
			case key == "metadata": // its keys are the caller's own
				return MapStrings(v, e.Edit)
			}
			return w.value(v, key, "")
		}
		e.Message, e.list = -1, key
		return mapElements(v, func(m []byte) []byte {
			e.Message++
			if len(m) > 0 && m[0] == '"' && input {
				e.field = "text"
				return w.value(m, key, "")
			}
			role, _ := rawjson.FieldString(m, "role")
			switch result := role == "tool" || role == "function"; {
			case result && !results:
				return m
			case !result && !input:
				return w.onlyResults(m)
			}
			kind, _ := rawjson.FieldString(m, "type")
			if kind != "" && kind != "message" { // an item of the responses wire
				e.field = "item"
				return w.object(m, key)
			}
			return mapFields(m, func(k string, v []byte) []byte {
				if e.field = k; role == "function" && k == "name" {
					return v
				}
				return w.value(v, k, "")
			})
		})
	})
}

// fields edits all fields of an object.
func (w texts) fields(raw []byte) []byte {
	return mapFields(raw, func(k string, v []byte) []byte { return w.value(v, k, "") })
}

// onlyResults edits the results of tools in a message or item, and nothing else.
func (w texts) onlyResults(m []byte) []byte {
	if kind, _ := rawjson.FieldString(m, "type"); results[kind] {
		return w.result(m)
	}
	content, _ := rawjson.Field(m, "content")
	edited := mapElements(content, func(b []byte) []byte {
		if kind, _ := rawjson.FieldString(b, "type"); results[kind] {
			return w.result(b)
		}
		return b
	})
	if len(content) == 0 || content[0] != '[' || string(edited) == string(content) {
		return m
	}
	return rawjson.SetField(m, "content", edited)
}

// EditReply edits every text of a reply but its tool calls, which are passed on as the model made them.
func (e *Editor) EditReply(reply []byte) []byte {
	w := texts{text: e.Edit, args: func(s string) string { return s }, reply: true}
	return eachMessage(reply, func(i int) { e.Message = i }, w, e.logprobs)
}

// Reply puts the values back in every text of a reply and in its tool calls.
func (b Back) Reply(reply []byte) []byte {
	if len(b.texts) == 0 {
		return reply
	}
	put := func(forms []form, args bool) func(string) string {
		return func(s string) string {
			p := putBack{forms: forms, args: args}
			return p.text(s) + p.flush()
		}
	}
	w := texts{text: put(b.texts, false), args: put(b.args, true), reply: true}
	return eachMessage(reply, func(int) {}, w, nil)
}

// eachMessage edits the texts of each choice, and those beside the choices. logprobs may be nil: they stay.
func eachMessage(reply []byte, begin func(choice int), w texts, logprobs func([]byte) []byte) []byte {
	return mapFields(reply, func(key string, v []byte) []byte {
		if key == "usage" {
			return v
		}
		if key != "choices" {
			return w.value(v, key, "")
		}
		i := -1
		return mapElements(v, func(choice []byte) []byte {
			i++
			begin(i)
			return mapFields(choice, func(k string, v []byte) []byte {
				switch {
				case k == "logprobs" && logprobs != nil:
					return logprobs(v)
				case k == "logprobs":
					return v
				}
				return w.value(v, k, "")
			})
		})
	})
}

// logprobs are the tokens of a text, and beside each what might have stood there. Where the text that they spell holds
// a find, or one of them does by itself, they go as a whole: a token cannot be hidden without telling what it was.
func (e *Editor) logprobs(raw []byte) []byte {
	found := false
	rawjson.EachField(raw, func(_ string, list []byte) {
		spelt := ""
		for _, token := range rawjson.Elements(list) {
			s, _ := rawjson.FieldString(token, "token")
			spelt += s
			others, _ := rawjson.Field(token, "top_logprobs")
			for _, o := range rawjson.Elements(others) {
				s, _ := rawjson.FieldString(o, "token")
				found = found || len(e.Rules.finds(s)) > 0
			}
		}
		found = found || len(e.Rules.finds(spelt)) > 0
	})
	if found {
		return []byte("null")
	}
	return raw
}
