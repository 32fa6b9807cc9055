package httpapi

import (
	"net/http"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
)

// conversationFace serves the conversations of the Responses API.
type conversationFace struct {
	*common
	kept *responses.Kept // nil: no Responses API
}

// add mounts conversations and their items.
func (s *conversationFace) add(t *router) {
	if s.kept == nil {
		return
	}
	t.add("/v1/conversations", methods{http.MethodPost: s.caller(s.createConversation)})
	t.add("/v1/conversations/{conversation}", methods{
		http.MethodGet: s.caller(s.getConversation), http.MethodPost: s.caller(s.updateConversation),
		http.MethodDelete: s.caller(s.deleteConversation)})
	t.add("/v1/conversations/{conversation}/items", methods{
		http.MethodGet: s.caller(s.listItems), http.MethodPost: s.caller(s.addItems)})
	t.add("/v1/conversations/{conversation}/items/{item}", methods{
		http.MethodGet: s.caller(s.getItem), http.MethodDelete: s.caller(s.deleteItem)})
}

func (s *conversationFace) createConversation(w http.ResponseWriter, r *http.Request, id api.Identity) {
	s.ownedBody(w, r, id, func(o responses.Owner, body []byte) error {
		c, err := s.kept.CreateConversation(r.Context(), o, body)
		return writeObject(w, c, err)
	})
}

// ownedBody is owned for requests with a body; none at all is an empty object.
func (s *conversationFace) ownedBody(w http.ResponseWriter, r *http.Request, id api.Identity,
	f func(o responses.Owner, body []byte) error) {
	s.owned(w, r, id, func(o responses.Owner) error {
		body, fault := s.bodies.Read(w, r)
		if fault != nil {
			return fault
		}
		if len(body) == 0 {
			body = []byte("{}")
		}
		if fault := api.WellFormed(body); fault != nil {
			return fault
		}
		return f(o, body)
	})
}

func writeObject(w http.ResponseWriter, c *responses.Conversation, err error) error {
	if err == nil {
		writeValue(w, http.StatusOK, c.Object())
	}
	return err
}

func (s *conversationFace) getConversation(w http.ResponseWriter, r *http.Request, id api.Identity) {
	s.owned(w, r, id, func(o responses.Owner) error {
		c, err := s.kept.Conversation(r.Context(), o, r.PathValue("conversation"))
		return writeObject(w, c, err)
	})
}

func (s *conversationFace) updateConversation(w http.ResponseWriter, r *http.Request, id api.Identity) {
	s.ownedBody(w, r, id, func(o responses.Owner, body []byte) error {
		c, err := s.kept.UpdateConversation(r.Context(), o, r.PathValue("conversation"), body)
		return writeObject(w, c, err)
	})
}

func (s *conversationFace) deleteConversation(w http.ResponseWriter, r *http.Request, id api.Identity) {
	s.owned(w, r, id, func(o responses.Owner) error {
		name := r.PathValue("conversation")
		if err := s.kept.DeleteConversation(r.Context(), o, name); err != nil {
			return err
		}
		writeDeleted(w, name, "conversation.deleted")
		return nil
	})
}

func (s *conversationFace) listItems(w http.ResponseWriter, r *http.Request, id api.Identity) {
	s.owned(w, r, id, func(o responses.Owner) error {
		c, err := s.kept.Conversation(r.Context(), o, r.PathValue("conversation"))
		if err != nil {
			return err
		}
		return writeItems(w, r, c.Items())
	})
}

func (s *conversationFace) addItems(w http.ResponseWriter, r *http.Request, id api.Identity) {
	s.ownedBody(w, r, id, func(o responses.Owner, body []byte) error {
		added, err := s.kept.AddItems(r.Context(), o, r.PathValue("conversation"), body)
		if err != nil {
			return err
		}
		writePage(w, added, false)
		return nil
	})
}

func (s *conversationFace) getItem(w http.ResponseWriter, r *http.Request, id api.Identity) {
	s.owned(w, r, id, func(o responses.Owner) error {
		c, err := s.kept.Conversation(r.Context(), o, r.PathValue("conversation"))
		if err != nil {
			return err
		}
		for _, item := range c.Items() {
			if rawjson.Text(item, "id") == r.PathValue("item") {
				api.WriteJSON(w, http.StatusOK, responses.Shown(item))
				return nil
			}
		}
		return api.Refused(messages.NotFound, "no item %q in this conversation", r.PathValue("item"))
	})
}

func (s *conversationFace) deleteItem(w http.ResponseWriter, r *http.Request, id api.Identity) {
	s.owned(w, r, id, func(o responses.Owner) error {
		c, err := s.kept.DeleteItem(r.Context(), o, r.PathValue("conversation"), r.PathValue("item"))
		return writeObject(w, c, err)
	})
}
