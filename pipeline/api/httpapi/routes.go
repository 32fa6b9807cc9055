package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// methods maps HTTP methods of one path to handlers; GET serves HEAD.
type methods map[string]http.HandlerFunc

// router routes requests. It has one ServeMux of paths without methods, so that unknown paths and wrong methods are
// answered in the same form as other errors.
type router struct {
	mux  *http.ServeMux
	list []string
}

func newRouter() *router {
	t := &router{mux: http.NewServeMux()}
	t.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { writeFault(w, noPath(r)) })
	return t
}

func noPath(r *http.Request) *messages.Fault {
	return messages.NewFault(messages.NotFound, "there is nothing at %s; the gateway serves /v1/chat/completions, "+
		"/v1/responses, /v1/messages, /v1/embeddings, /v1/models, /v1/tools, /v1/results/{call}, /mcp, /livez and /readyz",
		r.URL.EscapedPath()).From("entry")
}

func (t *router) mount(pattern string, h http.HandlerFunc) {
	t.list = append(t.list, "* "+pattern)
	t.mux.HandleFunc(pattern, h)
}

func (t *router) add(path string, m methods) {
	allow := slices.Collect(maps.Keys(m))
	for _, method := range allow {
		t.list = append(t.list, method+" "+path)
	}
	if m[http.MethodGet] != nil {
		allow = append(allow, http.MethodHead)
	}
	allow = append(allow, http.MethodOptions)
	slices.Sort(allow)
	list := strings.Join(allow, ", ")
	t.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		switch h := m[method]; {
		case h != nil:
			h(w, r)
		case r.Method == http.MethodOptions:
			w.Header().Set("Allow", list)
			w.WriteHeader(http.StatusNoContent)
		default:
			writeFault(w, methodFault(w, r, list))
		}
	})
}

func methodFault(w http.ResponseWriter, r *http.Request, allow string) *messages.Fault {
	w.Header().Set("Allow", allow)
	return api.Refused(messages.MethodNotAllowed, "%s does not take %s; it takes %s", r.URL.Path, r.Method, allow)
}

// recorder records what the log says of a request, and how far its answer is. Unwrap lets http.ResponseController reach
// deadlines.
type recorder struct {
	http.ResponseWriter
	identity api.Identity
	shape    shape       // of errors; nil: OpenAI's
	idHeader string      // a further header of the request id
	ended    []slog.Attr // what the log says of the call that ended

	mu     sync.Mutex // one writes at a time: the handler, or who looks whether the caller is gone
	status int
	whole  bool // what was written ends with an empty line, as events do
}

func (a *recorder) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *recorder) WriteHeader(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.begin(status)
	a.ResponseWriter.WriteHeader(status)
}

func (a *recorder) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.begin(http.StatusOK)
	a.whole = bytes.HasSuffix(b, []byte("\n\n"))
	return a.ResponseWriter.Write(b)
}

// FlushError is what http.ResponseController calls to flush.
func (a *recorder) FlushError() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.begin(http.StatusOK)
	return http.NewResponseController(a.ResponseWriter).Flush()
}

func (a *recorder) begin(status int) {
	if a.status != 0 {
		return
	}
	a.status, a.whole = status, true
	if a.idHeader != "" {
		a.Header().Set(a.idHeader, a.Header().Get("X-Request-Id"))
	}
}

// wrap puts what every request passes around the routes: the log line, the request id, panics, refused paths, CORS.
func (s *Server) wrap(t *router) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		a := &recorder{ResponseWriter: w}
		if speaksMessages(r) {
			a.shape, a.idHeader = anthropicError, "Request-Id"
		}
		r, stop := s.attend(r, a, begin)
		defer stop()
		// A stream's last write deadline must not meet the next request of the connection.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
		// A body with a length and a coding (the server drops the length) may be an attempt to smuggle a second request
		// past another reader, so nothing more is read from such a connection.
		if len(r.TransferEncoding) > 0 || s.stopping.Load() {
			w.Header().Set("Connection", "close")
		}
		done := func(string, int) {}
		if s.Observer != nil {
			var ctx context.Context
			if ctx, done = s.Observer.Request(r); ctx != r.Context() {
				r = r.WithContext(ctx)
			}
		}
		defer func() {
			p := recover()
			if p != nil {
				s.panicked(a, r, p)
			}
			if a.status == 0 && r.Context().Err() != nil {
				a.status = messages.Cancelled.Info().Status // for the log; the caller does not read it
			}
			done(r.Pattern, a.status)
			s.line(r, a, begin)
			if p != nil && w.Header().Get(cutMark) != "" {
				panic(http.ErrAbortHandler)
			}
		}()
		id, fault := api.OneValue(r.Header.Values, "X-Request-Id")
		if id == "" {
			id = messages.NewID()
		}
		w.Header().Set("X-Request-Id", id)
		if rest, ok := strings.CutPrefix(r.URL.Path, evictedPath+"/"); ok && r.URL.RawPath == "" {
			r.URL.Path = evictedPath + rest // an absolute path, in the form in which it was shown
		}
		switch {
		case fault != nil:
		case r.ProtoMajor != 1: // net/http hands on the first words of HTTP/2, and nothing else of it
			fault = versionFault()
		case !plainTarget(r):
			fault = noPath(r)
		}
		preflight := s.cors(a, r)
		switch {
		case fault != nil:
			writeFault(a, fault)
		case preflight:
			a.WriteHeader(http.StatusNoContent)
		default:
			t.mux.ServeHTTP(a, r)
		}
	})
}

// line writes the one line of the log about a request, and about the call that it made. It says nothing of its place in
// the source, which is the same for all and takes time to find out.
func (s *Server) line(r *http.Request, a *recorder, begin time.Time) {
	ctx, level := r.Context(), levelOf(r.Method, r.URL.Path, a.status)
	if !s.Log.Enabled(ctx, level) {
		return
	}
	h, now := a.Header(), time.Now()
	said := slog.NewRecord(now, level, "http", 0)
	said.AddAttrs(slog.String("method", r.Method), slog.String("path", r.URL.Path),
		slog.Int("status", a.status), slog.Int64("dur_ms", now.Sub(begin).Milliseconds()),
		slog.String("request_id", h.Get("X-Request-Id")), slog.String("call", h.Get("Shallot-Call")),
		slog.String("tenant", a.identity.Tenant), slog.String("key", a.identity.KeyID))
	said.AddAttrs(a.ended...)
	_ = s.Log.Handler().Handle(ctx, said) // as slog itself does
}

// ended notes the end of a call for the log.
func ended(w http.ResponseWriter, c *messages.Call) {
	if a, ok := w.(*recorder); ok {
		a.ended = api.LogLine(c)
	}
}

// levelOf is the level of a request's line in the log. Probes and pages come every few seconds to see how things are,
// and say nothing while all is well.
func levelOf(method, path string, status int) slog.Level {
	polls := slices.Contains(probes, path) || path == "/metrics" || method == http.MethodGet &&
		slices.ContainsFunc([]string{"/api/", "/ui/", "/v1/results/", "/v1/approvals"}, func(p string) bool {
			return strings.HasPrefix(path, p)
		})
	if polls && status < http.StatusBadRequest {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// RequestObserver measures requests. Request is told of one before anything is done for it, and may change its trace
// headers; done is called at its end with the pattern of its route, empty if there is none, and the status.
type RequestObserver interface {
	Request(r *http.Request) (ctx context.Context, done func(route string, status int))
}

type beginKey struct{}

// started is when the gateway received the request.
func started(r *http.Request) time.Time {
	t, ok := r.Context().Value(beginKey{}).(time.Time)
	if !ok {
		return time.Now()
	}
	return t
}

// cutMark in the header map, set after the real headers were sent, says that the connection must be cut.
const cutMark = "Shallot-Cut"

// panicked answers 500 with an id. A half-written answer is cut off, so that nobody takes it for a whole one.
func (s *Server) panicked(a *recorder, r *http.Request, p any) {
	id := a.Header().Get("X-Request-Id")
	if p != http.ErrAbortHandler {
		s.Log.Error("panic in a handler", "request_id", id, "path", r.URL.Path, "panic", fmt.Sprint(p),
			"stack", string(debug.Stack()))
	}
	if a.status == 0 {
		writeFault(a, internalFault(id))
		return
	}
	a.Header().Set(cutMark, "yes")
}

// plainTarget refuses every request target that two readers could take for different paths: absolute forms, dot
// segments, empty segments, encoded slashes, backslashes, controls. The answer does not depend on a key. Encoded
// slashes are allowed only after /models/ and /v1/evicted/, because clients encode the names of models and the paths
// that a tool showed them.
func plainTarget(r *http.Request) bool {
	if !strings.HasPrefix(r.RequestURI, "/") && r.RequestURI != "" {
		return false
	}
	raw := strings.ToLower(r.URL.EscapedPath())
	begins := func(prefix string) bool { return strings.HasPrefix(raw, prefix) }
	if !begins("/") || strings.Contains(raw, "//") || strings.Contains(raw, `\`) || strings.Contains(raw, "%5c") {
		return false
	}
	if strings.Contains(raw, "%2f") && !slices.ContainsFunc([]string{"/v1/models/", "/models/", evictedPath}, begins) {
		return false
	}
	path := r.URL.Path
	if rest, ok := strings.CutPrefix(path, evictedPath+"/"); ok {
		path = evictedPath + rest // an encoded absolute path
	}
	for _, seg := range strings.Split(path, "/") {
		if seg == "." || seg == ".." {
			return false
		}
	}
	if strings.Contains(path, "//") {
		return false
	}
	return !strings.ContainsFunc(path, func(c rune) bool { return c < ' ' || c == 0x7f })
}
