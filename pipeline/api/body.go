package api

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

// maxRatio bounds how much a packed body may grow beyond the first megabyte, which any body may have.
const (
	maxRatio = 100
	freeSize = 1 << 20
)

// The defaults of a BodyReader.
const (
	DefaultBodyLimit   = 32 << 20
	DefaultBodyTimeout = 60 * time.Second
)

// BodyReader reads request bodies over HTTP. It may be used concurrently.
type BodyReader struct {
	Limit   int64         // in bytes, also of an unpacked body
	Timeout time.Duration // for one body
}

// Read reads a JSON request body within the limit and the body's time. It unpacks gzip and nothing else.
func (b BodyReader) Read(w http.ResponseWriter, r *http.Request) ([]byte, *messages.Fault) {
	if f := JSONType(r.Header); f != nil {
		return nil, f
	}
	packed := false
	switch coding := strings.ToLower(strings.Join(r.Header.Values("Content-Encoding"), ",")); coding {
	case "", "identity":
	case "gzip", "x-gzip":
		packed = true
	default:
		return nil, Refused(messages.UnsupportedMedia,
			"content coding %q is not read; send the body plain or as gzip", coding).At("Content-Encoding")
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(b.Timeout))
	if r.ContentLength > b.Limit {
		w.Header().Set("Connection", "close")
		return nil, b.tooLarge()
	}
	limited := http.MaxBytesReader(w, r.Body, b.Limit)
	body, err := readSized(limited, r.ContentLength, b.Limit)
	if err != nil {
		return nil, b.fault(w, err)
	}
	// The server reads on in the background to notice that the caller leaves. The time for the body must not end that.
	_ = rc.SetReadDeadline(time.Time{})
	if !packed {
		return body, nil
	}
	return b.unpack(body)
}

func readSized(r io.Reader, size, limit int64) ([]byte, error) {
	if size <= 0 || size > limit || size > freeSize {
		return io.ReadAll(r) // a length is only a claim, so memory grows with what really comes
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	return b, nil
}

func (b BodyReader) fault(w http.ResponseWriter, err error) *messages.Fault {
	w.Header().Set("Connection", "close") // the rest of the body is not worth reading
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return b.tooLarge()
	}
	if n, ok := errors.AsType[net.Error](err); ok && n.Timeout() {
		f := Invalid("", "the body did not arrive within %s", b.Timeout)
		f.Status = http.StatusRequestTimeout
		return f
	}
	return Invalid("", "the body could not be read to its end")
}

func (b BodyReader) tooLarge() *messages.Fault {
	return Refused(messages.TooLarge,
		"the body is larger than %d bytes (http.body-limit); send less, or links instead of inline files", b.Limit)
}

// unpack reads a whole gzip body. Its size and its ratio are bounded, so that a bomb cannot cost more than any body.
func (b BodyReader) unpack(packed []byte) ([]byte, *messages.Fault) {
	bad := Invalid("Content-Encoding", "the body is not gzip, as Content-Encoding says")
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, bad
	}
	limit := min(b.Limit, max(freeSize, int64(len(packed))*maxRatio))
	body, err := io.ReadAll(io.LimitReader(z, limit+1))
	switch {
	case int64(len(body)) > limit && limit == b.Limit:
		return nil, b.tooLarge()
	case int64(len(body)) > limit:
		return nil, Refused(messages.TooLarge,
			"the body unpacks to more than %d times its size; send it plain", maxRatio).At("Content-Encoding")
	case err != nil:
		return nil, bad
	}
	return body, nil
}

// JSONType accepts application/json in UTF-8, no type at all, and what "curl -d" sends by default. The body must be
// JSON in any case, and pages of other sites are kept out by their Origin instead of the type.
func JSONType(h http.Header) *messages.Fault {
	v := h.Values("Content-Type")
	if len(v) == 0 || len(v) == 1 && (v[0] == "" || v[0] == "application/json") {
		return nil
	}
	kind, params, err := mime.ParseMediaType(v[0])
	charset := params["charset"]
	utf8 := charset == "" || strings.EqualFold(charset, "utf-8") || strings.EqualFold(charset, "utf8")
	known := kind == "application/json" || kind == "application/x-www-form-urlencoded"
	if len(v) == 1 && err == nil && known && utf8 {
		return nil
	}
	return Refused(messages.UnsupportedMedia, "content type %q is not read; send Content-Type: application/json",
		strings.Join(v, ", ")).At("Content-Type")
}
