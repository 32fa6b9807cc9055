package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/calls"
)

// CallLookup finds calls. An empty tenant means all.
type CallLookup interface {
	List(ctx context.Context, q calls.Query) (calls.Page, error)
	Get(ctx context.Context, tenant, call string) ([]calls.Story, error)
	Follow(ctx context.Context, tenant string, tell func(n calls.News) error) error
}

// callSurface serves the look-up of calls.
type callSurface struct {
	*common
	bounds
	calls CallLookup // nil: calls cannot be looked up
}

// add mounts the look-up of calls, which is a control surface: stories say why providers failed.
func (s *callSurface) add(t *router, addr string) {
	if s.calls == nil {
		return
	}
	t.add("/api/calls", methods{http.MethodGet: s.operator(addr, s.listCalls)})
	t.add("/api/calls/{call}", methods{http.MethodGet: s.operator(addr, s.getCall)})
	t.add("/api/events", methods{http.MethodGet: s.operator(addr, s.followCalls)})
}

// listCalls is GET /api/calls: a page of calls, the newest first, with the filters of calls.ParseQuery.
func (s *callSurface) listCalls(w http.ResponseWriter, r *http.Request, _ api.Identity) {
	tenant, fault := asOperator(r)
	if fault != nil {
		writeFault(w, fault)
		return
	}
	fields := map[string]string{}
	for name, values := range r.URL.Query() {
		if len(values) != 1 {
			writeFault(w, api.Invalid(name, "%s stands more than once in the query", name))
			return
		}
		fields[name] = values[0]
	}
	if asked, has := fields["tenant"]; has && tenant == "" {
		tenant = asked
	}
	delete(fields, "tenant")
	q, err := calls.ParseQuery(fields)
	var page calls.Page
	if err == nil {
		q.Tenant = tenant
		page, err = s.calls.List(r.Context(), q)
	}
	if err != nil {
		s.failed(w, r, err)
		return
	}
	writeValue(w, http.StatusOK, struct {
		Object string `json:"object"`
		calls.Page
	}{"list", page})
}

// getCall is GET /api/calls/{call}: a call as it stands, with its story.
func (s *callSurface) getCall(w http.ResponseWriter, r *http.Request, _ api.Identity) {
	tenant, fault := asOperator(r)
	if fault != nil {
		writeFault(w, fault)
		return
	}
	parts, err := s.calls.Get(r.Context(), tenant, r.PathValue("call"))
	if err != nil {
		s.failed(w, r, err)
		return
	}
	writeValue(w, http.StatusOK, calls.Whole(parts))
}

// followCalls is GET /api/events: what happens, as server-sent events by the kind of news. A reader that is too slow,
// or has more news in a second than a person reads, hears how many it missed.
func (s *callSurface) followCalls(w http.ResponseWriter, r *http.Request, _ api.Identity) {
	tenant, fault := asOperator(r)
	if fault != nil {
		writeFault(w, fault)
		return
	}
	if asked := r.URL.Query().Get("tenant"); tenant == "" {
		tenant = asked
	}
	ctx, cancel := s.untilHalt(r.Context())
	defer cancel()
	e := &events{w: w, rc: http.NewResponseController(w), timeout: s.writeTimeout}
	e.raw(": what happens, as it happens\n\n")
	if r.Method == http.MethodHead {
		return
	}
	p := pace{most: newsPerSecond}
	_ = s.calls.Follow(ctx, tenant, func(n calls.News) error {
		for _, one := range p.pass(n, time.Now()) {
			if one.What == "" {
				e.ping()
				continue
			}
			e.event(one.What, oneLine(one.Data))
		}
		return e.err
	})
}

// newsPerSecond is what a page can show.
const newsPerSecond = 500

// pace lets so much pass in each second, and counts the rest.
type pace struct {
	most, passed, missed int
	second               time.Time
}

// pass returns what is to be told: the news itself, or nothing, and before it what was missed until then.
func (p *pace) pass(n calls.News, now time.Time) (out []calls.News) {
	if now.Sub(p.second) >= time.Second {
		p.second, p.passed = now, 0
	}
	if n.What == calls.Lost {
		var more struct{ Events int }
		_ = json.Unmarshal(n.Data, &more)
		p.missed += more.Events
		n = calls.News{}
	}
	if n.What != "" && p.passed >= p.most {
		p.missed++
		return nil
	}
	if p.missed > 0 {
		out = append(out, calls.News{What: calls.Lost, Data: rawjson.Encode(map[string]int{"events": p.missed})})
		p.missed = 0
	}
	if n.What != "" {
		p.passed++
	}
	return append(out, n)
}
