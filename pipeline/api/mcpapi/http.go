package mcpapi

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// Handler serves /mcp, behind the checks of Host, Origin and key. Bodies are read by the same rules as those of the
// other APIs. What the SDK refuses in plain text is answered as JSON-RPC (see wireWriter).
func (f *Server) Handler(limit int64) http.Handler {
	get := func(*http.Request) *mcp.Server { return f.server }
	log := slog.New(downgradeHandler{f.Log.Handler()})
	now := mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		Stateless: true, PropagateRequestCancellation: true, MaxRequestBodyBytes: limit, Logger: log,
		DisableLocalhostProtection: true,
	})
	older := mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		SessionTimeout: sessionIdle, MaxRequestBodyBytes: limit, Logger: log, DisableLocalhostProtection: true,
	})
	bodies := api.BodyReader{Limit: cmp.Or(limit, api.DefaultBodyLimit), Timeout: api.DefaultBodyTimeout}
	return withTokenInfo(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodOptions {
			w.Header().Set("Allow", "DELETE, GET, OPTIONS, POST")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		var in envelope
		var refused *jsonrpc.Error
		if r.Method == http.MethodPost {
			body, fault := bodies.Read(w, r)
			if fault != nil {
				wireError(w, fault.HTTPStatus(), nil, jsonrpc.CodeInvalidRequest, fault.Message)
				return
			}
			if in, fault = readEnvelope(body); fault != nil {
				code := int64(jsonrpc.CodeParseError)
				if fault.Code == messages.TooLarge || fault.Param != "" {
					code = jsonrpc.CodeInvalidRequest
				}
				wireError(w, fault.HTTPStatus(), nil, code, fault.Message)
				return
			}
			if f.Tasks != nil && sessionless(r, in) {
				refused = taskRefusal(r, in, body)
			}
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			r.Header.Set("Content-Type", "application/json")
			r.Header.Del("Content-Encoding")
		}
		for _, name := range []string{"Mcp-Protocol-Version", "Mcp-Session-Id", "Mcp-Method", "Mcp-Name"} {
			if n := len(r.Header.Values(name)); n > 1 { // two readers could take different ones
				wireError(w, http.StatusBadRequest, in.id, mcp.CodeHeaderMismatch,
					fmt.Sprintf("header %s is given %d times; give it once", name, n))
				return
			}
		}
		if refused != nil {
			wireRefusal(w, http.StatusBadRequest, in.id, refused)
			return
		}
		handler, session := older, r.Header.Get("Mcp-Session-Id")
		switch {
		case sessionless(r, in):
			handler = now
		case r.Method == http.MethodPost && session == "" && in.method != "initialize":
			wireError(w, http.StatusBadRequest, in.id, jsonrpc.CodeInvalidRequest,
				"the request names no session: begin one with initialize and send its Mcp-Session-Id with every request, "+
					"or use revision "+firstSessionless+", which needs none (header MCP-Protocol-Version, and the same in _meta)")
			return
		case session == "" && f.crowded():
			w.Header().Set("Retry-After", "60")
			wireError(w, http.StatusServiceUnavailable, in.id, jsonrpc.CodeInternalError,
				fmt.Sprintf("there are %d sessions open; end unused ones with DELETE, or use revision %s, which has none",
					maxSessions, firstSessionless))
			return
		}
		if in.id != nil && in.method != "subscriptions/listen" {
			defer f.posts.Begin()()
		}
		out := &wireWriter{ResponseWriter: w, in: in}
		defer out.end()
		handler.ServeHTTP(out, r)
	}))
}

// maxSessions bounds the sessions of older revisions in this process, because many clients never end theirs.
const maxSessions = 10_000

func (f *Server) crowded() bool {
	n := 0
	for range f.server.Sessions() {
		n++
	}
	return n >= maxSessions
}

// firstSessionless is the revision from which requests stand alone.
const firstSessionless = "2026-07-28"

// sessionless reports whether a request belongs to a revision without sessions, by its header, else by its body.
func sessionless(r *http.Request, in envelope) bool {
	switch v := r.Header.Get("Mcp-Protocol-Version"); {
	case v != "":
		return v >= firstSessionless
	case r.Header.Get("Mcp-Session-Id") != "":
		return false
	case r.Method != http.MethodPost:
		return true // 405: without a session there is nothing to GET or DELETE
	}
	return r.Header.Get("Mcp-Method") != "" || in.standsAlone
}

// withTokenInfo tells the SDK who makes a request, so that nobody can use a session of another key.
func withTokenInfo(next http.Handler) http.Handler {
	verify := func(_ context.Context, _ string, r *http.Request) (*auth.TokenInfo, error) {
		id := api.IdentityOf(r.Context())
		return &auth.TokenInfo{
			UserID: id.Tenant + "/" + id.Who(), Expiration: time.Now().Add(24 * time.Hour),
			Extra: map[string]any{"identity": id},
		}, nil
	}
	inner := auth.RequireBearerToken(verify, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Authorization")
		next.ServeHTTP(w, r)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", "Bearer checked") // the gateway's own check has removed the real one
		inner.ServeHTTP(w, r)
	})
}

// caller returns the identity that makes a request, and the request's headers; on stdio there are none.
func (f *Server) caller(extra *mcp.RequestExtra) (api.Identity, http.Header) {
	id, h := f.Local, http.Header{}
	if extra != nil {
		if extra.Header != nil {
			h = extra.Header
			id = api.Identity{Tenant: "default", Role: api.RoleCaller}
		}
		if extra.TokenInfo != nil {
			if who, ok := extra.TokenInfo.Extra["identity"].(api.Identity); ok {
				id = who
			}
		}
	}
	return id, h
}
