package translate

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
)

// toolName is what the client calls a tool that the provider knows under a flat name.
type toolName struct {
	space, name string
	custom      bool
}

// readNames reads the client's tools whose calls look otherwise at the provider.
func readNames(w messages.Wire, body []byte) map[string]toolName {
	out := map[string]toolName{}
	switch w {
	case messages.ResponsesWire:
		note := func(space string, t []byte) {
			if kind := rawjson.Text(t, "type"); space != "" || kind == "custom" {
				out[flatName(space, rawjson.Text(t, "name"))] = toolName{space, rawjson.Text(t, "name"), kind == "custom"}
			}
		}
		eachTool(rawjson.At(body, "tools"), "", note)
		for _, item := range rawjson.Elements(rawjson.At(body, "input")) {
			if rawjson.Text(item, "type") == "additional_tools" {
				eachTool(rawjson.At(item, "tools"), "", note)
			}
		}
	case messages.ChatWire:
		for _, t := range rawjson.Elements(rawjson.At(body, "tools")) {
			if c := rawjson.At(t, "custom"); len(c) > 0 {
				out[rawjson.Text(c, "name")] = toolName{name: rawjson.Text(c, "name"), custom: true}
			}
		}
	}
	return out
}

// openCall is a call while its arguments come in.
type openCall struct {
	id, name, space string
	custom          bool // the client's tool takes free text
	unwrap          bool // which the provider wrote as the field input of an object
	wrap            bool // the other way round: the client's wire has objects alone
	args            strings.Builder
	sent            int // bytes of args that are written
	over            bool
}

// final is the whole argument text.
func (c *openCall) final() string {
	s := c.args.String()
	if c.unwrap {
		if in, ok := rawjson.FieldString([]byte(s), "input"); ok && json.Valid([]byte(s)) {
			return in
		}
	}
	if c.wrap {
		return string(obj("input", s))
	}
	if !c.custom && strings.TrimSpace(s) == "" {
		return "{}"
	}
	return s
}

// calls puts parallel calls into a row, for wires that have one item open at a time. A call waits until the one before
// it has all its arguments.
type calls struct {
	pair  Pair
	names map[string]toolName
	list  []*openCall
	open  int // the one that is written; len(list): none
}

// caller writes calls.
type caller interface {
	beginCall(c *openCall) [][]byte
	moreArgs(c *openCall, piece string) [][]byte
	endCall(c *openCall) [][]byte
}

func (q *calls) write(d delta, to caller) (out [][]byte) {
	if d.kind == callBegan {
		c := &openCall{id: d.id, name: d.name}
		if c.id == "" {
			c.id = fmt.Sprintf("call_%s_%d", q.pair.ID, len(q.list))
		}
		if n, ok := q.names[d.name]; ok {
			c.name, c.space, c.custom = n.name, n.space, n.custom
		}
		c.unwrap = c.custom && !d.custom
		c.wrap = d.custom && q.pair.Client == messages.MessagesWire
		c.custom = c.custom || d.custom
		q.list = append(q.list, c)
		if q.open == len(q.list)-1 {
			return to.beginCall(c)
		}
		return q.advance(to)
	}
	if d.at >= len(q.list) || q.list[d.at].over {
		return nil
	}
	q.list[d.at].args.WriteString(d.text)
	if d.at != q.open {
		return nil
	}
	out = q.flush(to)
	if q.open < len(q.list)-1 {
		out = append(out, q.advance(to)...)
	}
	return out
}

// flush writes what has come of the open call's arguments.
func (q *calls) flush(to caller) (out [][]byte) {
	c := q.list[q.open]
	if c.unwrap || c.wrap {
		return nil
	}
	if piece := c.args.String()[c.sent:]; piece != "" {
		c.sent = c.args.Len()
		out = to.moreArgs(c, piece)
	}
	return out
}

// advance ends the open call if it is whole and begins the next.
func (q *calls) advance(to caller) (out [][]byte) {
	for q.open < len(q.list)-1 && json.Valid([]byte(q.list[q.open].final())) {
		out = append(append(out, q.endOpen(to)...), to.beginCall(q.list[q.open])...)
		out = append(out, q.flush(to)...)
	}
	return out
}

func (q *calls) endOpen(to caller) (out [][]byte) {
	c := q.list[q.open]
	c.over = true
	if rest := c.final(); c.sent < len(rest) {
		out = to.moreArgs(c, rest[c.sent:])
	}
	q.open++
	return append(out, to.endCall(c)...)
}

// end writes all calls to their ends.
func (q *calls) end(to caller) (out [][]byte) {
	for q.open < len(q.list) {
		out = append(out, q.endOpen(to)...)
		if q.open < len(q.list) {
			out = append(append(out, to.beginCall(q.list[q.open])...), q.flush(to)...)
		}
	}
	return out
}

// ending is how a reply ended.
type ending struct {
	finish string
	usage  *view.Usage
}

func (e *ending) take(d delta) {
	switch d.kind {
	case finished:
		e.finish = d.text
	case counted:
		u := d.usage
		e.usage = &u
	}
}

// reason is the finish; some providers say stop where they call tools.
func (e *ending) reason(called bool) string {
	if called && (e.finish == view.FinishStop || e.finish == "") {
		return view.FinishTools
	}
	if e.finish == "" {
		return view.FinishStop
	}
	return e.finish
}

// chatWriter writes chunks.
type chatWriter struct {
	pair  Pair
	names map[string]toolName
	model string
	ending
	list    []*openCall
	details int
}

func newChatWriter(p Pair, request []byte, names map[string]toolName) *chatWriter {
	return &chatWriter{pair: p, names: names, model: view.ModelName(request)}
}

func (w *chatWriter) chunk(pairs ...any) []byte {
	out := obj("id", "chatcmpl-"+w.pair.ID, "object", "chat.completion.chunk", "created", w.pair.Created, "model",
		w.model)
	for i := 0; i+1 < len(pairs); i += 2 {
		raw, _ := pairs[i+1].([]byte)
		out = rawjson.SetField(out, pairs[i].(string), raw)
	}
	return out
}

func (w *chatWriter) delta(pairs ...any) [][]byte {
	return [][]byte{w.chunk("choices", rawjson.Array([][]byte{obj("index", 0, "delta", obj(pairs...), "finish_reason",
		[]byte("null"))}))}
}

func (w *chatWriter) write(d delta) (out [][]byte) {
	switch d.kind {
	case began:
		if d.text != "" {
			w.model = d.text
		}
		return w.delta("role", "assistant")
	case saidText:
		return w.delta("content", d.text)
	case saidNo:
		return w.delta("refusal", d.text)
	case thinks:
		return w.delta("reasoning_content", d.text)
	case signs:
		w.details++
		return w.delta("reasoning_details", rawjson.Array([][]byte{obj("type", "reasoning.encrypted", "data",
			w.pair.seal(d.raw), "format", "shallot-v1", "index", w.details-1)}))
	case callBegan:
		c := &openCall{id: d.id, name: d.name, custom: w.names[d.name].custom}
		c.unwrap = c.custom && !d.custom
		c.custom = c.custom || d.custom
		if c.id == "" {
			c.id = fmt.Sprintf("call_%s_%d", w.pair.ID, len(w.list))
		}
		w.list = append(w.list, c)
		if c.custom = c.custom || d.custom; c.custom {
			return w.call(obj("index", len(w.list)-1, "id", c.id, "type", "custom", "custom", obj("name", c.name,
				"input", "")))
		}
		return w.call(obj("index", len(w.list)-1, "id", c.id, "type", "function", "function", obj("name", c.name,
			"arguments", "")))
	case callArgs:
		if d.at >= len(w.list) {
			return nil
		}
		c := w.list[d.at]
		c.args.WriteString(d.text)
		if c.custom {
			return nil
		}
		return w.call(obj("index", d.at, "function", obj("arguments", d.text)))
	}
	w.take(d)
	return nil
}

func (w *chatWriter) call(t []byte) [][]byte {
	return w.delta("tool_calls", rawjson.Array([][]byte{t}))
}

func (w *chatWriter) end() (out [][]byte) {
	for i, c := range w.list {
		if c.custom {
			out = append(out, w.call(obj("index", i, "custom", obj("input", c.final())))...)
		} else if c.args.Len() == 0 {
			out = append(out, w.call(obj("index", i, "function", obj("arguments", "{}")))...)
		}
	}
	out = append(out, w.chunk("choices", rawjson.Array([][]byte{obj("index", 0, "delta", []byte("{}"), "finish_reason",
		w.reason(len(w.list) > 0))})))
	if u := w.usage; u != nil {
		out = append(out, w.chunk("choices", []byte("[]"), "usage", obj("prompt_tokens", u.Input, "completion_tokens",
			u.Output, "total_tokens", max(u.Total, u.Input+u.Output), "prompt_tokens_details", obj("cached_tokens",
				u.CacheRead, "cache_write_tokens", u.CacheWrite), "completion_tokens_details", obj("reasoning_tokens",
				u.Reasoning))))
	}
	return out
}

// messagesWriter writes blocks.
type messagesWriter struct {
	pair  Pair
	model string
	calls calls
	ending
	block int    // number of the next block
	open  string // type of the open block; empty: none
}

func newMessagesWriter(p Pair, request []byte, names map[string]toolName) *messagesWriter {
	return &messagesWriter{pair: p, model: view.ModelName(request), calls: calls{pair: p, names: names}}
}

func (w *messagesWriter) write(d delta) (out [][]byte) {
	switch d.kind {
	case began:
		if d.text != "" {
			w.model = d.text
		}
		return [][]byte{obj("type", "message_start", "message", view.NewMessage("msg_"+w.pair.ID, w.model))}
	case saidText, saidNo:
		if d.text == "" {
			return nil
		}
		return append(w.need("text", `{"type":"text","text":""}`), w.piece(obj("type", "text_delta", "text", d.text)))
	case thinks:
		return append(w.need("thinking", `{"type":"thinking","thinking":"","signature":""}`), w.piece(obj("type",
			"thinking_delta", "thinking", d.text)))
	case signs:
		if w.open == "thinking" {
			out = append(out, w.piece(obj("type", "signature_delta", "signature", w.pair.seal(d.raw))))
			return append(out, w.stop()...)
		}
		out = append(w.close(), w.begin("redacted_thinking", obj("type", "redacted_thinking", "data",
			w.pair.seal(d.raw))))
		return append(out, w.stop()...)
	case callBegan, callArgs:
		if w.open != "" && w.open != "tool_use" {
			out = w.stop()
		}
		return append(out, w.calls.write(d, w)...)
	}
	w.take(d)
	return nil
}

func (w *messagesWriter) piece(d []byte) []byte {
	return obj("type", "content_block_delta", "index", w.block, "delta", d)
}

func (w *messagesWriter) begin(kind string, block []byte) []byte {
	w.open = kind
	return obj("type", "content_block_start", "index", w.block, "content_block", block)
}

func (w *messagesWriter) stop() [][]byte {
	w.open = ""
	w.block++
	return [][]byte{obj("type", "content_block_stop", "index", w.block-1)}
}

// need opens a block of a type unless one is open.
func (w *messagesWriter) need(kind, block string) [][]byte {
	if w.open == kind {
		return nil
	}
	return append(w.close(), w.begin(kind, []byte(block)))
}

func (w *messagesWriter) close() (out [][]byte) {
	out = w.calls.end(w)
	if w.open != "" {
		out = append(out, w.stop()...)
	}
	return out
}

func (w *messagesWriter) beginCall(c *openCall) [][]byte {
	return [][]byte{w.begin("tool_use", obj("type", "tool_use", "id", callID(c.id), "name", c.name, "input",
		[]byte("{}")))}
}

func (w *messagesWriter) moreArgs(_ *openCall, piece string) [][]byte {
	return [][]byte{w.piece(obj("type", "input_json_delta", "partial_json", piece))}
}

func (w *messagesWriter) endCall(*openCall) [][]byte { return w.stop() }

var stopReasons = map[string]string{
	view.FinishStop: "end_turn", view.FinishLength: "max_tokens", view.FinishTools: "tool_use",
	view.FinishFilter: "refusal",
}

func (w *messagesWriter) end() [][]byte {
	out := w.close()
	why := w.reason(len(w.calls.list) > 0)
	if s, ok := stopReasons[why]; ok {
		why = s
	}
	u := view.Usage{}
	if w.usage != nil {
		u = *w.usage
	}
	return append(out, obj("type", "message_delta", "delta", obj("stop_reason", why, "stop_sequence", []byte("null")),
		"usage", obj("input_tokens", max(u.Input-u.CacheRead-u.CacheWrite, 0), "cache_creation_input_tokens",
			u.CacheWrite, "cache_read_input_tokens", u.CacheRead, "output_tokens", u.Output)),
		obj("type", "message_stop"))
}
