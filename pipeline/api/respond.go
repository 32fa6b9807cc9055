package api

import (
	"net/http"
	"strconv"
)

// WriteJSON writes a whole answer of JSON; see WriteBody.
func WriteJSON(w http.ResponseWriter, status int, body []byte) {
	WriteBody(w, status, "application/json", body)
}

// WriteBody writes a whole answer, which no cache on the way may keep.
func WriteBody(w http.ResponseWriter, status int, contentType string, body []byte) {
	BeginBody(w, status, contentType, len(body))
	_, _ = w.Write(body) // it fails only if the caller is gone
}

// BeginBody writes what comes before the body of a whole answer.
func BeginBody(w http.ResponseWriter, status int, contentType string, size int) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(size))
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store")
	}
	w.WriteHeader(status)
}
