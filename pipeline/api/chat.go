// Package api reads a request as its caller brings it: the metadata of contracts T3 and the body's own checks. The
// HTTP faces and the NATS face use the same rules, so that a request means the same whichever way it comes in.
package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
)

// Bounds at the edge (security.md: nesting and parameter blow-up). They are far above what real requests hold.
const (
	MaxDepth    = 64
	maxValues   = 500_000
	MaxMessages = 10_000
	MaxTools    = 1_024
	MaxStops    = 256
	maxN        = 128
	maxTokens   = 1 << 24
	maxModel    = 256
)

// Chat is what the entry reads of a chat body. The body itself goes on as it came.
type Chat struct {
	Model    string
	Stream   bool
	Label    string // metadata.session_id, cut to MaxMeta bytes
	SafetyID string // safety_identifier
	User     string
}

// ParseChat checks a chat body as far as the gateway answers for it: it is JSON within the bounds, it names a model,
// it has messages. What only the model can judge is left to it. A field that the gateway decides by may not come
// twice, nor model in another case: the next reader might take the other one, past the key's list of models.
func ParseChat(body []byte) (Chat, *messages.Fault) {
	return ParseModel(messages.ChatWire, body)
}

// lists are the fields in which the wires have the conversation.
var lists = map[messages.Wire]string{
	messages.ChatWire: "messages", messages.ResponsesWire: "input", messages.MessagesWire: "messages",
}

// ParseModel is ParseChat for a body of any wire.
func ParseModel(w messages.Wire, body []byte) (Chat, *messages.Fault) {
	var c Chat
	list := lists[w.Or()]
	if len(bytes.TrimSpace(body)) == 0 {
		return c, Invalid("", "the body is empty; send a JSON object with model and %s", list)
	}
	if f := WellFormed(body); f != nil {
		return c, f
	}
	fields := map[string]gjson.Result{}
	root := gjson.ParseBytes(body)
	twice := ""
	root.ForEach(func(k, v gjson.Result) bool {
		if _, seen := fields[k.Str]; seen || k.Str != "model" && strings.EqualFold(k.Str, "model") {
			twice = k.Str
		}
		switch k.Str {
		case "model", "messages", "input", "stream", "n", "tools", "functions", "stop", "stop_sequences", "max_tokens",
			"max_completion_tokens", "max_output_tokens", "metadata", "safety_identifier", "user":
			fields[k.Str] = v
		}
		return true
	})
	if twice != "" {
		return c, Invalid(twice, "%s is given twice, or in another case; write it once, in small letters", twice)
	}
	if f := checkModel(fields["model"], &c); f != nil {
		return c, f
	}
	if f := checkList(w, list, fields[list]); f != nil {
		return c, f
	}
	switch v := fields["stream"]; v.Type {
	case gjson.True:
		c.Stream = true
	case gjson.False, gjson.Null:
	default:
		return c, Invalid("stream", "stream must be true or false")
	}
	if f := checkBounds(fields); f != nil {
		return c, f
	}
	fields["metadata"].ForEach(func(k, v gjson.Result) bool {
		if k.Str == "session_id" && v.Type == gjson.String {
			c.Label = strings.ToValidUTF8(v.Str[:min(len(v.Str), MaxMeta)], "")
		}
		return true
	})
	c.SafetyID, c.User = fields["safety_identifier"].Str, fields["user"].Str
	if w == messages.MessagesWire {
		c.User = fields["metadata"].Get("user_id").Str
	}
	return c, nil
}

// WellFormed checks the whole body before anything recursive reads it: depth and number of values first.
func WellFormed(body []byte) *messages.Fault {
	if f := JSONText(body); f != nil {
		return f
	}
	if !gjson.ParseBytes(body).IsObject() {
		return Invalid("", "the body must be a JSON object")
	}
	return nil
}

// JSONText is WellFormed for a body that may be any JSON value.
func JSONText(body []byte) *messages.Fault {
	if f := scan(body); f != nil {
		return f
	}
	switch {
	case len(bytes.TrimSpace(body)) == 0:
		return Invalid("", "the body is empty; send a JSON object")
	case !utf8.Valid(body):
		return Invalid("", "the body is not valid UTF-8")
	case !json.Valid(body):
		return Invalid("", "the body is not valid JSON: %s", jsonError(body))
	}
	return nil
}

func jsonError(body []byte) string {
	var v json.RawMessage
	at, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(body, &v))
	if !ok {
		return "it cannot be read"
	}
	return fmt.Sprintf("%v (byte %d)", at, at.Offset)
}

// scan counts nesting and values in one pass over the bytes, strings left out. It does not judge the grammar.
func scan(body []byte) *messages.Fault {
	depth, values := 0, 0
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '"':
			for i++; i < len(body) && body[i] != '"'; i++ {
				if body[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			values++
			if depth++; depth > MaxDepth {
				return messages.NewFault(messages.TooLarge, "the body is nested deeper than %d levels", MaxDepth).From("entry")
			}
		case '}', ']':
			depth--
		case ',':
			values++
		}
		if values > maxValues {
			return messages.NewFault(messages.TooLarge, "the body has more than %d values", maxValues).From("entry")
		}
	}
	return nil
}

func checkModel(v gjson.Result, c *Chat) *messages.Fault {
	switch {
	case !v.Exists():
		return Invalid("model", "model is missing; name the model to use")
	case v.Type != gjson.String || v.Str == "":
		return Invalid("model", "model must be a string that is not empty")
	case len(v.Str) > maxModel || strings.ContainsFunc(v.Str, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return Invalid("model", "model must be a name of up to %d bytes without control characters", maxModel)
	}
	c.Model = v.Str
	return nil
}

// checkList checks the conversation. On the responses wire it may be a text, or stand elsewhere.
func checkList(w messages.Wire, list string, v gjson.Result) *messages.Fault {
	switch {
	case w == messages.ResponsesWire && (!v.Exists() || v.Type == gjson.String || v.Type == gjson.Null):
		return nil
	case !v.Exists():
		return Invalid(list, "%s is missing; send at least one message", list)
	case !v.IsArray():
		return Invalid(list, "%s must be an array", list)
	}
	n, bad := 0, -1
	v.ForEach(func(_, m gjson.Result) bool {
		if bad < 0 && !m.IsObject() {
			bad = n
		}
		n++
		return n <= MaxMessages
	})
	switch {
	case n == 0 && w != messages.ResponsesWire:
		return Invalid(list, "%s is empty; send at least one message", list)
	case n > MaxMessages:
		return tooMany(list, MaxMessages)
	case bad >= 0:
		param := fmt.Sprintf("%s[%d]", list, bad)
		return Invalid(param, "%s must be an object", param)
	}
	return nil
}

// checkBounds holds the numbers that multiply work or memory.
func checkBounds(fields map[string]gjson.Result) *messages.Fault {
	for _, b := range []struct {
		name string
		max  int
	}{{"tools", MaxTools}, {"functions", MaxTools}, {"stop", MaxStops}, {"stop_sequences", MaxStops}} {
		n := 0
		if v := fields[b.name]; v.IsArray() {
			v.ForEach(func(_, _ gjson.Result) bool { n++; return n <= b.max })
		}
		if n > b.max {
			return tooMany(b.name, b.max)
		}
	}
	for _, b := range []struct {
		name string
		max  float64
	}{{"n", maxN}, {"max_tokens", maxTokens}, {"max_completion_tokens", maxTokens}, {"max_output_tokens", maxTokens}} {
		if v := fields[b.name]; v.Type == gjson.Number && v.Num > b.max {
			return Invalid(b.name, "%s is %s; at most %.0f is taken", b.name, clip(v.Raw), b.max)
		}
	}
	return nil
}

func clip(s string) string {
	if len(s) > 32 {
		return s[:32] + "..."
	}
	return s
}

func tooMany(param string, limit int) *messages.Fault {
	return messages.NewFault(messages.TooLarge, "%s has more than %d entries", param, limit).At(param).From("entry")
}
