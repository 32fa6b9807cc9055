// Package api reads requests as callers bring them: their metadata, and the checks of the body. HTTP, NATS and MCP use
// the same rules, so that a request means the same whichever way it comes in.
package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Bounds against bodies that nest or multiply. They are far above what real requests hold.
const (
	MaxDepth    = 64
	maxValues   = 500_000
	maxKeys     = 10_000 // of one object
	MaxMessages = 10_000
	MaxTools    = 1_024
	MaxStops    = 256
	maxN        = 128
	maxTokens   = 1 << 24
	maxModel    = 256
	maxInputs   = 100_000 // to be embedded
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
// it has messages. What only the model can judge is left to it. The model may not stand there in another case: the
// next reader might take it for the model, past the key's list of models.
func ParseChat(body []byte) (Chat, *messages.Fault) {
	return ParseModel(messages.ChatWire, body)
}

// lists are the fields in which the wires have the conversation.
var lists = map[messages.Wire]string{
	messages.ChatWire: "messages", messages.ResponsesWire: "input", messages.MessagesWire: "messages",
	messages.EmbeddingsWire: "input",
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
	var talk []byte // messages may be large, so nothing copies them
	odd := ""
	rawjson.EachField(body, func(key string, raw []byte) {
		if key != "model" && strings.EqualFold(key, "model") {
			odd = key
		}
		switch key {
		case list:
			talk = raw
		case "model", "stream", "n", "tools", "functions", "stop", "stop_sequences", "max_tokens",
			"max_completion_tokens", "max_output_tokens", "metadata", "safety_identifier", "user":
			fields[key] = gjson.ParseBytes(raw)
		}
	})
	if odd != "" {
		return c, Invalid(odd, "%s is not known; write model in small letters", odd)
	}
	if f := checkModel(fields["model"], &c); f != nil {
		return c, f
	}
	check := checkList
	if w == messages.EmbeddingsWire {
		check = checkInputs
	}
	if f := check(w, list, talk); f != nil {
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

// WellFormed checks the whole body before anything recursive reads it: depth and number of values first, then that no
// object holds a key twice, because one reader would take the first and the next the last.
func WellFormed(body []byte) *messages.Fault {
	if f := JSONText(body); f != nil {
		return f
	}
	if bytes.TrimLeft(body, " \t\r\n")[0] != '{' {
		return Invalid("", "the body must be a JSON object")
	}
	return nil
}

// JSONText is WellFormed for a body that may be any JSON value.
func JSONText(body []byte) *messages.Fault {
	if f := scan(body, true); f != nil {
		return f
	}
	switch {
	case len(bytes.TrimSpace(body)) == 0:
		return Invalid("", "the body is empty; send a JSON object")
	case !utf8.Valid(body):
		return Invalid("", "the body is not valid UTF-8")
	case !messages.IsJSON(body):
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

func checkModel(v gjson.Result, c *Chat) *messages.Fault {
	switch {
	case !v.Exists():
		return Invalid("model", "model is missing; name the model to use")
	case v.Type != gjson.String || v.Str == "":
		return Invalid("model", "model must be a non-empty string")
	case len(v.Str) > maxModel || strings.ContainsFunc(v.Str, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return Invalid("model", "model must be a name of up to %d bytes without control characters", maxModel)
	}
	c.Model = v.Str
	return nil
}

// checkList checks the conversation. On the responses wire it may be a text, or stand elsewhere.
func checkList(w messages.Wire, list string, raw []byte) *messages.Fault {
	switch {
	case w == messages.ResponsesWire && (raw == nil || raw[0] == '"' || rawjson.IsNull(raw)):
		return nil
	case raw == nil:
		return Invalid(list, "%s is missing; send at least one message", list)
	}
	all := rawjson.Elements(raw)
	switch {
	case all == nil:
		return Invalid(list, "%s must be an array", list)
	case len(all) == 0 && w != messages.ResponsesWire:
		return Invalid(list, "%s is empty; send at least one message", list)
	case len(all) > MaxMessages:
		return tooMany(list, MaxMessages)
	}
	if bad := slices.IndexFunc(all, func(m []byte) bool { return m[0] != '{' }); bad >= 0 {
		param := fmt.Sprintf("%s[%d]", list, bad)
		return Invalid(param, "%s must be an object", param)
	}
	return nil
}

// checkInputs checks what is to be embedded: a text or its tokens, or a list of either.
func checkInputs(_ messages.Wire, list string, raw []byte) *messages.Fault {
	if raw == nil {
		return Invalid(list, "%s is missing; send a text or a list of texts", list)
	}
	all := rawjson.Elements(raw)
	each := func(ok func(raw []byte) bool) bool {
		return !slices.ContainsFunc(all, func(e []byte) bool { return !ok(e) })
	}
	switch {
	case isInput(raw): // one text
	case len(all) == 0, !each(isInput) && !each(isToken) && !each(areTokens):
		return Invalid(list, "%s must be a text or a list of texts, or of tokens; none may be empty", list)
	case len(all) > maxInputs:
		return tooMany(list, maxInputs)
	}
	return nil
}

func isInput(raw []byte) bool {
	s, ok := rawjson.IsString(raw)
	return ok && s != ""
}

func isToken(raw []byte) bool {
	n, ok := rawjson.Int(raw)
	return ok && n >= 0
}

func areTokens(raw []byte) bool {
	list := rawjson.Elements(raw)
	return len(list) > 0 && !slices.ContainsFunc(list, func(t []byte) bool { return !isToken(t) })
}

// checkBounds limits the numbers that multiply work or memory.
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
			return Invalid(b.name, "%s is %s; the maximum is %.0f", b.name, messages.Clip(v.Raw, 32), b.max)
		}
	}
	return nil
}

func tooMany(param string, limit int) *messages.Fault {
	return Refused(messages.TooLarge, "%s has more than %d entries", param, limit).At(param)
}
