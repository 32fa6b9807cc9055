package httpapi

import (
	"errors"
	"net/http"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
)

// goOn answers a turn that answers what a call of an earlier response waits for: it decides, and its response is what
// the call says next. Only an operator decides; anybody else, whose question an operator has answered meanwhile, goes
// on from there. A turn that is sent again decides nothing twice.
func (s *responseFace) goOn(w http.ResponseWriter, r *http.Request, id api.Identity, o responses.Owner,
	turn *responses.Turn, req pipeline.Request) {
	by, fault := decider(r, id)
	if fault != nil {
		writeFault(w, fault)
		return
	}
	for _, a := range turn.Answers {
		if err := s.answerQuestion(r, id, o, a, by); err != nil {
			s.failed(w, r, err)
			return
		}
	}
	rec := turn.Continues(time.Now().Unix())
	if err := s.kept.Begin(r.Context(), o, rec); err != nil {
		s.failed(w, r, err)
		return
	}
	setHeader(w.Header(), "Shallot-Call", rec.Call)
	switch {
	case req.Stream:
		s.followResponse(w, r, o, rec, -1)
	case turn.Background:
		api.WriteJSON(w, http.StatusOK, rec.Queued())
	default:
		s.awaitResponse(w, r, o, rec)
	}
}

// answerQuestion decides about one question, unless it is decided.
func (s *responseFace) answerQuestion(r *http.Request, id api.Identity, o responses.Owner, a responses.Answer,
	by string) error {
	ctx := r.Context()
	if s.approvals == nil {
		return api.Forbidden("nobody decides about calls at this gateway")
	}
	waits, err := s.approvals.Approval(ctx, o.Tenant, a.Call)
	if isFault(err, messages.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	decision, stale := a.Decision(waits)
	switch {
	case stale:
		return nil
	case !s.decides(r, id) || !mayDecide(id, waits):
		return api.Forbidden("an operator decides about call %s; send this again when they have", a.Call)
	}
	err = s.approvals.Decide(ctx, o.Tenant, a.Call, decision, by)
	if errors.Is(err, pipeline.ErrHeld) || isFault(err, messages.NotFound) || isFault(err, messages.Conflict) {
		return nil // the call waits for more, or was decided by somebody else: its next response tells
	}
	return err
}

func isFault(err error, code messages.Code) bool {
	f, ok := errors.AsType[*messages.Fault](err)
	return ok && f.Code == code
}

// awaitResponse answers with a kept response when it has ended. The call goes on if the caller leaves.
func (s *responseFace) awaitResponse(w http.ResponseWriter, r *http.Request, o responses.Owner, rec *responses.Record) {
	ctx, cancel := s.untilHalt(r.Context())
	defer cancel()
	pause := time.NewTicker(followPause)
	defer pause.Stop()
	for {
		now, err := s.kept.Look(ctx, o, rec.ID)
		switch {
		case err == nil && now.Done():
			api.WriteJSON(w, http.StatusOK, now.Response)
			return
		case ctx.Err() == nil && err != nil:
			s.failed(w, r, err)
			return
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			if r.Context().Err() == nil {
				writeFault(w, api.StoppingFault(messages.Stopping, rec.Call))
			}
			return
		}
	}
}
