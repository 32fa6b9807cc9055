package view

import (
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// responses is the wire of OpenAI's Responses API.
type responses struct{}

var _ dialect = responses{}

func (responses) Wire() messages.Wire { return messages.ResponsesWire }

var responsesText = []string{"input_text", "output_text", "text"}

// itemRole returns who an item is from. Items of the model's turn (calls, reasoning, what hosted tools did) belong to
// one assistant message; items that steer the conversation count as instructions, which nobody drops.
func itemRole(item []byte) string {
	switch kind := rawjson.Text(item, "type"); kind {
	case "message":
		return rawjson.Text(item, "role")
	case "":
		if role := rawjson.Text(item, "role"); role != "" {
			return role
		}
		return "assistant" // a reference without a type
	case "function_call_output", "custom_tool_call_output":
		return "tool"
	case "compaction", "compaction_trigger", "configuration_update", "additional_tools":
		return "developer"
	case "mcp_approval_response":
		return "approval"
	}
	return "assistant"
}

func (v responses) Messages(request []byte) []Msg {
	var out []Msg
	if raw := rawjson.At(request, "instructions"); isText(raw) {
		out = append(out, Msg{of: v, role: "system", parts: [][]byte{raw}, home: home{place: inField}})
	}
	input := rawjson.At(request, "input")
	if isText(input) {
		return append(out, Msg{of: v, role: "user", parts: [][]byte{input}, home: home{place: asInput}})
	}
	return append(out, v.group(rawjson.Elements(input))...)
}

func isText(raw []byte) bool { _, ok := rawjson.IsString(raw); return ok }

// group makes messages of items: those of one assistant turn go together.
func (v responses) group(items [][]byte) (out []Msg) {
	for _, item := range items {
		role := itemRole(item)
		if n := len(out) - 1; n >= 0 && role == "assistant" && out[n].role == role {
			out[n].parts = append(out[n].parts, item)
			continue
		}
		out = append(out, Msg{of: v, role: role, parts: [][]byte{item}})
	}
	return out
}

func (v responses) WithMessages(request []byte, msgs []Msg) []byte {
	system := slices.IndexFunc(msgs, func(m Msg) bool { return m.home.place == inField })
	if system >= 0 {
		request = set(request, "instructions", msgs[system].parts[0])
		msgs = slices.Delete(slices.Clone(msgs), system, system+1)
	} else if isText(rawjson.At(request, "instructions")) {
		request = rawjson.DropField(request, "instructions")
	}
	if len(msgs) == 1 && msgs[0].home.place == asInput {
		return set(request, "input", msgs[0].parts[0])
	}
	var items [][]byte
	for _, m := range msgs {
		if m.home.place == asInput {
			items = append(items, rawjson.SetField([]byte(`{"type":"message","role":"user"}`), "content", m.parts[0]))
			continue
		}
		items = append(items, m.parts...)
	}
	if same(rawjson.Elements(rawjson.At(request, "input")), items) {
		return request
	}
	return rawjson.SetField(request, "input", rawjson.Array(items))
}

func same(a, b [][]byte) bool {
	return slices.EqualFunc(a, b, func(a, b []byte) bool { return string(a) == string(b) })
}

func (v responses) NewMsg(role, text string) Msg {
	return Msg{of: v, role: role, parts: [][]byte{messageItem(role, text)}}
}

func messageItem(role, text string) []byte {
	return rawjson.Encode(struct {
		Type    string `json:"type"`
		Role    string `json:"role"`
		Content string `json:"content"`
	}{"message", role, text})
}

func (v responses) NewResult(of ToolCall, text string) Msg {
	kind := "function_call_output"
	if of.Custom() {
		kind = "custom_tool_call_output"
	}
	return Msg{of: v, role: "tool", parts: [][]byte{rawjson.Encode(struct {
		Type   string `json:"type"`
		CallID string `json:"call_id"`
		Output string `json:"output"`
	}{kind, of.ID(), text})}}
}

// AppendSystem appends to the instructions, or to the last of the system messages that begin the input.
func (v responses) AppendSystem(request []byte, text string) []byte {
	raw := rawjson.At(request, "instructions")
	msgs := v.Messages(request)
	at := leadingSystem(msgs)
	if isText(raw) || at < 0 || !isMessage(msgs[at].parts[0]) {
		if !isText(raw) {
			raw = []byte(`""`)
		}
		return rawjson.SetField(request, "instructions", appendText(raw, text, ""))
	}
	item := msgs[at].parts[0]
	content := appendText(rawjson.At(item, "content"), text, "input_text")
	msgs[at].parts = [][]byte{rawjson.SetField(item, "content", content)}
	return v.WithMessages(request, msgs)
}

func isMessage(item []byte) bool {
	kind := rawjson.Text(item, "type")
	return kind == "" || kind == "message"
}

func (responses) OutputLimit(request []byte) int64 { return count(request, "max_output_tokens") }

func (v responses) Choices(reply []byte) []Choice {
	output, ok := rawjson.Field(reply, "output")
	if !ok {
		return nil
	}
	return []Choice{{Raw: reply, of: v, msg: Msg{of: v, role: "assistant", parts: rawjson.Elements(output)}}}
}

func (responses) WithChoices(reply []byte, choices []Choice) []byte {
	for _, c := range choices {
		if !same(rawjson.Elements(rawjson.At(reply, "output")), c.msg.parts) {
			reply = rawjson.SetField(reply, "output", rawjson.Array(c.msg.parts))
		}
	}
	return reply
}

// finish reads the status, and why a reply is incomplete.
func (v responses) finish(reply []byte) string {
	switch status := rawjson.Text(reply, "status"); status {
	case "", "completed":
	case "incomplete":
		switch why := rawjson.Text(rawjson.At(reply, "incomplete_details"), "reason"); why {
		case "max_output_tokens":
			return FinishLength
		case "content_filter":
			return FinishFilter
		default:
			return why
		}
	case "failed", "cancelled":
		return FinishError
	default:
		return status
	}
	for _, item := range rawjson.Elements(rawjson.At(reply, "output")) {
		if _, ok := v.call(item); ok {
			return FinishTools
		}
	}
	return FinishStop
}

func (responses) Usage(reply []byte) Usage {
	u := rawjson.At(reply, "usage")
	return Usage{
		Input: count(u, "input_tokens"), CacheRead: count(u, "input_tokens_details", "cached_tokens"),
		CacheWrite: count(u, "input_tokens_details", "cache_write_tokens"),
		Output:     count(u, "output_tokens"), Reasoning: count(u, "output_tokens_details", "reasoning_tokens"),
		Total: count(u, "total_tokens"),
	}
}

func (responses) TextReply(id, model, text string, created int64) []byte {
	reply := rawjson.SetField(NewResponse("resp_"+id, model, created), "output", rawjson.Array([][]byte{
		TextItem("msg_"+id, text),
	}))
	reply = rawjson.SetField(reply, "completed_at", rawjson.Encode(created))
	return rawjson.SetFieldString(reply, "status", "completed")
}

// NewResponse makes a Response that is in progress and has no output, with every key that clients require. The
// answering side sets what the request said.
func NewResponse(id, model string, created int64) []byte {
	r := rawjson.SetFieldString([]byte(`{"id":"","object":"response","created_at":0,"status":"in_progress",`+
		`"completed_at":null,"error":null,"incomplete_details":null,"instructions":null,"max_output_tokens":null,`+
		`"max_tool_calls":null,"model":"","output":[],"parallel_tool_calls":true,"previous_response_id":null,`+
		`"prompt_cache_key":null,"reasoning":null,"safety_identifier":null,"service_tier":"default","store":false,`+
		`"background":false,"temperature":1,"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],`+
		`"top_logprobs":0,"top_p":1,"presence_penalty":0,"frequency_penalty":0,"truncation":"disabled","usage":null,`+
		`"user":null,"metadata":{}}`), "id", id)
	return rawjson.SetField(rawjson.SetFieldString(r, "model", model), "created_at", rawjson.Encode(created))
}

// TextItem makes a finished message item with one text.
func TextItem(id, text string) []byte {
	return rawjson.SetField(rawjson.SetFieldString([]byte(`{"id":"","type":"message","status":"completed",`+
		`"role":"assistant"}`), "id", id), "content", rawjson.Array([][]byte{OutputText(text)}))
}

// OutputText makes the part of a message item that says a text.
func OutputText(text string) []byte {
	part := []byte(`{"type":"output_text","text":"","annotations":[],"logprobs":[]}`)
	return rawjson.SetFieldString(part, "text", text)
}

// The dialect of items.

func (responses) content(item []byte) (raw []byte, types []string, with func([]byte) []byte) {
	if isText(item) { // instructions, or a whole input
		return item, nil, func(raw []byte) []byte { return raw }
	}
	key := "content"
	switch rawjson.Text(item, "type") {
	case "message", "":
	case "function_call_output", "custom_tool_call_output":
		key = "output"
	default:
		return nil, nil, nil
	}
	raw, ok := rawjson.Field(item, key)
	if !ok {
		return nil, nil, nil
	}
	return raw, responsesText, func(raw []byte) []byte { return rawjson.SetField(item, key, raw) }
}

func (responses) call(item []byte) (args string, ok bool) {
	switch rawjson.Text(item, "type") {
	case "function_call":
		return "arguments", true
	case "custom_tool_call":
		return "input", true
	}
	return "", false
}

func (responses) callID() string   { return "call_id" }
func (responses) resultID() string { return "call_id" }
func (responses) object() bool     { return false }

func (responses) text(text string) []byte { return messageItem("user", text) }

// says: everything that is no text message is output (calls, reasoning, what hosted tools did), and a refusal is.
func (responses) says(item []byte) bool {
	if !isMessage(item) {
		return true
	}
	return slices.ContainsFunc(rawjson.Elements(rawjson.At(item, "content")), func(p []byte) bool {
		return !strings.HasSuffix(rawjson.Text(p, "type"), "text")
	})
}
