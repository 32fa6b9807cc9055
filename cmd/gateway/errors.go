package main

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/intake"
)

// writeFault is the one place that answers with an error. It writes the status, headers and body of contracts T2;
// what the answer's headers already hold (call id, request id) stays.
func writeFault(w http.ResponseWriter, f *messages.Fault) {
	h := w.Header()
	for k, v := range intake.FaultFacts(f) {
		setHeader(h, k, v)
	}
	if f.Code == messages.Unauthenticated {
		h.Set("WWW-Authenticate", `Bearer realm="shallot"`)
	}
	writeJSON(w, faultStatus(f), f.Body())
}

// faultStatus is the fault's status, if it is one that says error: an upstream may have sent anything.
func faultStatus(f *messages.Fault) int {
	if n := f.HTTPStatus(); n >= 400 && n <= 599 {
		return n
	}
	return http.StatusBadGateway
}

// setHeader sets a header of our answer from text that others wrote: what is no printable ASCII becomes a question
// mark, and very long values are cut, so that a reader's limits are not met.
func setHeader(h http.Header, name, value string) {
	const most = 4096
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, value)
	if len(clean) > most {
		clean = clean[:most-3] + "..."
	}
	if clean != "" {
		h.Set(name, clean)
	}
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	writeBody(w, status, "application/json", body)
}

// writeBody writes a whole answer, which no cache on the way may keep.
func writeBody(w http.ResponseWriter, status int, contentType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store")
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // the only failure is that the caller is gone
}

func writeValue(w http.ResponseWriter, status int, v any) {
	writeJSON(w, status, append(rawjson.Encode(v), '\n'))
}

// failed answers with an error of the door or of control. What is no fault is our defect: its text goes to the log,
// the caller gets an id to name. Nothing is written for a caller who is gone.
func (s *server) failed(w http.ResponseWriter, r *http.Request, err error) {
	if f, ok := errors.AsType[*messages.Fault](err); ok {
		writeFault(w, f)
		return
	}
	if r.Context().Err() != nil {
		return
	}
	id := w.Header().Get("X-Request-Id")
	s.Log.Error("request failed", "request_id", id, "path", r.URL.Path, "err", err)
	if errors.Is(err, context.DeadlineExceeded) {
		writeFault(w, messages.NewFault(messages.DeadlineExceeded, "the gateway got no answer in time; request id %s", id).From("entry"))
		return
	}
	writeFault(w, internalFault(id))
}

func internalFault(id string) *messages.Fault {
	return messages.NewFault(messages.Internal, "the gateway failed; the log has the reason under request id %s", id).From("entry")
}

// invalid is a 400 that names the field or header.
func invalid(param, format string, args ...any) *messages.Fault {
	return messages.NewFault(messages.InvalidRequest, format, args...).At(param).From("entry")
}
