package translate

import (
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
)

type deltaKind byte

const (
	began     deltaKind = iota // model
	saidText                   // text
	saidNo                     // text of a refusal
	thinks                     // text of the reasoning
	signs                      // raw: a piece of reasoning as its maker wants it back
	callBegan                  // at, id, name, custom
	callArgs                   // at, text
	finished                   // text: a finish of package view, or the provider's word
	counted                    // usage
)

// delta is a piece of a reply between two wires.
type delta struct {
	kind     deltaKind
	text     string
	at       int // which call
	id, name string
	custom   bool
	raw      []byte
	usage    view.Usage
}

// chatReader reads the chunks of one choice.
type chatReader struct {
	pair    Pair
	begun   bool
	indexes []string // of calls, as the provider numbers them
	details []detail
}

// detail is one element of reasoning_details while its pieces come in.
type detail struct {
	index string
	raw   []byte
}

func (c *chatReader) read(chunk []byte) (out []delta) {
	if !c.begun {
		c.begun = true
		out = append(out, delta{kind: began, text: view.ModelName(chunk)})
	}
	for _, choice := range rawjson.Elements(rawjson.At(chunk, "choices")) {
		if integer(choice, "index") != 0 {
			continue
		}
		out = append(out, c.delta(rawjson.At(choice, "delta"))...)
		if why := rawjson.Text(choice, "finish_reason"); why != "" {
			out = append(append(out, c.signed()...), delta{kind: finished, text: finishOf(why)})
		}
	}
	if u := rawjson.At(chunk, "usage"); len(u) > 0 && !rawjson.IsNull(u) {
		out = append(out, delta{kind: counted, usage: view.Of(messages.ChatWire).Usage(chunk)})
	}
	return out
}

// finishOf reads a finish reason; that of the old form means the same.
func finishOf(why string) string {
	if why == "function_call" {
		return view.FinishTools
	}
	return why
}

func (c *chatReader) delta(d []byte) (out []delta) {
	for _, key := range []string{"reasoning_content", "reasoning"} {
		if s := rawjson.Text(d, key); s != "" {
			out = append(out, delta{kind: thinks, text: s})
			break
		}
	}
	for _, p := range rawjson.Elements(rawjson.At(d, "reasoning_details")) {
		c.detail(p)
	}
	if s := rawjson.Text(d, "content"); s != "" {
		out = append(append(out, c.signed()...), delta{kind: saidText, text: s})
	}
	for _, p := range rawjson.Elements(rawjson.At(d, "content")) {
		if s := rawjson.Text(p, "text"); s != "" {
			out = append(append(out, c.signed()...), delta{kind: saidText, text: s})
		}
	}
	if s := rawjson.Text(d, "refusal"); s != "" {
		out = append(append(out, c.signed()...), delta{kind: saidNo, text: s})
	}
	for _, t := range rawjson.Elements(rawjson.At(d, "tool_calls")) {
		out = append(append(out, c.signed()...), c.call(t)...)
	}
	if f := rawjson.At(d, "function_call"); len(f) > 0 && f[0] == '{' {
		out = append(out, c.call(obj("index", 0, "id", rawjson.Text(f, "name"), "function", f))...)
	}
	return out
}

func (c *chatReader) call(t []byte) (out []delta) {
	index := string(rawjson.At(t, "index"))
	if index == "" {
		index = "id " + rawjson.Text(t, "id")
		if rawjson.Text(t, "id") == "" && len(c.indexes) > 0 {
			index = c.indexes[len(c.indexes)-1]
		}
	}
	at := slices.Index(c.indexes, index)
	in, args := rawjson.At(t, "function"), "arguments"
	custom := len(in) == 0
	if custom {
		in, args = rawjson.At(t, "custom"), "input"
	}
	if at < 0 {
		at = len(c.indexes)
		c.indexes = append(c.indexes, index)
		if v := rawjson.At(t, "extra_content"); len(v) > 0 && !rawjson.IsNull(v) {
			out = append(out, delta{kind: signs, raw: obj("type", "extra", "call", rawjson.Text(t, "id"), "value", v)})
		}
		out = append(out, delta{kind: callBegan, at: at, id: rawjson.Text(t, "id"), name: rawjson.Text(in, "name"),
			custom: custom})
	}
	if s := rawjson.Text(in, args); s != "" {
		out = append(out, delta{kind: callArgs, at: at, text: s})
	}
	return out
}

// detail adds a piece of reasoning_details to the element that it belongs to.
func (c *chatReader) detail(p []byte) {
	index := string(rawjson.At(p, "index"))
	at := slices.IndexFunc(c.details, func(d detail) bool { return d.index == index })
	if at < 0 || index == "" {
		c.details = append(c.details, detail{index, p})
		return
	}
	raw := c.details[at].raw
	rawjson.EachField(p, func(key string, v []byte) {
		s, is := rawjson.IsString(v)
		switch {
		case is && (key == "text" || key == "summary" || key == "data" || key == "signature"):
			raw = rawjson.SetFieldString(raw, key, rawjson.Text(raw, key)+s)
		case !rawjson.IsNull(v):
			raw = rawjson.SetField(raw, key, v)
		}
	})
	c.details[at].raw = raw
}

// signed returns the reasoning that only its maker can read, once it is whole: when something else begins.
func (c *chatReader) signed() (out []delta) {
	for _, d := range c.details {
		if rawjson.Text(d.raw, "signature") != "" || rawjson.Text(d.raw, "data") != "" {
			out = append(out, delta{kind: signs, raw: d.raw})
		}
	}
	c.details = nil
	return out
}

// messagesReader reads the events of the messages wire.
type messagesReader struct {
	pair     Pair
	calls    map[int]int // block -> call
	count    int
	thinking map[int]*strings.Builder
	signs    map[int]*strings.Builder
	usage    []byte
}

func (m *messagesReader) read(e []byte) (out []delta) {
	index := integer(e, "index")
	switch events.Name(e) {
	case "message_start":
		m.calls, m.thinking, m.signs = map[int]int{}, map[int]*strings.Builder{}, map[int]*strings.Builder{}
		m.usage = rawjson.At(e, "message", "usage")
		return []delta{{kind: began, text: view.ModelName(rawjson.At(e, "message"))}}
	case "content_block_start":
		return m.start(index, rawjson.At(e, "content_block"))
	case "content_block_delta":
		return m.delta(index, rawjson.At(e, "delta"))
	case "content_block_stop":
		if s := m.signs[index]; s != nil {
			return []delta{{kind: signs, raw: obj("type", "thinking", "thinking", m.thinking[index].String(),
				"signature", s.String())}}
		}
	case "message_delta":
		if u := rawjson.At(e, "usage"); len(u) > 0 {
			if len(m.usage) == 0 || rawjson.IsNull(m.usage) {
				m.usage = []byte("{}")
			}
			rawjson.EachField(u, func(key string, raw []byte) { m.usage = rawjson.SetField(m.usage, key, raw) })
		}
		if why := rawjson.Text(rawjson.At(e, "delta"), "stop_reason"); why != "" {
			if f, ok := view.StopReasons[why]; ok {
				why = f
			}
			out = append(out, delta{kind: finished, text: why})
		}
		return append(out, delta{kind: counted, usage: view.Of(messages.MessagesWire).Usage(obj("usage", m.usage))})
	}
	return nil
}

func (m *messagesReader) start(index int, b []byte) (out []delta) {
	switch rawjson.Text(b, "type") {
	case "text":
		if s := rawjson.Text(b, "text"); s != "" {
			return []delta{{kind: saidText, text: s}}
		}
	case "thinking":
		m.thinking[index] = &strings.Builder{}
		return append(m.delta(index, obj("type", "thinking_delta", "thinking", rawjson.Text(b, "thinking"))),
			m.delta(index, obj("type", "signature_delta", "signature", rawjson.Text(b, "signature")))...)
	case "redacted_thinking":
		return []delta{{kind: signs, raw: b}}
	case "tool_use":
		m.calls[index] = m.count
		m.count++
		out = append(out, delta{kind: callBegan, at: m.calls[index], id: rawjson.Text(b, "id"),
			name: rawjson.Text(b, "name")})
		if in := rawjson.At(b, "input"); len(in) > 0 && string(in) != "{}" {
			out = append(out, delta{kind: callArgs, at: m.calls[index], text: string(in)})
		}
	}
	return out
}

func (m *messagesReader) delta(index int, d []byte) []delta {
	switch rawjson.Text(d, "type") {
	case "text_delta":
		return []delta{{kind: saidText, text: rawjson.Text(d, "text")}}
	case "input_json_delta":
		if at, ok := m.calls[index]; ok && rawjson.Text(d, "partial_json") != "" {
			return []delta{{kind: callArgs, at: at, text: rawjson.Text(d, "partial_json")}}
		}
	case "thinking_delta":
		if b := m.thinking[index]; b != nil && rawjson.Text(d, "thinking") != "" {
			b.WriteString(rawjson.Text(d, "thinking"))
			return []delta{{kind: thinks, text: rawjson.Text(d, "thinking")}}
		}
	case "signature_delta":
		if s := rawjson.Text(d, "signature"); s != "" && m.thinking[index] != nil {
			if m.signs[index] == nil {
				m.signs[index] = &strings.Builder{}
			}
			m.signs[index].WriteString(s)
		}
	}
	return nil
}

// responsesReader reads the events of the responses wire.
type responsesReader struct {
	pair  Pair
	calls map[int]int // output index -> call
	had   map[int]bool
	count int
}

func (r *responsesReader) read(e []byte) (out []delta) {
	index := integer(e, "output_index")
	switch events.Name(e) {
	case "response.created":
		r.calls, r.had = map[int]int{}, map[int]bool{}
		return []delta{{kind: began, text: view.ModelName(rawjson.At(e, "response"))}}
	case "response.output_text.delta":
		return []delta{{kind: saidText, text: rawjson.Text(e, "delta")}}
	case "response.refusal.delta":
		return []delta{{kind: saidNo, text: rawjson.Text(e, "delta")}}
	case "response.reasoning_summary_part.added":
		if integer(e, "summary_index") > 0 {
			return []delta{{kind: thinks, text: "\n\n"}}
		}
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta":
		return []delta{{kind: thinks, text: rawjson.Text(e, "delta")}}
	case "response.output_item.added":
		return r.added(index, rawjson.At(e, "item"))
	case "response.function_call_arguments.delta", "response.custom_tool_call_input.delta":
		if at, ok := r.calls[index]; ok && rawjson.Text(e, "delta") != "" {
			r.had[index] = true
			return []delta{{kind: callArgs, at: at, text: rawjson.Text(e, "delta")}}
		}
	case "response.output_item.done":
		return r.done(index, rawjson.At(e, "item"))
	case "response.completed", "response.incomplete":
		reply, v := rawjson.At(e, "response"), view.Of(messages.ResponsesWire)
		for _, c := range v.Choices(reply) {
			out = append(out, delta{kind: finished, text: c.Finish()})
		}
		if u := rawjson.At(reply, "usage"); len(u) > 0 && !rawjson.IsNull(u) {
			out = append(out, delta{kind: counted, usage: v.Usage(reply)})
		}
	}
	return out
}

func (r *responsesReader) added(index int, item []byte) []delta {
	kind := rawjson.Text(item, "type")
	if r.calls == nil || kind != "function_call" && kind != "custom_tool_call" {
		return nil
	}
	at := r.count
	r.count++
	r.calls[index] = at
	return []delta{{kind: callBegan, at: at, id: rawjson.Text(item, "call_id"), name: rawjson.Text(item, "name"),
		custom: kind == "custom_tool_call"}}
}

func (r *responsesReader) done(index int, item []byte) (out []delta) {
	switch kind := rawjson.Text(item, "type"); kind {
	case "reasoning":
		if rawjson.Text(item, "encrypted_content") != "" {
			return []delta{{kind: signs, raw: item}}
		}
	case "function_call", "custom_tool_call":
		if _, known := r.calls[index]; !known {
			out = r.added(index, item)
		}
		at, known := r.calls[index]
		if args := rawjson.Text(item, "arguments") + rawjson.Text(item, "input"); known && !r.had[index] && args != "" {
			out = append(out, delta{kind: callArgs, at: at, text: args})
		}
	}
	return out
}
