package httpapi

import (
	"bytes"
	"net/http"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// controlSurface serves the switches of stages and what is known of them.
type controlSurface struct {
	*common
	control pipeline.Control // nil: there are none
}

func (s *controlSurface) add(t *router, addr string) {
	if s.control == nil {
		return
	}
	t.add("/api/debug/interceptor-stats", methods{http.MethodGet: s.operator(addr, s.stats)})
	t.add("/api/debug/interceptor/diagnostics", methods{http.MethodGet: s.operator(addr, s.diagnostics)})
	t.add("/api/debug/interceptor/{name}/enable", methods{http.MethodPost: s.operator(addr, s.switchTo(true))})
	t.add("/api/debug/interceptor/{name}/disable", methods{http.MethodPost: s.operator(addr, s.switchTo(false))})
}

// local serves a surface without a key, but with the check of Host that every surface of a loopback listener has.
func local(addr string, h http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if IsLoopback(addr) {
			if f := localHost(r, nil); f != nil {
				writeFault(w, f)
				return
			}
		}
		h.ServeHTTP(w, r)
	}
}

func (s *controlSurface) stats(w http.ResponseWriter, r *http.Request, _ api.Identity) {
	v, err := s.control.Stats(r.Context())
	if err != nil {
		s.failed(w, r, err)
		return
	}
	writeValue(w, http.StatusOK, v)
}

func (s *controlSurface) diagnostics(w http.ResponseWriter, r *http.Request, _ api.Identity) {
	v, err := s.control.Diagnostics(r.Context())
	if err != nil {
		s.failed(w, r, err)
		return
	}
	writeValue(w, http.StatusOK, v)
}

func (s *controlSurface) switchTo(on bool) endpoint {
	return func(w http.ResponseWriter, r *http.Request, id api.Identity) {
		confirm, fault := s.confirmation(w, r)
		if fault != nil {
			writeFault(w, fault)
			return
		}
		v, err := s.control.Switch(r.Context(), r.PathValue("name"), on, confirm, id.Who())
		if err != nil {
			s.failed(w, r, err)
			return
		}
		s.log.Info("stage switched", "stage", v.Name, "enabled", on, "by", id.Who())
		writeValue(w, http.StatusOK, v)
	}
}

// confirmation is the name that confirms a switch: ?confirm=<name>, or {"confirm": "<name>"} as the body.
func (s *controlSurface) confirmation(w http.ResponseWriter, r *http.Request) (string, *messages.Fault) {
	if q := r.URL.Query(); q.Has("confirm") {
		return q.Get("confirm"), nil
	}
	body, fault := s.bodies.Read(w, r)
	if fault != nil || len(bytes.TrimSpace(body)) == 0 {
		return "", fault
	}
	if f := api.ControlBody(body); f != nil {
		return "", f
	}
	name := rawjson.Text(body, "confirm")
	return name, nil
}
