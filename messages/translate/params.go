package translate

import (
	"encoding/json"
	"strconv"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// params are the settings of a request. Those of the table go by name; the others have their own rules.
type params struct {
	plain  map[string][]byte
	limit  int64
	stream bool
	effort string // none, minimal, low, medium, high, xhigh, max
	format format
	stop   []string
	user   string
	logs   bool // log probabilities of the answer's tokens
}

// format is how the answer is to be written.
type format struct {
	kind              string // json_object or json_schema
	name, description string
	schema, strict    []byte
}

// setting is a field that wires have under their own names, or not at all.
type setting struct{ chat, responses, messages string }

func (s setting) on(w messages.Wire) string {
	switch w {
	case messages.ResponsesWire:
		return s.responses
	case messages.MessagesWire:
		return s.messages
	}
	return s.chat
}

// settings are copied from wire to wire. One that the provider's wire does not have is dropped and said.
var settings = []setting{
	{"temperature", "temperature", "temperature"},
	{"top_p", "top_p", "top_p"},
	{"top_k", "", "top_k"},
	{"seed", "", ""},
	{"presence_penalty", "presence_penalty", ""},
	{"frequency_penalty", "frequency_penalty", ""},
	{"logit_bias", "", ""},
	{"top_logprobs", "top_logprobs", ""},
	{"metadata", "metadata", ""},
	{"safety_identifier", "safety_identifier", ""},
	{"prompt_cache_key", "prompt_cache_key", ""},
	{"prompt_cache_retention", "prompt_cache_retention", ""},
	{"service_tier", "service_tier", ""},
	{"store", "store", ""},
	{"verbosity", "text.verbosity", ""},
}

// unsaid are values that say what holds anyway: dropping them changes nothing.
var unsaid = map[string]string{
	"store": "false", "service_tier": `"auto"`, "truncation": `"disabled"`, "background": "false", "n": "1",
	"top_logprobs": "0", "presence_penalty": "0", "frequency_penalty": "0", "logprobs": "false", "metadata": "{}",
	"logit_bias": "{}", "include": "[]", "modalities": `["text"]`,
}

func (r *request) readSettings(w messages.Wire, body []byte) map[string]bool {
	known := map[string]bool{}
	r.params.plain = map[string][]byte{}
	for _, s := range settings {
		name := s.on(w)
		if name == "" || name == "text.verbosity" {
			continue
		}
		known[name] = true
		if raw, ok := rawjson.Field(body, name); ok && !rawjson.IsNull(raw) {
			r.params.plain[s.chat] = raw
		}
	}
	return known
}

func (r *request) writeSettings(w messages.Wire, body []byte) []byte {
	for _, s := range settings {
		raw, ok := r.params.plain[s.chat]
		if !ok {
			continue
		}
		name := s.on(w)
		switch {
		case name == "text.verbosity":
			continue
		case name == "":
			if unsaid[s.chat] != string(raw) {
				r.drop(s.chat)
			}
			continue
		case name == "temperature" && w == messages.MessagesWire:
			if n, err := strconv.ParseFloat(string(raw), 64); err == nil && n > 1 { // its scale ends at 1
				raw = []byte("1")
				r.drop("temperature above 1")
			}
		}
		body = rawjson.SetField(body, name, raw)
	}
	return body
}

// efforts of the messages wire.
var efforts = map[string]string{
	"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "max", "max": "max",
}

// effortOf reads how much thinking a request of the messages wire wants.
func effortOf(body []byte) string {
	if e := rawjson.Text(rawjson.At(body, "output_config"), "effort"); e != "" {
		return e
	}
	thinking := rawjson.At(body, "thinking")
	if rawjson.Text(thinking, "type") != "enabled" {
		return ""
	}
	switch n := integer(thinking, "budget_tokens"); {
	case n < 4096:
		return "low"
	case n < 16384:
		return "medium"
	}
	return "high"
}

// openAIEffort is the effort in the words of chat and responses.
func openAIEffort(e string) string {
	if e == "max" {
		return "xhigh"
	}
	return e
}

// formatOf reads a format in the words of chat (nested) or of responses and messages (flat).
func formatOf(raw []byte) format {
	kind := rawjson.Text(raw, "type")
	if kind != "json_object" && kind != "json_schema" {
		return format{}
	}
	in := raw
	if nested := rawjson.At(raw, "json_schema"); len(nested) > 0 {
		in = nested
	}
	return format{kind: kind, name: rawjson.Text(in, "name"), description: rawjson.Text(in, "description"),
		schema: rawjson.At(in, "schema"), strict: rawjson.At(in, "strict")}
}

func (f format) fields() []any {
	name := f.name
	if name == "" {
		name = "answer"
	}
	var description any = []byte(nil)
	if f.description != "" {
		description = f.description
	}
	return []any{"name", name, "description", description, "schema", f.schema, "strict", f.strict}
}

func stops(raw []byte) (out []string) {
	if s, ok := rawjson.IsString(raw); ok {
		return []string{s}
	}
	_ = json.Unmarshal(raw, &out)
	return out
}
