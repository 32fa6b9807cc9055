package api

import (
	"encoding/json"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages"
)

// HeaderStream asks for a tool's result as a stream: on or off.
const HeaderStream = "Shallot-Stream"

// WantsStream reads the header with which the caller of a tool asks for a stream. Callers of models say so in the body.
func WantsStream(h Headers) (bool, *messages.Fault) {
	v, f := OneValue(h, HeaderStream)
	if f == nil && v != "" && v != "on" && v != "off" {
		f = Invalid(HeaderStream, "header %s is %q; known: on, off", HeaderStream, v)
	}
	return v == "on", f
}

// ReadArguments checks the body of a tool call as far as the entry is responsible for it: it is text within the bounds.
// The stage tool-arguments reads the arguments, so that it says the same whoever wrote them: a body that is not JSON
// ends there as invalid_arguments, and an empty one has no arguments.
func ReadArguments(body []byte) *messages.Fault {
	switch f := scan(body, false); {
	case f != nil:
		return f
	case !utf8.Valid(body):
		return Invalid("", "the body is not valid UTF-8; send the arguments as one JSON object")
	}
	return nil
}

// Arguments is the body of a tool call as the call carries it: {} if nothing was sent.
func Arguments(body []byte) []byte {
	for _, c := range body {
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return body
		}
	}
	return json.RawMessage(`{}`)
}
