package responses

import (
	"net/http"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
)

// echoed are the fields that a response repeats from its request.
var echoed = []string{
	"instructions", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls", "prompt_cache_key",
	"reasoning", "safety_identifier", "service_tier", "temperature", "text", "tool_choice", "tools", "top_logprobs",
	"top_p", "truncation", "user",
}

// Shape makes a response, or what a lifecycle event says of it, the one of this turn: its id if it is kept, what it
// belongs to, and every field that clients require. What the provider said stays.
func (r *Record) Shape(response []byte, kept bool) []byte {
	if kept {
		response = rawjson.SetFieldString(response, "id", r.ID)
	}
	response = whole(fill(response, r.blank("")))
	set := func(key string, v any) { response = rawjson.SetField(response, key, rawjson.Encode(v)) }
	set("store", kept)
	set("background", r.Background)
	if r.Previous != "" {
		set("previous_response_id", r.Previous)
	}
	if r.Conversation != "" {
		set("conversation", map[string]string{"id": r.Conversation})
	}
	return response
}

// fill adds the fields of from that obj lacks, or says nothing of.
func fill(obj, from []byte) []byte {
	rawjson.EachField(from, func(key string, raw []byte) {
		if have, ok := rawjson.Field(obj, key); !ok || rawjson.IsNull(have) && !rawjson.IsNull(raw) {
			obj = rawjson.SetField(obj, key, raw)
		}
	})
	return obj
}

// whole adds what clients want to find in the settings that a response repeats, where a request leaves it out.
func whole(response []byte) []byte {
	changed := false
	tools := rawjson.Elements(rawjson.At(response, "tools"))
	for i, t := range tools {
		if rawjson.Text(t, "type") != "function" {
			continue
		}
		full := add(t, `{"description":null,"parameters":null,"strict":null}`)
		changed = changed || len(full) != len(t)
		tools[i] = full
	}
	if changed {
		response = rawjson.SetField(response, "tools", rawjson.Array(tools))
	}
	response = complete(response, `{"effort":null,"summary":null}`, "reasoning")
	response = complete(response, `{"format":{"type":"text"}}`, "text")
	if rawjson.Text(rawjson.At(response, "text", "format"), "type") == "json_schema" {
		response = complete(response, `{"description":null,"strict":false}`, "text", "format")
	}
	return response
}

// complete adds the fields that the object at a path lacks; what is no object stays.
func complete(obj []byte, fields string, path ...string) []byte {
	if len(path) == 0 {
		return add(obj, fields)
	}
	had := rawjson.At(obj, path[0])
	if len(had) == 0 || had[0] != '{' {
		return obj
	}
	full := complete(had, fields, path[1:]...)
	if len(full) == len(had) {
		return obj
	}
	return rawjson.SetField(obj, path[0], full)
}

// add adds the fields that an object lacks.
func add(obj []byte, fields string) []byte {
	rawjson.EachField([]byte(fields), func(key string, raw []byte) {
		if _, ok := rawjson.Field(obj, key); !ok {
			obj = rawjson.SetField(obj, key, raw)
		}
	})
	return obj
}

// blank is a response without output, with what the request said.
func (r *Record) blank(status string) []byte {
	b := view.NewResponse(r.ID, view.ModelName(r.Request), r.Created)
	for _, key := range echoed {
		if raw, ok := rawjson.Field(r.Request, key); ok && !rawjson.IsNull(raw) {
			b = rawjson.SetField(b, key, raw)
		}
	}
	if status != "" {
		b = rawjson.SetFieldString(b, "status", status)
	}
	return b
}

// Now is the response as it can be shown.
func (r *Record) Now() []byte {
	if r.Done() {
		return r.Response
	}
	return r.Shape(r.blank("in_progress"), true)
}

// Queued is the response of a call that has just been accepted.
func (r *Record) Queued() []byte { return r.Shape(r.blank("queued"), true) }

// failed is the response of a call that ended with a fault.
func (r *Record) failed(f *messages.Fault) []byte {
	if f.Code == messages.Cancelled {
		return r.Shape(r.blank("cancelled"), true)
	}
	code := "server_error"
	switch f.HTTPStatus() {
	case http.StatusTooManyRequests:
		code = "rate_limit_exceeded"
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		code = "invalid_prompt"
	}
	b := rawjson.SetField(r.blank("failed"), "error", rawjson.Encode(struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}{code, f.Message}))
	return r.Shape(b, true)
}

// Event is Shape for an event of a stream.
func (r *Record) Event(event []byte, kept bool) []byte {
	response, ok := rawjson.Field(event, "response")
	if !ok {
		return event
	}
	return rawjson.SetField(event, "response", r.Shape(response, kept))
}

// Failed is the event that ends the stream of a response that failed.
func (r *Record) Failed(f *messages.Fault, kept bool, number int) []byte {
	e := rawjson.SetField([]byte(`{"type":"response.failed"}`), "sequence_number", rawjson.Encode(number))
	return rawjson.SetField(e, "response", r.Shape(r.failed(f), kept))
}

// ErrorEvent is the event that ends a stream without a response.
func ErrorEvent(f *messages.Fault, number int) []byte {
	return rawjson.Encode(struct {
		Type    string  `json:"type"`
		Number  int     `json:"sequence_number"`
		Code    string  `json:"code"`
		Message string  `json:"message"`
		Param   *string `json:"param"`
	}{"error", number, string(f.Code), f.Message, nil})
}
