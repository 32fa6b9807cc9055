package httpapi

import (
	"bytes"
	"net/http"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// addControl mounts the control surfaces for the listener at addr, which is the main one or the admin listener.
func (s *Server) addControl(t *router, addr string, main bool) {
	if s.Control != nil {
		t.add("/api/debug/interceptor-stats", methods{http.MethodGet: s.operator(addr, s.stats)})
		t.add("/api/debug/interceptor/diagnostics", methods{http.MethodGet: s.operator(addr, s.diagnostics)})
		t.add("/api/debug/interceptor/{name}/enable", methods{http.MethodPost: s.operator(addr, s.switchTo(true))})
		t.add("/api/debug/interceptor/{name}/disable", methods{http.MethodPost: s.operator(addr, s.switchTo(false))})
	}
	s.addDead(t, addr)
	s.addCalls(t, addr)
	for _, e := range s.Extra {
		switch {
		case e.Admin && main:
		case e.Control && e.Static:
			t.mount(e.Pattern, local(addr, e.Handler))
		case e.Control:
			t.mount(e.Pattern, s.operator(addr, serve(e.Handler)))
		}
	}
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

func (s *Server) stats(w http.ResponseWriter, r *http.Request, _ api.Identity) {
	v, err := s.Control.Stats(r.Context())
	if err != nil {
		s.failed(w, r, err)
		return
	}
	writeValue(w, http.StatusOK, v)
}

func (s *Server) diagnostics(w http.ResponseWriter, r *http.Request, _ api.Identity) {
	v, err := s.Control.Diagnostics(r.Context())
	if err != nil {
		s.failed(w, r, err)
		return
	}
	writeValue(w, http.StatusOK, v)
}

func (s *Server) switchTo(on bool) endpoint {
	return func(w http.ResponseWriter, r *http.Request, id api.Identity) {
		confirm, fault := s.confirmation(w, r)
		if fault != nil {
			writeFault(w, fault)
			return
		}
		v, err := s.Control.Switch(r.Context(), r.PathValue("name"), on, confirm, id.Who())
		if err != nil {
			s.failed(w, r, err)
			return
		}
		s.Log.Info("stage switched", "stage", v.Name, "enabled", on, "by", id.Who())
		writeValue(w, http.StatusOK, v)
	}
}

// confirmation is the name that confirms a switch: ?confirm=<name>, or {"confirm": "<name>"} as the body.
func (s *Server) confirmation(w http.ResponseWriter, r *http.Request) (string, *messages.Fault) {
	if q := r.URL.Query(); q.Has("confirm") {
		return q.Get("confirm"), nil
	}
	body, fault := s.bodies().Read(w, r)
	if fault != nil || len(bytes.TrimSpace(body)) == 0 {
		return "", fault
	}
	if f := api.ControlBody(body); f != nil {
		return "", f
	}
	name, _ := rawjson.FieldString(body, "confirm")
	return name, nil
}
