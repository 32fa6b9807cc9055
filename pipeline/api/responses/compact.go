package responses

import (
	"encoding/base64"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
)

// A conversation is compacted by a model, which writes a summary of it. The summary travels in an item of type
// compaction, as clients of the API know it, and is put into its place as a message when it comes back: so it works
// with every provider, and stages read it as they read any text. Compactions of a provider are left to it.

const (
	compactMark = "shallot.compact."
	// summarise is what the model is asked. It comes last, so that the model's instructions do not stand against it.
	// Clients may leave out everything before it, the messages of the user too.
	summarise = "Write a summary of the conversation above that replaces it. Whoever goes on may read nothing else. " +
		"Keep what the user asked for, what was decided and why, names, numbers and file names word for word, " +
		"results of tools that still matter, and what is left to do. Answer with the summary alone."
	summary = "Summary of the conversation so far:\n\n"
)

// Compaction is the body of the model call that compacts what the turn refers to.
func (t *Turn) Compaction() []byte {
	body := rawjson.SetField([]byte("{}"), "model", rawjson.Encode(view.ModelName(t.Body)))
	if raw, ok := rawjson.Field(t.Body, "instructions"); ok {
		body = rawjson.SetField(body, "instructions", raw)
	}
	ask := rawjson.Encode(map[string]string{"type": "message", "role": "user", "content": summarise})
	body = rawjson.SetField(body, "input", rawjson.Array(append(inputOf(t.Body), ask)))
	return rawjson.SetField(body, "store", []byte("false"))
}

// Compacted is the answer of a call that compacts: the user's messages and the summary that the reply holds. ok is
// false if it holds none.
func (t *Turn) Compacted(call string, created int64, reply []byte) (out []byte, ok bool) {
	v := view.Of(messages.ResponsesWire)
	text := ""
	for _, c := range v.Choices(reply) {
		text += c.Message().Text()
	}
	if strings.TrimSpace(text) == "" {
		return nil, false
	}
	var items [][]byte
	for i, item := range inputOf(t.Body) {
		if rawjson.Text(item, "role") == "user" {
			items = append(items, withID(Shown(item), ID(call), i))
		}
	}
	items = append(items, rawjson.Encode(map[string]string{"id": "cmp_" + call, "type": "compaction",
		"encrypted_content": compactMark + base64.RawURLEncoding.EncodeToString([]byte(text))}))
	out = rawjson.SetFieldString([]byte(`{"id":"","object":"response.compaction"}`), "id", ID(call))
	out = rawjson.SetField(out, "created_at", rawjson.Encode(created))
	out = rawjson.SetField(out, "output", rawjson.Array(items))
	usage, _ := rawjson.Field(reply, "usage")
	if len(usage) == 0 {
		usage = []byte("null")
	}
	return rawjson.SetField(out, "usage", usage), true
}

// expanded puts a summary in the place of a compaction that was made here; every other item keeps its bytes.
func expanded(item []byte) []byte {
	if kind, _ := rawjson.FieldString(item, "type"); kind != "compaction" {
		return item
	}
	sealed := rawjson.Text(item, "encrypted_content")
	rest, ours := strings.CutPrefix(sealed, compactMark)
	text, err := base64.RawURLEncoding.DecodeString(rest)
	if !ours || err != nil {
		return item
	}
	return rawjson.Encode(struct {
		Type    string              `json:"type"`
		Role    string              `json:"role"`
		Content []map[string]string `json:"content"`
	}{"message", "user", []map[string]string{{"type": "input_text", "text": summary + string(text)}}})
}
