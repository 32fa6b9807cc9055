package httpapi

import (
	"net/http"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// compact is POST /v1/responses/compact: a shorter list of items in the place of a conversation. The summary is one
// call of the model, which passes the chain as any other.
func (s *responseFace) compact(w http.ResponseWriter, r *http.Request, id api.Identity) {
	req, _, turn := s.turn(w, r, id)
	switch {
	case turn == nil:
		return
	case req.Kind == messages.Agent:
		writeFault(w, api.Invalid("model", "name a model: an agent cannot compact"))
		return
	}
	req.Body, req.Stream = turn.Compaction(), false
	pending, err := s.accept(w, r, req)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	c, err := s.await(r, pending)
	if err != nil {
		s.notEnded(w, r, pending, err)
		return
	}
	if c.Fault == nil {
		out, ok := turn.Compacted(c.ID, time.Now().Unix(), c.Reply())
		if ok {
			c.SetReply(out)
		} else {
			c.Fail(messages.NewFault(messages.ProviderBadReply, "the model wrote no summary").From(messages.TargetOrigin))
		}
	}
	s.finish(w, r, c)
}
