package httpapi

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
)

// owner is whose state a request is about. An operator may act for any tenant, but only with what their own key made.
func owner(r *http.Request, id api.Identity) (responses.Owner, *messages.Fault) {
	tenant, fault := api.OneValue(r.Header.Values, "Shallot-Tenant")
	if tenant == "" || id.Role != api.RoleOperator {
		tenant = id.Tenant
	}
	if tenant == "" {
		tenant = "default"
	}
	return responses.Owner{Tenant: tenant, Key: id.KeyID}, fault
}

// owned calls f with the owner; the error that it returns is the answer.
func (s *common) owned(w http.ResponseWriter, r *http.Request, id api.Identity, f func(o responses.Owner) error) {
	o, fault := owner(r, id)
	if fault != nil {
		writeFault(w, fault)
		return
	}
	if err := f(o); err != nil {
		s.failed(w, r, err)
	}
}

// getResponse is GET /v1/responses/{response}. With stream=true it replays the events from the first, or after
// starting_after, and goes on with those that come.
func (s *responseFace) getResponse(w http.ResponseWriter, r *http.Request, id api.Identity) {
	s.owned(w, r, id, func(o responses.Owner) error {
		rec, err := s.kept.Look(r.Context(), o, r.PathValue("response"))
		if err != nil {
			return err
		}
		q := r.URL.Query()
		if q.Get("stream") != "true" {
			api.WriteJSON(w, http.StatusOK, rec.Now())
			return nil
		}
		after := -1
		if v := q.Get("starting_after"); v != "" {
			if after, err = strconv.Atoi(v); err != nil || after < 0 {
				return api.Invalid("starting_after", "starting_after must be the number of an event")
			}
		}
		s.followResponse(w, r, o, rec, after)
		return nil
	})
}

// followResponse writes the events of a kept response after a number, those that are there and those that come, until
// the stream ends or the reader leaves.
func (s *responseFace) followResponse(w http.ResponseWriter, r *http.Request, o responses.Owner, rec *responses.Record,
	after int) {
	e := s.following(w, messages.ResponsesWire)
	s.follow(r, e, s.kept.Follow(o, rec), follow{call: rec.Call, show: func(list [][]byte) {
		e.write(slices.DeleteFunc(list, func(event []byte) bool { return responses.Number(event) <= after }))
	}, end: func() {}})
}

// deleteResponse is DELETE /v1/responses/{response}. A response that still runs is cancelled.
func (s *responseFace) deleteResponse(w http.ResponseWriter, r *http.Request, id api.Identity) {
	s.owned(w, r, id, func(o responses.Owner) error {
		name := r.PathValue("response")
		if _, err := s.kept.Cancel(r.Context(), o, name, s.cancelCall); err != nil {
			return err
		}
		if err := s.kept.Delete(r.Context(), o, name); err != nil {
			return err
		}
		writeDeleted(w, name, "response")
		return nil
	})
}

func writeDeleted(w http.ResponseWriter, id, object string) {
	writeValue(w, http.StatusOK, struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Deleted bool   `json:"deleted"`
	}{id, object, true})
}

func (s *responseFace) cancelCall(call string) {
	if s.cancel != nil {
		s.cancel(call)
	}
}

// cancelResponse is POST /v1/responses/{response}/cancel. It may be called again, and after the end.
func (s *responseFace) cancelResponse(w http.ResponseWriter, r *http.Request, id api.Identity) {
	s.owned(w, r, id, func(o responses.Owner) error {
		rec, err := s.kept.Look(r.Context(), o, r.PathValue("response"))
		if err != nil {
			return err
		}
		if !rec.Background {
			return api.Invalid("", "only a response that was made with background=true can be cancelled")
		}
		if rec, err = s.kept.Cancel(r.Context(), o, rec.ID, s.cancelCall); err != nil {
			return err
		}
		api.WriteJSON(w, http.StatusOK, rec.Now())
		return nil
	})
}

// inputItems is GET /v1/responses/{response}/input_items: all that the model was given.
func (s *responseFace) inputItems(w http.ResponseWriter, r *http.Request, id api.Identity) {
	s.owned(w, r, id, func(o responses.Owner) error {
		rec, err := s.kept.Look(r.Context(), o, r.PathValue("response"))
		if err != nil {
			return err
		}
		return writeItems(w, r, rec.Input)
	})
}

// writeItems answers with a page of items, by order, after and limit. The newest come first unless the order says
// otherwise.
func writeItems(w http.ResponseWriter, r *http.Request, items []json.RawMessage) error {
	const normal, most = 20, 100
	q := r.URL.Query()
	items = slices.Clone(items)
	switch q.Get("order") {
	case "", "desc":
		slices.Reverse(items)
	case "asc":
	default:
		return api.Invalid("order", "order is %q; known: asc, desc", q.Get("order"))
	}
	limit := normal
	if v := q.Get("limit"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > most {
			return api.Invalid("limit", "limit must be 1 to %d", most)
		}
		limit = n
	}
	if after := q.Get("after"); after != "" {
		i := slices.IndexFunc(items, func(item json.RawMessage) bool { return rawjson.Text(item, "id") == after })
		if i < 0 {
			return api.Refused(messages.NotFound, "no item %q in this list", messages.Clip(after, 100)).At("after")
		}
		items = items[i+1:]
	}
	writePage(w, items[:min(limit, len(items))], len(items) > limit)
	return nil
}

// writePage answers with items, as clients read them.
func writePage(w http.ResponseWriter, items []json.RawMessage, more bool) {
	l := itemList{Object: "list", Data: []json.RawMessage{}, HasMore: more}
	for _, item := range items {
		l.Data = append(l.Data, responses.Shown(item))
	}
	if len(items) > 0 {
		first, last := rawjson.Text(items[0], "id"), rawjson.Text(items[len(items)-1], "id")
		l.First, l.Last = &first, &last
	}
	writeValue(w, http.StatusOK, l)
}
