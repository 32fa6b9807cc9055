package pii

import (
	"encoding/json"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// notText are the fields whose strings the API defines as names, choices or bytes. Every other string is text that
// somebody wrote, in fields that are not known yet too.
var notText = set("type", "role", "id", "object", "model", "tool_call_id", "call_id", "finish_reason", "system_fingerprint",
	"service_tier", "format", "voice", "detail", "effort", "reasoning_effort", "verbosity", "modalities", "mime_type",
	"media_type", "file_id", "file_data", "data", "b64_json", "signature", "thought_signature", "encrypted_content",
	"tool_choice", "image_url", "video_url", "include", "truncation", "prompt_cache_retention", "search_context_size")

// named are the objects whose name says which function is meant; elsewhere a name is that of a person.
var named = set("function", "custom", "function_call", "functions", "json_schema", "grammar", "tools")

// arguments are the fields that hold JSON as a text; schemas those that hold a JSON Schema.
var (
	arguments = set("arguments")
	schemas   = set("parameters", "schema", "input_schema", "output_schema")
)

// Of a JSON Schema: texts for people, objects of schemas by name, and what holds schemas itself. The rest decides what is
// valid and stays.
var (
	schemaTexts = set("title", "description", "$comment", "default", "examples")
	schemaMaps  = set("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
	schemaParts = set("items", "prefixItems", "additionalProperties", "contains", "not", "if", "then", "else", "anyOf", "allOf",
		"oneOf", "propertyNames", "unevaluatedItems", "unevaluatedProperties")
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
}

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
		return mapFields(raw, func(k string, v []byte) []byte {
			if schemas[k] {
				return w.schema(v)
			}
			return w.value(v, k, key)
		})
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

// editArguments edits the string values of an argument text; one that is no JSON is a plain text.
func (e *Editor) editArguments(args string) string {
	if !json.Valid([]byte(args)) {
		return e.Edit(args)
	}
	return string(MapStrings([]byte(args), e.Edit))
}

// EditRequest edits every text of a chat request. Tool results are edited if results says so, the rest if input does.
func (e *Editor) EditRequest(request []byte, input, results bool) []byte {
	w := texts{text: e.Edit, args: e.editArguments}
	return mapFields(request, func(key string, v []byte) []byte {
		if key != "messages" {
			e.field, e.Message = key, -1
			switch {
			case !input:
				return v
			case key == "metadata": // its keys are the caller's own
				return MapStrings(v, e.Edit)
			}
			return w.value(v, key, "")
		}
		e.Message = -1
		return mapElements(v, func(m []byte) []byte {
			e.Message++
			role, _ := rawjson.FieldString(m, "role")
			if result := role == "tool" || role == "function"; result && !results || !result && !input {
				return m
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

// EditReply edits every text of a reply but its tool calls, which are passed on as the model made them.
func (e *Editor) EditReply(reply []byte) []byte {
	return eachMessage(reply, func(i int) { e.Message = i }, texts{text: e.Edit, args: func(s string) string { return s }}, e.logprobs)
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
	return eachMessage(reply, func(int) {}, texts{text: put(b.texts, false), args: put(b.args, true)}, nil)
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

// logprobs are the tokens of a text, and beside each what might have stood there. Where the text that they spell holds a
// find, or one of them does by itself, they go as a whole: a token cannot be hidden without telling what it was.
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
