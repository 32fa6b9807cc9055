package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// writeFault is the only place that answers with an error. It writes the fault's status, headers and body. Headers that
// are set already (call id, request id) stay.
func writeFault(w http.ResponseWriter, f *messages.Fault) {
	h := w.Header()
	for k, v := range api.FaultHeaders(f) {
		setHeader(h, k, v)
	}
	if f.Code == messages.Unauthenticated {
		h.Set("WWW-Authenticate", `Bearer realm="shallot"`)
	}
	api.WriteJSON(w, faultStatus(f), shapeOf(w)(f, h.Get("X-Request-Id")))
}

// shape writes the body of an error as the API of a wire has it.
type shape func(f *messages.Fault, request string) []byte

func openAIError(f *messages.Fault, _ string) []byte { return f.Body() }

// shapeOf returns the shape that the route has chosen, or that of OpenAI.
func shapeOf(w http.ResponseWriter) shape {
	if a, ok := w.(*recorder); ok && a.shape != nil {
		return a.shape
	}
	return openAIError
}

// faultStatus is the fault's status if it is an error status: an upstream may have sent anything.
func faultStatus(f *messages.Fault) int {
	if n := f.HTTPStatus(); n >= 400 && n <= 599 {
		return n
	}
	return http.StatusBadGateway
}

// setHeader sets an answer header from text that others wrote. Everything except printable ASCII becomes a question
// mark, and very long values are cut, so that they do not exceed a reader's limits.
func setHeader(h http.Header, name, value string) {
	const maxLength = 4096
	clean := value
	if !printable(value) {
		clean = printed(value)
	}
	if len(clean) > maxLength {
		clean = clean[:maxLength-3] + "..."
	}
	if clean != "" {
		h.Set(name, clean)
	}
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

func printed(value string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, value)
}

func writeValue(w http.ResponseWriter, status int, v any) {
	api.WriteJSON(w, status, append(rawjson.Encode(v), '\n'))
}

// failed answers with an error of the entry or of a control surface. Anything but a fault is a defect of ours: its text
// goes to the log, and the caller gets an id to report.
func (s *common) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil { // whatever failed, it failed because the caller left
		writeFault(w, gone())
		return
	}
	if f, ok := errors.AsType[*messages.Fault](err); ok {
		writeFault(w, f)
		return
	}
	id := w.Header().Get("X-Request-Id")
	s.log.Error("request failed", "request_id", id, "path", r.URL.Path, "err", err)
	if errors.Is(err, context.DeadlineExceeded) {
		writeFault(w, api.Refused(messages.DeadlineExceeded, "the gateway got no answer in time; request id %s", id))
		return
	}
	writeFault(w, internalFault(id))
}

// gone answers a caller who has left. Hardly anybody is there to read it; whoever is must not take an empty answer for
// a success.
func gone() *messages.Fault {
	return messages.NewFault(messages.Cancelled,
		"the caller closed the connection before the answer; keep it open to get one").From("caller")
}

func internalFault(id string) *messages.Fault {
	return api.Refused(messages.Internal, "the gateway failed; the log has the reason under request id %s", id)
}
