package view

import (
	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// embeddings is the wire of OpenAI's Embeddings API. Its texts are messages of the user, to be read and edited; there
// is no conversation to which something could be added, and a reply has no text.
type embeddings struct{ responses }

var _ dialect = embeddings{}

func (embeddings) Wire() messages.Wire { return messages.EmbeddingsWire }

func (v embeddings) Messages(request []byte) []Msg {
	var out []Msg
	for _, text := range inputs(request) {
		if isText(text) {
			out = append(out, Msg{of: v, role: "user", parts: [][]byte{text}})
		}
	}
	return out
}

func inputs(request []byte) [][]byte {
	raw := rawjson.At(request, "input")
	if isText(raw) {
		return [][]byte{raw}
	}
	return rawjson.Elements(raw)
}

// WithMessages puts edited texts in the places of the old. Where texts are missing or added it changes nothing: the
// caller counts on one embedding for each.
func (v embeddings) WithMessages(request []byte, msgs []Msg) []byte {
	list := inputs(request)
	n := 0
	for i, text := range list {
		if !isText(text) {
			continue
		}
		if n == len(msgs) || len(msgs[n].parts) != 1 || !isText(msgs[n].parts[0]) {
			return request
		}
		list[i] = msgs[n].parts[0]
		n++
	}
	switch {
	case n != len(msgs) || same(inputs(request), list):
		return request
	case isText(rawjson.At(request, "input")):
		return rawjson.SetField(request, "input", list[0])
	}
	return rawjson.SetField(request, "input", rawjson.Array(list))
}

func (embeddings) AppendSystem(request []byte, _ string) []byte { return request }

func (embeddings) OutputLimit([]byte) int64 { return 0 }

func (v embeddings) Choices(reply []byte) []Choice {
	data, ok := rawjson.Field(reply, "data")
	if !ok {
		return nil
	}
	return []Choice{{Raw: reply, of: v, msg: Msg{of: v, role: "assistant", parts: rawjson.Elements(data)}}}
}

func (embeddings) WithChoices(reply []byte, _ []Choice) []byte { return reply }

func (embeddings) Usage(reply []byte) Usage { return chat{}.Usage(reply) }

func (embeddings) TextReply(_, model, _ string, _ int64) []byte {
	return rawjson.SetFieldString([]byte(`{"object":"list","data":[],"model":"","usage":{"prompt_tokens":0,`+
		`"total_tokens":0}}`), "model", model)
}

func (embeddings) content(part []byte) ([]byte, []string, func([]byte) []byte) {
	if isText(part) {
		return part, nil, func(raw []byte) []byte { return raw }
	}
	return nil, nil, nil
}

func (embeddings) text(text string) []byte { return rawjson.Encode(text) }

func (embeddings) says([]byte) bool { return true }

func (embeddings) call([]byte) (string, bool) { return "", false }
