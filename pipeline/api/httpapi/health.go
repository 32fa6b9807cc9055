package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// probes are the paths of health; the first asks only whether the process lives.
var probes = []string{"/livez", "/readyz", "/healthz", "/health"}

// addHealth mounts the probes. They need no key and say nothing of calls.
func (s *Server) addHealth(t *router) {
	t.add(probes[0], methods{http.MethodGet: func(w http.ResponseWriter, _ *http.Request) {
		writeValue(w, http.StatusOK, map[string]string{"status": "ok"})
	}})
	for _, path := range probes[1:] {
		t.add(path, methods{http.MethodGet: s.ready})
	}
}

// readyTime bounds the checks: a probe that hangs says less than one that fails.
const readyTime = 5 * time.Second

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTime)
	defer cancel()
	checks := []api.Check{}
	if s.Ready != nil {
		checks = append(checks, s.Ready(ctx)...)
	}
	if s.stopping.Load() {
		checks = append(checks, api.Check{Name: "gateway", Reason: "it is stopping"})
	}
	status, word := http.StatusOK, "ok"
	for _, c := range checks {
		switch {
		case !c.OK:
			status, word = http.StatusServiceUnavailable, "unavailable"
		case c.State != "" && status == http.StatusOK:
			word = "degraded"
		}
	}
	api.WriteJSON(w, status, append(rawjson.Encode(struct {
		Status string      `json:"status"`
		Checks []api.Check `json:"checks"`
	}{word, checks}), '\n'))
}
