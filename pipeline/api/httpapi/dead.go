package httpapi

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// deadSurface serves the dead letters.
type deadSurface struct {
	*common
	dead pipeline.DeadLetters // nil: there are none
}

// add mounts the dead letters. They are a control surface; the header Shallot-Tenant binds a request to one tenant.
func (s *deadSurface) add(t *router, addr string) {
	if s.dead == nil {
		return
	}
	route := func(path string, by map[string]deadEndpoint) {
		m := methods{}
		for method, do := range by {
			m[method] = s.operator(addr, s.ofLetters(do))
		}
		t.add(path, m)
	}
	route("/api/dead", map[string]deadEndpoint{http.MethodGet: s.listDead, http.MethodDelete: s.deleteDead})
	route("/api/dead/redrive", map[string]deadEndpoint{http.MethodPost: s.redrive})
	route("/api/dead/{sequence}", map[string]deadEndpoint{http.MethodGet: s.getDead, http.MethodDelete: s.deleteDead})
	route("/api/dead/{sequence}/redrive", map[string]deadEndpoint{http.MethodPost: s.redrive})
}

// deadEndpoint answers a request about the letters that the filter chooses.
type deadEndpoint func(r *http.Request, f pipeline.DeadFilter, by string) (any, error)

func (s *deadSurface) ofLetters(do deadEndpoint) endpoint {
	return func(w http.ResponseWriter, r *http.Request, id api.Identity) {
		f, fault := deadFilter(r)
		var by string
		if fault == nil {
			by, fault = decider(r, id)
		}
		if fault == nil && len(id.Models)+len(id.Agents)+len(id.Tools) > 0 {
			fault = api.Forbidden("dead letters are of every model and tool, and this key is for some only")
		}
		if fault != nil {
			writeFault(w, fault)
			return
		}
		v, err := do(r, f, by)
		if err != nil {
			s.failed(w, r, err)
			return
		}
		writeValue(w, http.StatusOK, v)
	}
}

// deadFilter reads the filter from path, query and header.
func deadFilter(r *http.Request) (f pipeline.DeadFilter, fault *messages.Fault) {
	if f.Tenant, fault = asOperator(r); fault != nil {
		return f, fault
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return f, api.Invalid("query", "the query cannot be read: %v", err)
	}
	if sequence := r.PathValue("sequence"); sequence != "" {
		if len(q) > 0 {
			return f, api.Invalid("query", "%s names one letter and takes no query", r.URL.Path)
		}
		if f.Sequence, err = strconv.ParseUint(sequence, 10, 63); err != nil || f.Sequence == 0 {
			return f, api.Refused(messages.NotFound, "there is no dead letter %q; letters are named by their sequence", sequence)
		}
	}
	for name, values := range q {
		if err := readFilter(&f, name, values[0]); err != nil || len(values) > 1 {
			return f, api.Invalid(name, "%s=%s: write kind, call, reason, since and until (RFC 3339), after, limit "+
				"or all=true, each once", name, values[0])
		}
	}
	return f, nil
}

// readFilter takes one parameter of the query. An empty value sets nothing.
func readFilter(f *pipeline.DeadFilter, name, value string) (err error) {
	if value == "" {
		return nil
	}
	switch name {
	case "kind":
		f.Kind = value
	case "call":
		f.Call = value
	case "reason":
		f.Reason = value
	case "since":
		f.Since, err = time.Parse(time.RFC3339, value)
	case "until":
		f.Until, err = time.Parse(time.RFC3339, value)
	case "after":
		f.After, err = strconv.ParseUint(value, 10, 63)
	case "limit":
		f.Limit, err = strconv.Atoi(value)
	case "all":
		f.All, err = strconv.ParseBool(value)
	default:
		err = strconv.ErrSyntax
	}
	return err
}

// listDead is GET /api/dead: the letters, the oldest first, in pages.
func (s *deadSurface) listDead(r *http.Request, f pipeline.DeadFilter, _ string) (any, error) {
	page, err := s.dead.DeadLetters(r.Context(), f)
	return struct {
		Object string `json:"object"`
		pipeline.DeadPage
	}{"list", page}, err
}

// getDead is GET /api/dead/{sequence}.
func (s *deadSurface) getDead(r *http.Request, f pipeline.DeadFilter, _ string) (any, error) {
	return s.dead.DeadLetter(r.Context(), f.Tenant, f.Sequence)
}

// redrive is POST /api/dead/redrive and /api/dead/{sequence}/redrive.
func (s *deadSurface) redrive(r *http.Request, f pipeline.DeadFilter, by string) (any, error) {
	return s.dead.Redrive(r.Context(), f, by)
}

// deleteDead is DELETE /api/dead and /api/dead/{sequence}.
func (s *deadSurface) deleteDead(r *http.Request, f pipeline.DeadFilter, by string) (any, error) {
	return s.dead.DeleteDead(r.Context(), f, by)
}
