package httpapi

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// endpoint is a handler that is told who makes the request.
type endpoint func(w http.ResponseWriter, r *http.Request, id api.Identity)

// guard decides who may ask, and from where.
type guard struct {
	addr         string    // Config.Addr
	origins      []string  // Config.AllowedOrigins
	insecureOpen bool      // Config.InsecureOpen
	embedded     bool      // Config.Embedded
	keys         *KeyStore // nil: no keys
	cross        *http.CrossOriginProtection
	hosts        []string // Host names of allowed origins
}

// caller guards the endpoints of callers. It runs inside the matched handler, so that the check and the route read the
// same path.
func (s *guard) caller(next endpoint) http.HandlerFunc {
	open := IsLoopback(s.addr)
	return func(w http.ResponseWriter, r *http.Request) {
		id, fault := s.identify(r, open && s.embedded)
		if fault == nil && s.keys == nil && open {
			fault = s.localCaller(r)
		}
		s.admit(w, r, id, fault, next)
	}
}

// operator guards the control surfaces of the listener at addr. They are for operators only. On loopback the Host must
// be loopback too, and a page of another site must not post. Without keys, every client that reaches loopback is an
// operator.
func (s *guard) operator(addr string, next endpoint) http.HandlerFunc {
	loopback := IsLoopback(addr)
	return func(w http.ResponseWriter, r *http.Request) {
		id, fault := s.identify(r, loopback || s.insecureOpen)
		if fault == nil && loopback {
			fault = localHost(r, nil)
		}
		if fault == nil {
			fault = crossSite(r, http.NewCrossOriginProtection()) // no origin is trusted on control surfaces
		}
		if fault == nil && id.Role != api.RoleOperator {
			fault = api.Forbidden("%s needs a key with the role operator", r.URL.Path)
		}
		s.admit(w, r, id, fault, next)
	}
}

func (s *guard) admit(w http.ResponseWriter, r *http.Request, id api.Identity, fault *messages.Fault, next endpoint) {
	if fault == nil {
		fault = api.KnownHeaders(slices.Collect(maps.Keys(r.Header)))
	}
	if fault != nil {
		writeFault(w, fault)
		return
	}
	if a, ok := w.(*recorder); ok {
		a.identity = id
	}
	r.Header.Del("Authorization") // the key must not reach a stage, a tool or a provider
	r.Header.Del(apiKeyHeader)
	next(w, r.WithContext(api.WithOrigin(r.Context(), "http "+r.RemoteAddr)), id)
}

// identify finds the key's record. The answer does not say what is wrong with a key.
func (s *guard) identify(r *http.Request, openOperator bool) (api.Identity, *messages.Fault) {
	if s.keys == nil {
		id := api.Identity{Tenant: "default", Role: api.RoleCaller}
		if openOperator {
			id.Role = api.RoleOperator
		}
		return id, nil
	}
	for _, read := range []func(http.Header) (string, bool){bearer, apiKey} {
		if key, ok := read(r.Header); ok {
			if id, ok := s.keys.Find(key); ok {
				return id, nil
			}
		}
	}
	return api.Identity{}, messages.NewFault(messages.Unauthenticated,
		"no valid API key; send one as Authorization: Bearer <key>").From("entry")
}

// registers is an endpoint that changes what there is in the installation; what names those things.
func (s *guard) registers(what, addr string, main bool, next endpoint) http.HandlerFunc {
	if main && !IsLoopback(addr) {
		return s.caller(func(w http.ResponseWriter, r *http.Request, _ api.Identity) {
			writeFault(w, api.Forbidden("%s are registered on the admin listener (http.admin) only, "+
				"because this port is reachable from other machines", what))
		})
	}
	return s.operator(addr, next)
}

// decides reports whether a caller may do what the control surfaces let operators do: with keys, operators; without
// any, every client on loopback that is no page of another site.
func (s *guard) decides(r *http.Request, id api.Identity) bool {
	if s.keys != nil {
		return id.Operator()
	}
	return IsLoopback(s.addr) && localHost(r, nil) == nil && crossSite(r, http.NewCrossOriginProtection()) == nil
}

// maxKey bounds what is hashed for a caller that is not known yet.
const maxKey = 512

// bearer reads the one Authorization header. The scheme's case does not matter (RFC 9110).
func bearer(h http.Header) (key string, ok bool) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, key, found := strings.Cut(values[0], " ")
	key = strings.Trim(key, " ")
	if !found || !strings.EqualFold(scheme, "Bearer") || key == "" || len(key) > maxKey || !api.Visible(key) {
		return "", false
	}
	return key, true
}

// apiKeyHeader is where clients of the Messages API send their key, alone or beside Authorization.
const apiKeyHeader = "X-Api-Key"

func apiKey(h http.Header) (key string, ok bool) {
	values := h.Values(apiKeyHeader)
	if len(values) != 1 || values[0] == "" || len(values[0]) > maxKey || !api.Visible(values[0]) {
		return "", false
	}
	return values[0], true
}

// localCaller refuses, on a loopback port without keys, requests that a browser can be tricked into: with a Host that
// is not a name of this machine (DNS rebinding), and posts of other sites' pages.
func (s *guard) localCaller(r *http.Request) *messages.Fault {
	if f := localHost(r, s.hosts); f != nil || slices.Contains(s.origins, "*") {
		return f
	}
	return crossSite(r, s.cross)
}

func localHost(r *http.Request, more []string) *messages.Fault {
	host := bareHost(r.Host)
	named := func(h string) bool { return strings.EqualFold(h, host) }
	if loopbackHost(host) || slices.ContainsFunc(more, named) {
		return nil
	}
	return api.Forbidden("the host %q is not this machine's name; "+
		"use localhost, or add its origin to http.allowed-origins", r.Host)
}

func crossSite(r *http.Request, c *http.CrossOriginProtection) *messages.Fault {
	if c.Check(r) != nil {
		return api.Forbidden("a page of another site may not do this; " +
			"add its origin to http.allowed-origins if it is yours")
	}
	return nil
}
