package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline/intake"
)

// handler serves /mcp: whoever comes here has passed the checks of Host, Origin and key.
func (f *mcpFace) handler(limit int64) http.Handler {
	get := func(*http.Request) *mcp.Server { return f.server }
	log := slog.New(quiet{f.log.Handler()})
	now := mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		Stateless: true, PropagateRequestCancellation: true, MaxRequestBodyBytes: limit, Logger: log, DisableLocalhostProtection: true,
	})
	older := mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		SessionTimeout: mcpSessionIdle, MaxRequestBodyBytes: limit, Logger: log, DisableLocalhostProtection: true,
	})
	return known(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if sessionless(r, limit) {
			now.ServeHTTP(w, r)
			return
		}
		older.ServeHTTP(w, r)
	}))
}

// firstSessionless is the revision from which requests stand alone.
const firstSessionless = "2026-07-28"

// sessionless reports whether a request is of a revision without sessions, by its header, else by its body.
func sessionless(r *http.Request, limit int64) bool {
	switch v := r.Header.Get("Mcp-Protocol-Version"); {
	case v != "":
		return v >= firstSessionless
	case r.Header.Get("Mcp-Session-Id") != "":
		return false
	case r.Method != http.MethodPost:
		return true // 405: without a session there is nothing to get or to delete
	case r.Header.Get("Mcp-Method") != "":
		return true
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		return false
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
	return gjson.GetBytes(body, `params._meta.io\.modelcontextprotocol/protocolVersion`).Exists()
}

// known tells the SDK who makes a request, so that nobody uses another one's session.
func known(next http.Handler) http.Handler {
	verify := func(_ context.Context, _ string, r *http.Request) (*auth.TokenInfo, error) {
		id := identityOf(r.Context())
		return &auth.TokenInfo{
			UserID: id.Tenant + "/" + id.Who(), Expiration: time.Now().Add(24 * time.Hour), Extra: map[string]any{"identity": id},
		}, nil
	}
	inner := auth.RequireBearerToken(verify, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Authorization")
		next.ServeHTTP(w, r)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", "Bearer checked") // the real one ended at the gateway's own check
		inner.ServeHTTP(w, r)
	})
}

// who makes a request, and its headers; those of stdio are empty.
func (f *mcpFace) who(extra *mcp.RequestExtra) (identity, http.Header) {
	id, h := f.local, http.Header{}
	if extra != nil {
		if extra.Header != nil {
			h = extra.Header
			id = identity{Tenant: "default", Role: intake.RoleCaller}
		}
		if extra.TokenInfo != nil {
			if who, ok := extra.TokenInfo.Extra["identity"].(identity); ok {
				id = who
			}
		}
	}
	return id, h
}
