package translate

import (
	"fmt"
	"strings"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
)

// responsesWriter writes items, one open at a time, with all the events that clients wait for.
type responsesWriter struct {
	pair     Pair
	response []byte
	calls    calls
	ending
	seq    int
	items  [][]byte // finished
	open   string   // type of the open item; empty: none
	id     string   // of the open item
	parts  [][]byte // finished parts of the open item
	part   string   // type of the open part
	text   strings.Builder
	sealed string
}

// echoed are the fields of a request that its response repeats.
var echoed = []string{
	"background", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls",
	"previous_response_id", "prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "store",
	"temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "presence_penalty", "frequency_penalty",
	"truncation", "user",
}

func newResponsesWriter(p Pair, request []byte, names map[string]toolName) *responsesWriter {
	w := &responsesWriter{pair: p, calls: calls{pair: p, names: names}}
	w.response = view.NewResponse("resp_"+p.ID, view.ModelName(request), p.Created)
	for _, key := range echoed {
		if raw, ok := rawjson.Field(request, key); ok && !rawjson.IsNull(raw) {
			w.response = rawjson.SetField(w.response, key, raw)
		}
	}
	return w
}

// event writes an event with its number.
func (w *responsesWriter) event(kind string, pairs ...any) []byte {
	w.seq++
	return rawjson.SetField(obj(append([]any{"type", kind}, pairs...)...), "sequence_number", rawjson.Encode(w.seq-1))
}

// of writes an event about the open item.
func (w *responsesWriter) of(kind string, pairs ...any) []byte {
	return w.event(kind, append([]any{"item_id", w.id, "output_index", len(w.items)}, pairs...)...)
}

func (w *responsesWriter) write(d delta) (out [][]byte) {
	switch d.kind {
	case began:
		if d.text != "" {
			w.response = rawjson.SetFieldString(w.response, "model", d.text)
		}
		return [][]byte{w.event("response.created", "response", w.response),
			w.event("response.in_progress", "response", w.response)}
	case saidText, saidNo:
		if d.text == "" {
			return nil
		}
		kind := "output_text"
		if d.kind == saidNo {
			kind = "refusal"
		}
		return append(w.need("message", kind), w.more(d.text)...)
	case thinks:
		return append(w.need("reasoning", "summary_text"), w.more(d.text)...)
	case signs:
		if w.open != "reasoning" {
			out = append(w.close(), w.begin("reasoning")...)
		}
		w.sealed = w.pair.seal(d.raw)
		return append(out, w.close()...)
	case callBegan, callArgs:
		if w.open == "message" || w.open == "reasoning" {
			out = w.close()
		}
		return append(out, w.calls.write(d, w)...)
	}
	w.take(d)
	return nil
}

var itemPrefix = map[string]string{
	"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc",
}

func (w *responsesWriter) begin(kind string) [][]byte {
	w.open, w.parts, w.part, w.sealed = kind, nil, "", ""
	w.id = fmt.Sprintf("%s_%s_%d", itemPrefix[kind], w.pair.ID, len(w.items))
	return [][]byte{w.event("response.output_item.added", "output_index", len(w.items), "item", w.item("in_progress"))}
}

// item is the open item as it is now.
func (w *responsesWriter) item(status string) []byte {
	if w.open == "message" {
		return obj("id", w.id, "type", "message", "status", status, "role", "assistant", "content",
			rawjson.Array(w.parts))
	}
	return obj("id", w.id, "type", "reasoning", "summary", rawjson.Array(w.parts), "encrypted_content", text0(w.sealed))
}

// need opens an item and a part of it unless they are open.
func (w *responsesWriter) need(item, part string) (out [][]byte) {
	if w.open != item {
		out = append(w.close(), w.begin(item)...)
	}
	if w.part == part {
		return out
	}
	out = append(out, w.endPart()...)
	w.part = part
	if part == "summary_text" {
		return append(out, w.of("response.reasoning_summary_part.added", "summary_index", len(w.parts), "part",
			w.partOf("")))
	}
	return append(out, w.of("response.content_part.added", "content_index", len(w.parts), "part", w.partOf("")))
}

func (w *responsesWriter) partOf(s string) []byte {
	switch w.part {
	case "refusal":
		return obj("type", "refusal", "refusal", s)
	case "summary_text":
		return obj("type", "summary_text", "text", s)
	}
	return view.OutputText(s)
}

func (w *responsesWriter) more(s string) [][]byte {
	w.text.WriteString(s)
	switch w.part {
	case "refusal":
		return [][]byte{w.of("response.refusal.delta", "content_index", len(w.parts), "delta", s)}
	case "summary_text":
		return [][]byte{w.of("response.reasoning_summary_text.delta", "summary_index", len(w.parts), "delta", s)}
	}
	return [][]byte{w.of("response.output_text.delta", "content_index", len(w.parts), "delta", s, "logprobs",
		[]byte("[]"))}
}

func (w *responsesWriter) endPart() (out [][]byte) {
	if w.part == "" {
		return nil
	}
	s, n := w.text.String(), len(w.parts)
	switch w.part {
	case "refusal":
		out = append(out, w.of("response.refusal.done", "content_index", n, "refusal", s))
	case "summary_text":
		out = append(out, w.of("response.reasoning_summary_text.done", "summary_index", n, "text", s))
	default:
		out = append(out, w.of("response.output_text.done", "content_index", n, "text", s, "logprobs", []byte("[]")))
	}
	part := w.partOf(s)
	if w.part == "summary_text" {
		out = append(out, w.of("response.reasoning_summary_part.done", "summary_index", n, "part", part))
	} else {
		out = append(out, w.of("response.content_part.done", "content_index", n, "part", part))
	}
	w.parts, w.part = append(w.parts, part), ""
	w.text.Reset()
	return out
}

// close ends what is open.
func (w *responsesWriter) close() (out [][]byte) {
	out = w.calls.end(w)
	if w.open == "" {
		return out
	}
	out = append(out, w.endPart()...)
	return append(out, w.done(w.item("completed")))
}

func (w *responsesWriter) done(item []byte) []byte {
	e := w.event("response.output_item.done", "output_index", len(w.items), "item", item)
	w.items, w.open = append(w.items, item), ""
	return e
}

func (w *responsesWriter) callItem(c *openCall, args, status string) []byte {
	kind, key := "function_call", "arguments"
	if c.custom {
		kind, key = "custom_tool_call", "input"
	}
	return obj("id", w.id, "type", kind, "status", status, "call_id", c.id, "name", c.name, "namespace", text0(c.space),
		key, args)
}

func (w *responsesWriter) beginCall(c *openCall) [][]byte {
	w.open = "function_call"
	if c.custom {
		w.open = "custom_tool_call"
	}
	w.id = fmt.Sprintf("%s_%s_%d", itemPrefix[w.open], w.pair.ID, len(w.items))
	return [][]byte{w.event("response.output_item.added", "output_index", len(w.items), "item",
		w.callItem(c, "", "in_progress"))}
}

func (w *responsesWriter) moreArgs(c *openCall, piece string) [][]byte {
	kind := "response.function_call_arguments.delta"
	if c.custom {
		kind = "response.custom_tool_call_input.delta"
	}
	return [][]byte{w.of(kind, "delta", piece)}
}

func (w *responsesWriter) endCall(c *openCall) [][]byte {
	kind, key := "response.function_call_arguments.done", "arguments"
	if c.custom {
		kind, key = "response.custom_tool_call_input.done", "input"
	}
	return [][]byte{w.of(kind, key, c.final()), w.done(w.callItem(c, c.final(), "completed"))}
}

func (w *responsesWriter) end() [][]byte {
	out := w.close()
	name, r := "response.completed", rawjson.SetField(w.response, "output", rawjson.Array(w.items))
	switch why := w.reason(len(w.calls.list) > 0); why {
	case view.FinishStop, view.FinishTools:
		r = rawjson.SetFieldString(r, "status", "completed")
		r = rawjson.SetField(r, "completed_at", rawjson.Encode(w.pair.Created))
	default:
		if why == view.FinishLength {
			why = "max_output_tokens"
		}
		name, r = "response.incomplete", rawjson.SetFieldString(r, "status", "incomplete")
		r = rawjson.SetField(r, "incomplete_details", obj("reason", why))
	}
	if u := w.usage; u != nil {
		r = rawjson.SetField(r, "usage", obj("input_tokens", u.Input, "input_tokens_details", obj("cached_tokens",
			u.CacheRead, "cache_write_tokens", u.CacheWrite), "output_tokens", u.Output, "output_tokens_details",
			obj("reasoning_tokens", u.Reasoning), "total_tokens", max(u.Total, u.Input+u.Output)))
	}
	return append(out, w.event(name, "response", r))
}
