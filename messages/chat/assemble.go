package chat

import (
	"errors"
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// ErrNoChunks says that a stream held no choice, so that there is no reply to assemble.
var ErrNoChunks = errors.New("the stream holds no choice")

// Assemble builds the chat reply that a stream of chunks adds up to. The error is ErrNoChunks.
func Assemble(chunks [][]byte) ([]byte, error) {
	var a Assembly
	for _, chunk := range chunks {
		a.Add(chunk)
	}
	return a.Reply()
}

// Assembly is a chat reply while its chunks come in. Texts are joined, tool calls are assembled by index, and log
// probabilities are appended. Every other field, known or not, keeps its bytes; of several values the newest counts
// that is not null. Id, created and model are those of the first chunk that has them. It takes about as much memory as
// the reply, of which the chunks are a multiple. The zero value is ready.
type Assembly struct {
	top     fields
	choices []*choiceParts
}

// Add takes the next chunk, and may keep parts of it: its bytes must not change any more.
func (a *Assembly) Add(chunk []byte) {
	rawjson.EachField(chunk, func(key string, raw []byte) {
		switch key {
		case "choices":
			for _, c := range rawjson.Elements(raw) {
				a.choices = addChoice(a.choices, c)
			}
		case "object":
			a.top.first(key, []byte(`"chat.completion"`))
		case "id", "created", "model":
			a.top.first(key, raw)
		default:
			a.top.newest(key, raw)
		}
	})
}

// Reply returns what the chunks add up to; it is called once, after the last. The error is ErrNoChunks.
func (a *Assembly) Reply() ([]byte, error) {
	if len(a.choices) == 0 {
		return nil, ErrNoChunks
	}
	top, choices := &a.top, a.choices
	slices.SortStableFunc(choices, func(a, b *choiceParts) int { return int(a.index - b.index) })
	out := make([][]byte, len(choices))
	for i, c := range choices {
		out[i] = c.raw()
	}
	top.first("object", []byte(`"chat.completion"`))
	usage, _ := top.take("usage")
	top.set("choices", rawjson.Array(out))
	if usage != nil {
		top.set("usage", usage)
	}
	return top.raw(), nil
}

// choiceParts is one choice while its chunks come in.
type choiceParts struct {
	index    int64
	message  parts
	tools    []*toolParts
	slots    ToolSlots
	sawTools bool
	logprobs parts
	sawLogs  bool
	rest     fields
}

// toolParts is one tool call while its chunks come in.
type toolParts struct {
	top   fields
	inner map[string]*parts // function, custom
}

func addChoice(all []*choiceParts, raw []byte) []*choiceParts {
	index := int64(0)
	if v, ok := rawjson.Field(raw, "index"); ok {
		index, _ = rawjson.Int(v)
	}
	at := slices.IndexFunc(all, func(c *choiceParts) bool { return c.index == index })
	if at < 0 {
		all = append(all, &choiceParts{index: index})
		at = len(all) - 1
	}
	c := all[at]
	hasDelta := func() bool { _, ok := rawjson.Field(raw, "delta"); return ok }
	rawjson.EachField(raw, func(key string, v []byte) {
		switch {
		case key == "index":
		case key == "delta", key == "message" && !hasDelta():
			c.delta(v)
		case key == "logprobs":
			c.sawLogs = true
			rawjson.EachField(v, c.logprobs.add)
		default:
			c.rest.newest(key, v)
		}
	})
	return all
}

func (c *choiceParts) delta(raw []byte) {
	rawjson.EachField(raw, func(key string, v []byte) {
		if key != "tool_calls" || !isArray(v) {
			c.message.add(key, v)
			return
		}
		c.sawTools = true
		for _, t := range rawjson.Elements(v) {
			at := c.slots.At(t)
			for len(c.tools) <= at {
				c.tools = append(c.tools, &toolParts{inner: map[string]*parts{}})
			}
			c.tools[at].add(t)
		}
	})
}

func (t *toolParts) add(raw []byte) {
	rawjson.EachField(raw, func(key string, v []byte) {
		switch {
		case key == "index":
		case (key == "function" || key == "custom") && isObject(v):
			if t.inner[key] == nil {
				t.inner[key] = &parts{}
				t.top.set(key, []byte("{}")) // holds the place
			}
			rawjson.EachField(v, t.inner[key].add)
		case key == "id", key == "type":
			t.top.first(key, v)
		default:
			t.top.newest(key, v)
		}
	})
}

func (t *toolParts) raw() []byte {
	for key, p := range t.inner {
		t.top.set(key, p.raw())
	}
	return t.top.raw()
}

func (c *choiceParts) raw() []byte {
	var m fields
	c.message.first("role", []byte(`"assistant"`))
	m.set("role", c.message.value("role"))
	if v := c.message.value("content"); v != nil {
		m.set("content", v)
	} else {
		m.set("content", []byte("null"))
	}
	for _, key := range c.message.keys {
		if key != "role" && key != "content" {
			m.set(key, c.message.value(key))
		}
	}
	if c.sawTools {
		calls := make([][]byte, len(c.tools))
		for i, t := range c.tools {
			calls[i] = t.raw()
		}
		m.set("tool_calls", rawjson.Array(calls))
	}
	var out fields
	out.set("index", rawjson.Encode(c.index))
	out.set("message", m.raw())
	if c.sawLogs {
		if len(c.logprobs.keys) == 0 {
			out.set("logprobs", []byte("null"))
		} else {
			out.set("logprobs", c.logprobs.raw())
		}
	}
	c.rest.first("finish_reason", []byte("null"))
	for i, key := range c.rest.keys {
		out.set(key, c.rest.vals[i])
	}
	return out.raw()
}

// maxSlots bounds the tool calls of one choice: an upstream that sends index 2000000000 must not use up our memory.
const maxSlots = 512

// ToolSlots finds the tool call that a delta belongs to, as its position in the final reply. The index identifies a
// call, not its id; a delta without an index belongs to the call with its id, or to the last one.
type ToolSlots struct {
	indexes []int64
	ids     []string
}

// At returns the position, making a new one where the delta begins a call.
func (s *ToolSlots) At(delta []byte) int {
	id, _ := rawjson.FieldString(delta, "id")
	raw, _ := rawjson.Field(delta, "index")
	index, ok := rawjson.Int(raw)
	at := -1
	switch {
	case ok:
		at = slices.Index(s.indexes, index)
	case id != "":
		at = slices.Index(s.ids, id)
	default:
		at = len(s.ids) - 1
	}
	if at < 0 && len(s.ids) >= maxSlots {
		at = len(s.ids) - 1
	}
	if at < 0 {
		if !ok {
			index = -1 - int64(len(s.ids))
		}
		s.indexes = append(s.indexes, index)
		s.ids = append(s.ids, id)
		return len(s.ids) - 1
	}
	return at
}

// fields is a JSON object under construction; keys keep the order in which they came first.
type fields struct {
	keys []string
	vals [][]byte
}

func (f *fields) set(key string, raw []byte) {
	if i := slices.Index(f.keys, key); i >= 0 {
		f.vals[i] = raw
		return
	}
	f.keys = append(f.keys, key)
	f.vals = append(f.vals, raw)
}

// newest keeps the newest value that is not null.
func (f *fields) newest(key string, raw []byte) {
	if i := slices.Index(f.keys, key); i < 0 || !rawjson.IsNull(raw) {
		f.set(key, raw)
	}
}

// first keeps the first value that says something: not null, empty or zero (the opening chunk of some providers).
func (f *fields) first(key string, raw []byte) {
	if i := slices.Index(f.keys, key); i < 0 || blank(f.vals[i]) {
		if i < 0 || !blank(raw) {
			f.set(key, raw)
		}
	}
}

func (f *fields) take(key string) ([]byte, bool) {
	i := slices.Index(f.keys, key)
	if i < 0 {
		return nil, false
	}
	v := f.vals[i]
	f.keys, f.vals = slices.Delete(f.keys, i, i+1), slices.Delete(f.vals, i, i+1)
	return v, true
}

func (f *fields) raw() []byte {
	size := 2
	for i, key := range f.keys {
		size += len(key) + len(f.vals[i]) + 4
	}
	out := append(make([]byte, 0, size), '{')
	for i, key := range f.keys {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(append(out, rawjson.Encode(key)...), ':'), f.vals[i]...)
	}
	return append(out, '}')
}

// parts is an object whose texts and arrays arrive in pieces.
type parts struct {
	fields
	texts  map[string]*strings.Builder
	lists  map[string][][]byte
	nested map[string]*parts
}

// once lists fields that come whole, in one chunk or repeated in each.
var once = map[string]bool{"role": true, "name": true, "id": true, "type": true, "format": true}

func (p *parts) add(key string, raw []byte) {
	s, text := rawjson.IsString(raw)
	switch {
	case once[key]:
		p.first(key, raw)
	case text:
		if p.texts == nil {
			p.texts = map[string]*strings.Builder{}
		}
		if p.texts[key] == nil {
			p.texts[key] = &strings.Builder{}
			p.newest(key, raw)
		}
		p.texts[key].WriteString(s)
	case isArray(raw):
		if p.lists == nil {
			p.lists = map[string][][]byte{}
		}
		p.lists[key] = append(p.lists[key], rawjson.Elements(raw)...)
		p.newest(key, raw)
	case isObject(raw):
		if p.nested == nil {
			p.nested = map[string]*parts{}
		}
		if p.nested[key] == nil {
			p.nested[key] = &parts{}
			p.newest(key, raw)
		}
		rawjson.EachField(raw, p.nested[key].add)
	default:
		p.newest(key, raw)
	}
}

// value returns the assembled value of a key; nil if it never came. A field whose kind changes between chunks keeps its
// texts first, then its list, then its object: some providers send content as text in one chunk and as parts in the
// next.
func (p *parts) value(key string) []byte {
	i := slices.Index(p.keys, key)
	if i < 0 {
		return nil
	}
	list, text := p.lists[key], p.texts[key]
	switch {
	case text != nil && text.Len() > 0 && list != nil:
		part := rawjson.Encode(struct {
			Type string `json:"type"`
			Text string `json:"text"`
		}{"text", text.String()})
		return rawjson.Array(append(slices.Clone(list), part))
	case list != nil:
		return rawjson.Array(list)
	case text != nil:
		return rawjson.Encode(text.String())
	case p.nested[key] != nil:
		return p.nested[key].raw()
	}
	return p.vals[i]
}

func (p *parts) raw() []byte {
	var out fields
	for _, key := range p.keys {
		out.set(key, p.value(key))
	}
	return out.raw()
}

func blank(raw []byte) bool {
	switch string(raw) {
	case "", "null", `""`, "0":
		return true
	}
	return false
}

func isArray(raw []byte) bool  { return len(raw) > 0 && raw[0] == '[' }
func isObject(raw []byte) bool { return len(raw) > 0 && raw[0] == '{' }
