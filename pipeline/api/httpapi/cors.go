package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/pipeline/api"
)

// exposed are the answer headers that a page may read. allowedHeaders are those that it may send, beside x-stainless-*.
const (
	exposed = "X-Request-Id, X-Upstream-Request-Id, Shallot-Call, Shallot-Path, Shallot-Attempts, Shallot-Degraded, " +
		"Shallot-Changed, Shallot-Edited, Shallot-Cache, Shallot-Stopped-By, Shallot-Tool-Error, Shallot-Duration-Ms, " +
		"Shallot-Fault, Shallot-Stage, Location, Retry-After, Retry-After-Ms, X-Should-Retry, " +
		"Mcp-Session-Id, Mcp-Protocol-Version"
	allowedHeaders = "Authorization, Content-Type, Prefer, Idempotency-Key, X-Request-Id, Traceparent, Tracestate, " +
		"OpenAI-Organization, OpenAI-Project, OpenAI-Beta, X-Api-Key, Anthropic-Version, Anthropic-Beta, " +
		"Shallot-Session, Shallot-Run, Shallot-User, Shallot-Agent, " +
		"Shallot-Timeout, Shallot-Deadline, Shallot-Cache, " +
		"Accept, Mcp-Protocol-Version, Mcp-Session-Id, Mcp-Method, Mcp-Name, Last-Event-Id"
)

// pagePaths are the paths that pages of allowed origins may use. Control surfaces are not among them.
var pagePaths = []string{"/v1/", "/chat/completions", "/models", "/mcp"}

// cors sets the headers for an allowed origin and reports whether the request is a preflight, which ends with 204 for
// any origin: without the headers the browser itself refuses. No origin gets credentials.
func (s *Server) cors(w http.ResponseWriter, r *http.Request) (preflight bool) {
	origin := r.Header.Get("Origin")
	forPages := func(p string) bool { return strings.HasPrefix(r.URL.Path, p) }
	if origin == "" || strings.HasPrefix(r.URL.Path, "/v1/approvals") || !slices.ContainsFunc(pagePaths, forPages) {
		return false
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	preflight = r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != ""
	switch {
	case slices.Contains(s.AllowedOrigins, origin):
		h.Set("Access-Control-Allow-Origin", origin)
	case slices.Contains(s.AllowedOrigins, "*"):
		h.Set("Access-Control-Allow-Origin", "*")
	default:
		return preflight
	}
	h.Set("Access-Control-Expose-Headers", exposed)
	if preflight {
		h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE, OPTIONS")
		h.Set("Access-Control-Allow-Headers", allowedHeaders+stainless(r.Header.Get("Access-Control-Request-Headers")))
		h.Set("Access-Control-Max-Age", "600")
	}
	return preflight
}

// stainless picks the x-stainless-* names that the OpenAI client asks to send. Their list grows with its versions.
func stainless(asked string) string {
	var out strings.Builder
	for name := range strings.SplitSeq(asked, ",") {
		name = strings.ToLower(strings.TrimSpace(name))
		if strings.HasPrefix(name, "x-stainless-") && len(name) < 64 && api.Visible(name) && out.Len() < 2048 {
			out.WriteString(", " + name)
		}
	}
	return out.String()
}
