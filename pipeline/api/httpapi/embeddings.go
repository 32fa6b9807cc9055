package httpapi

import (
	"net/http"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// checkEmbeddings refuses what is asked of other models, and a size that vectors cannot have.
func checkEmbeddings(req pipeline.Request) *messages.Fault {
	size := rawjson.At(req.Body, "dimensions")
	n, ok := rawjson.Int(size)
	switch {
	case req.Kind != messages.Model:
		return api.Invalid("model", "embeddings come from a model, not from an agent")
	case req.Stream:
		return api.Invalid("stream", "embeddings do not come as a stream")
	case !rawjson.IsNull(size) && (!ok || n < 1):
		return api.Invalid("dimensions", "dimensions must be a whole number of 1 or more")
	}
	return nil
}

// embeddings is POST /v1/embeddings.
func (s *modelFace) embeddings(w http.ResponseWriter, r *http.Request, id api.Identity) {
	req, ok := s.body(w, r, id, messages.EmbeddingsWire)
	if !ok {
		return
	}
	if fault := checkEmbeddings(req); fault != nil {
		writeFault(w, fault)
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
