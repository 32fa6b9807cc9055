package view

import (
	"slices"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// anthropic is the wire of the Messages API.
type anthropic struct{}

var _ dialect = anthropic{}

func (anthropic) Wire() messages.Wire { return messages.MessagesWire }

func (v anthropic) Messages(request []byte) []Msg {
	var out []Msg
	if raw := rawjson.At(request, "system"); isText(raw) {
		out = append(out, Msg{of: v, role: "system", parts: [][]byte{raw}, home: home{place: inField}})
	} else if blocks := rawjson.Elements(raw); len(blocks) > 0 {
		out = append(out, Msg{of: v, role: "system", parts: blocks, home: home{place: inField}})
	}
	for i, raw := range rawjson.Elements(rawjson.At(request, "messages")) {
		out = append(out, v.turn(i+1, raw)...)
	}
	return out
}

// turn reads one message; each result of a tool in it is a message of its own.
func (v anthropic) turn(n int, raw []byte) (out []Msg) {
	role, at := rawjson.Text(raw, "role"), home{turn: n, raw: raw}
	content := rawjson.At(raw, "content")
	if isText(content) {
		return []Msg{{of: v, role: role, parts: [][]byte{content}, home: at}}
	}
	open := false // the last message takes further blocks
	for _, b := range rawjson.Elements(content) {
		switch {
		case rawjson.Text(b, "type") == "tool_result":
			out, open = append(out, Msg{of: v, role: "tool", parts: [][]byte{b}, home: at}), false
		case open:
			last := &out[len(out)-1]
			last.parts = append(last.parts, b)
		default:
			out, open = append(out, Msg{of: v, role: role, parts: [][]byte{b}, home: at}), true
		}
	}
	if out == nil {
		return []Msg{{of: v, role: role, home: at}}
	}
	return out
}

func (v anthropic) WithMessages(request []byte, msgs []Msg) []byte {
	var system [][]byte
	var turns []turn
	for _, m := range msgs {
		if m.home.place == inField || m.role == "system" && m.home.turn == 0 && len(turns) == 0 {
			system = append(system, m.parts...)
			continue
		}
		if n := len(turns) - 1; n >= 0 && turns[n].takes(m) {
			turns[n].parts = append(turns[n].parts, m.parts...)
			turns[n].results = turns[n].results && m.role == "tool"
			continue
		}
		turns = append(turns, turn{home: m.home, role: m.role, parts: slices.Clone(m.parts), results: m.role == "tool"})
	}
	request = withSystem(request, system)
	out := make([][]byte, len(turns))
	for i, t := range turns {
		out[i] = t.raw()
	}
	if same(rawjson.Elements(rawjson.At(request, "messages")), out) {
		return request
	}
	return rawjson.SetField(request, "messages", rawjson.Array(out))
}

// withSystem sets the system prompt: a string stays one where there is only one text.
func withSystem(request []byte, parts [][]byte) []byte {
	old, has := rawjson.Field(request, "system")
	switch {
	case len(parts) == 0:
		if isText(old) || len(rawjson.Elements(old)) > 0 {
			return rawjson.DropField(request, "system")
		}
		return request
	case len(parts) == 1 && (isText(parts[0]) || !has):
		if !isText(parts[0]) {
			parts[0] = rawjson.Encode(rawjson.Text(parts[0], "text"))
		}
		return set(request, "system", parts[0])
	}
	blocks := asBlocks(parts)
	if same(rawjson.Elements(old), blocks) {
		return request
	}
	return rawjson.SetField(request, "system", rawjson.Array(blocks))
}

// asBlocks makes text blocks of parts that are strings.
func asBlocks(parts [][]byte) [][]byte {
	out := make([][]byte, len(parts))
	for i, p := range parts {
		if s, ok := rawjson.IsString(p); ok {
			p = textPart("text", s)
		}
		out[i] = p
	}
	return out
}

// turn is one message under construction.
type turn struct {
	home
	role    string
	parts   [][]byte
	results bool // it holds nothing but results of tools
}

// takes reports whether a message is written into the same turn: it stood there, or both are results of tools, which
// the API wants in one message.
func (t turn) takes(m Msg) bool {
	if t.home.turn != 0 && t.home.turn == m.home.turn {
		return true
	}
	return t.results && m.role == "tool"
}

func (t turn) raw() []byte {
	role := t.role
	if role == "tool" {
		role = "user"
	}
	if t.home.turn == 0 {
		head := rawjson.SetFieldString([]byte("{}"), "role", role)
		if len(t.parts) == 1 && isText(t.parts[0]) {
			return rawjson.SetField(head, "content", t.parts[0])
		}
		return rawjson.SetField(head, "content", rawjson.Array(asBlocks(t.parts)))
	}
	old := rawjson.At(t.home.raw, "content")
	if len(t.parts) == 1 && isText(t.parts[0]) {
		return set(t.home.raw, "content", t.parts[0])
	}
	blocks := asBlocks(t.parts)
	if same(rawjson.Elements(old), blocks) {
		return t.home.raw
	}
	return rawjson.SetField(t.home.raw, "content", rawjson.Array(blocks))
}

func (v anthropic) NewMsg(role, text string) Msg {
	return Msg{of: v, role: role, parts: [][]byte{rawjson.Encode(text)}}
}

func (v anthropic) NewResult(of ToolCall, text string) Msg {
	return Msg{of: v, role: "tool", parts: [][]byte{rawjson.Encode(struct {
		Type    string `json:"type"`
		ID      string `json:"tool_use_id"`
		Content string `json:"content"`
	}{"tool_result", of.ID(), text})}}
}

// AppendSystem adds a block at the end of the system prompt, so that the blocks before it, their cache breakpoints and
// the first block's place stay.
func (v anthropic) AppendSystem(request []byte, text string) []byte {
	old, ok := rawjson.Field(request, "system")
	if !ok || rawjson.IsNull(old) {
		return rawjson.SetFieldString(request, "system", text)
	}
	return rawjson.SetField(request, "system", appendText(old, text, "text"))
}

func (anthropic) OutputLimit(request []byte) int64 { return count(request, "max_tokens") }

func (v anthropic) Choices(reply []byte) []Choice {
	content, ok := rawjson.Field(reply, "content")
	if !ok {
		return nil
	}
	return []Choice{{Raw: reply, of: v, msg: Msg{of: v, role: "assistant", parts: rawjson.Elements(content)}}}
}

func (anthropic) WithChoices(reply []byte, choices []Choice) []byte {
	for _, c := range choices {
		if !same(rawjson.Elements(rawjson.At(reply, "content")), c.msg.parts) {
			reply = rawjson.SetField(reply, "content", rawjson.Array(c.msg.parts))
		}
	}
	return reply
}

// StopReasons are the ends of an answer on the messages wire, in the words of the chat wire.
var StopReasons = map[string]string{
	"end_turn": FinishStop, "stop_sequence": FinishStop, "max_tokens": FinishLength, "tool_use": FinishTools,
	"refusal": FinishFilter, "model_context_window_exceeded": FinishLength,
}

func (anthropic) finish(reply []byte) string {
	reason := rawjson.Text(reply, "stop_reason")
	if f, ok := StopReasons[reason]; ok {
		return f
	}
	return reason
}

// Usage adds what was read from and written to a cache to the input, which this wire counts apart.
func (anthropic) Usage(reply []byte) Usage {
	u := rawjson.At(reply, "usage")
	out := Usage{
		CacheRead: count(u, "cache_read_input_tokens"), CacheWrite: count(u, "cache_creation_input_tokens"),
		Output: count(u, "output_tokens"), Reasoning: count(u, "output_tokens_details", "thinking_tokens"),
	}
	out.Input = count(u, "input_tokens") + out.CacheRead + out.CacheWrite
	out.Total = out.Input + out.Output
	return out
}

func (anthropic) TextReply(id, model, text string, _ int64) []byte {
	reply := rawjson.SetField(NewMessage("msg_"+id, model), "content", rawjson.Array([][]byte{textPart("text", text)}))
	return rawjson.SetFieldString(reply, "stop_reason", "end_turn")
}

// NewMessage makes a message of the messages wire that has no content yet.
func NewMessage(id, model string) []byte {
	m := rawjson.SetFieldString([]byte(`{"id":"","type":"message","role":"assistant","model":"","content":[],`+
		`"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":0,"output_tokens":0}}`), "id", id)
	return rawjson.SetFieldString(m, "model", model)
}

// The dialect of blocks.

func (anthropic) content(block []byte) (raw []byte, types []string, with func([]byte) []byte) {
	if isText(block) { // a content that is a string
		return block, nil, func(raw []byte) []byte { return raw }
	}
	key := "text"
	switch rawjson.Text(block, "type") {
	case "text":
	case "tool_result":
		key = "content"
	default:
		return nil, nil, nil
	}
	raw, ok := rawjson.Field(block, key)
	if !ok {
		if key == "text" {
			return nil, nil, nil
		}
		raw = []byte(`""`) // a result may have no content
	}
	return raw, []string{"text"}, func(raw []byte) []byte { return rawjson.SetField(block, key, raw) }
}

func (anthropic) call(block []byte) (args string, ok bool) {
	return "input", rawjson.Text(block, "type") == "tool_use"
}

func (anthropic) callID() string   { return "id" }
func (anthropic) resultID() string { return "tool_use_id" }
func (anthropic) object() bool     { return true }

func (anthropic) text(text string) []byte { return textPart("text", text) }

func (anthropic) says(block []byte) bool {
	return !isText(block) && rawjson.Text(block, "type") != "text"
}
