package httpapi

import (
	"net/http"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// embeddings is POST /v1/embeddings.
func (s *modelFace) embeddings(w http.ResponseWriter, r *http.Request, id api.Identity) {
	req, ok := s.body(w, r, id, messages.EmbeddingsWire)
	if !ok {
		return
	}
	if req.Stream || req.Kind != messages.Model {
		writeFault(w, api.Invalid("model", "embeddings come from a model, and never as a stream"))
		return
	}
	// There is no conversation that stages could shape, so a session is only a label in records.
	if req.Session != "" {
		if req.Notes == nil {
			req.Notes = messages.Notes{}
		}
		req.Notes[messages.NoteSessionLabel] = rawjson.Encode(req.Session)
	}
	req.Session, req.Run = "", ""
	req.Skip = []string{"model-fallback"} // another model's vectors would not be those that the caller compares with
	s.run(w, r, req)
}
