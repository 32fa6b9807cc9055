package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// maxRatio bounds how much a packed body may grow, beyond a first megabyte that any body may have.
const (
	maxRatio = 100
	freeSize = 1 << 20
)

// readBody reads a JSON request body within the limit and the body's time. It unpacks gzip and nothing else.
func (s *server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *messages.Fault) {
	if f := jsonType(r.Header); f != nil {
		return nil, f
	}
	packed := false
	switch coding := strings.ToLower(strings.Join(r.Header.Values("Content-Encoding"), ",")); coding {
	case "", "identity":
	case "gzip", "x-gzip":
		packed = true
	default:
		return nil, messages.NewFault(messages.UnsupportedMedia, "content coding %q is not read; send the body plain or as gzip", coding).At("Content-Encoding").From("entry")
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(s.BodyTimeout))
	if r.ContentLength > s.BodyLimit {
		w.Header().Set("Connection", "close")
		return nil, s.tooLarge()
	}
	limited := http.MaxBytesReader(w, r.Body, s.BodyLimit)
	body, err := readSized(limited, r.ContentLength, s.BodyLimit)
	if err != nil {
		return nil, s.bodyFault(w, err)
	}
	// The server reads on in the background to notice that the caller leaves; the body's time must not end that.
	_ = rc.SetReadDeadline(time.Time{})
	if !packed {
		return body, nil
	}
	return s.unpack(body)
}

func readSized(r io.Reader, size, limit int64) ([]byte, error) {
	if size <= 0 || size > limit || size > freeSize {
		return io.ReadAll(r) // a length is only a claim: memory grows with what really comes
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	return b, nil
}

func (s *server) bodyFault(w http.ResponseWriter, err error) *messages.Fault {
	w.Header().Set("Connection", "close") // what is left of the body is not worth reading
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return s.tooLarge()
	}
	if n, ok := errors.AsType[net.Error](err); ok && n.Timeout() {
		f := invalid("", "the body did not arrive within %s", s.BodyTimeout)
		f.Status = http.StatusRequestTimeout
		return f
	}
	return invalid("", "the body could not be read to its end")
}

func (s *server) tooLarge() *messages.Fault {
	return messages.NewFault(messages.TooLarge, "the body is larger than %d bytes (http.body-limit); send less, or links in place of inline files", s.BodyLimit).From("entry")
}

// unpack reads a whole gzip body, bounded in size and in ratio, so that a bomb costs at most what it is allowed.
func (s *server) unpack(packed []byte) ([]byte, *messages.Fault) {
	bad := invalid("Content-Encoding", "the body says gzip but is none")
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, bad
	}
	most := min(s.BodyLimit, max(freeSize, int64(len(packed))*maxRatio))
	body, err := io.ReadAll(io.LimitReader(z, most+1))
	switch {
	case int64(len(body)) > most && most == s.BodyLimit:
		return nil, s.tooLarge()
	case int64(len(body)) > most:
		return nil, messages.NewFault(messages.TooLarge, "the body unpacks to more than %d times its size; send it plain", maxRatio).At("Content-Encoding").From("entry")
	case err != nil:
		return nil, bad
	}
	return body, nil
}

// jsonType accepts application/json in UTF-8, no type at all, and what "curl -d" sends when nobody says otherwise: the
// body has to be JSON all the same, and pages of other sites are kept out by their Origin, not by the type.
func jsonType(h http.Header) *messages.Fault {
	v := h.Values("Content-Type")
	if len(v) == 0 || len(v) == 1 && v[0] == "" {
		return nil
	}
	kind, params, err := mime.ParseMediaType(v[0])
	charset := params["charset"]
	if len(v) == 1 && err == nil && (kind == "application/json" || kind == "application/x-www-form-urlencoded") && (charset == "" || strings.EqualFold(charset, "utf-8") || strings.EqualFold(charset, "utf8")) {
		return nil
	}
	return messages.NewFault(messages.UnsupportedMedia, "content type %q is not read; send Content-Type: application/json", strings.Join(v, ", ")).At("Content-Type").From("entry")
}
