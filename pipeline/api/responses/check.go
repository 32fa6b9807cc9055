package responses

import (
	"fmt"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// A response repeats what its request said. So a request is checked as far as clients rely on what they read back. What
// only a model can judge, such as how long its answers may be at most, is left to the provider.

// Bounds of metadata.
const (
	maxMetadata      = 16 // pairs
	maxMetadataKey   = 64 // characters
	maxMetadataValue = 512
)

// checked are fields that a response repeats, with what they must be.
var checked = map[string]struct {
	what string
	ok   func(v gjson.Result) bool
}{
	"instructions":         {"a text", isText},
	"max_output_tokens":    {"a whole number of 1 or more", isCount},
	"max_tool_calls":       {"a whole number of 1 or more", isCount},
	"parallel_tool_calls":  {"true or false", gjson.Result.IsBool},
	"temperature":          {"a number", isNumber},
	"top_p":                {"a number", isNumber},
	"presence_penalty":     {"a number", isNumber},
	"frequency_penalty":    {"a number", isNumber},
	"top_logprobs":         {"a whole number of 0 or more", isWhole},
	"prompt_cache_key":     {"a text", isText},
	"safety_identifier":    {"a text", isText},
	"service_tier":         {"a text", isText},
	"user":                 {"a text", isText},
	"truncation":           {"auto or disabled", isTruncation},
	"reasoning":            {"an object", gjson.Result.IsObject},
	"text":                 {"an object", gjson.Result.IsObject},
	"include":              {"an array of texts", func(v gjson.Result) bool { return all(v, isText) }},
	"tools":                {"an array of objects", func(v gjson.Result) bool { return all(v, gjson.Result.IsObject) }},
	"tool_choice":          {"a text or an object", func(v gjson.Result) bool { return isText(v) || v.IsObject() }},
	"previous_response_id": {"the id of a response", func(v gjson.Result) bool { return v.Str != "" }},
}

func isTruncation(v gjson.Result) bool { return v.Str == "auto" || v.Str == "disabled" }

func isText(v gjson.Result) bool   { return v.Type == gjson.String }
func isNumber(v gjson.Result) bool { return v.Type == gjson.Number }
func isCount(v gjson.Result) bool  { return isWhole(v) && v.Num >= 1 }

func isWhole(v gjson.Result) bool {
	n, ok := rawjson.Int([]byte(v.Raw))
	return ok && n >= 0
}

func all(list gjson.Result, ok func(gjson.Result) bool) bool {
	fine := list.IsArray()
	list.ForEach(func(_, v gjson.Result) bool {
		fine = fine && ok(v)
		return fine
	})
	return fine
}

// check refuses a request that nobody could answer, or whose response would not be one that clients can read.
func check(body []byte) error {
	var wrong *messages.Fault
	rawjson.EachField(body, func(key string, raw []byte) {
		c, known := checked[key]
		if wrong == nil && known && !rawjson.IsNull(raw) && !c.ok(gjson.ParseBytes(raw)) {
			wrong = api.Invalid(key, "%s must be %s", key, c.what)
		}
	})
	if wrong != nil {
		return wrong
	}
	for i, tool := range rawjson.Elements(rawjson.At(body, "tools")) {
		kind := rawjson.Text(tool, "type")
		switch {
		case kind == "":
			return api.Invalid(fmt.Sprintf("tools[%d].type", i), "tools[%d] has no type", i)
		case (kind == "function" || kind == "custom") && rawjson.Text(tool, "name") == "":
			return api.Invalid(fmt.Sprintf("tools[%d].name", i), "tools[%d] has no name", i)
		}
	}
	_, err := metadata(body)
	return err
}

// metadata reads the labels of a response or a conversation.
func metadata(body []byte) (map[string]string, error) {
	m := map[string]string{}
	raw := rawjson.At(body, "metadata")
	if rawjson.IsNull(raw) {
		return m, nil
	}
	ok := raw[0] == '{'
	rawjson.EachField(raw, func(key string, value []byte) {
		text, is := rawjson.IsString(value)
		ok = ok && is && utf8.RuneCountInString(key) <= maxMetadataKey && utf8.RuneCountInString(text) <= maxMetadataValue
		m[key] = text
	})
	if !ok || len(m) > maxMetadata {
		return nil, api.Invalid("metadata", "metadata must be an object of up to %d texts of up to %d characters, with "+
			"keys of up to %d", maxMetadata, maxMetadataValue, maxMetadataKey)
	}
	return m, nil
}

// nothing reports whether a request gives a model nothing to answer.
func (t *Turn) nothing() bool {
	raw := rawjson.At(t.Body, "input")
	return t.Previous == "" && t.Conversation == "" && (rawjson.IsNull(raw) || len(t.input) == 0) &&
		rawjson.IsNull(rawjson.At(t.Body, "prompt"))
}
