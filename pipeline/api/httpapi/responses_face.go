package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

// This file is the face of the Responses API: what makes a response. What reads one is in responses_read.go.

// saveTime bounds the keeping of an answer that the caller waits for, or has left.
const saveTime = 10 * time.Second

// responseFace serves the Responses API, except for its conversations.
type responseFace struct {
	*callRunner
	kept      *responses.Kept     // nil: no Responses API
	approvals api.ApprovalService // nil: nobody decides
	cancel    func(call string)   // nil: calls cannot be cancelled
	tended    *sync.WaitGroup     // Server.tended
}

func (s *responseFace) add(t *router) {
	if s.kept == nil {
		return
	}
	t.add("/v1/responses", methods{http.MethodPost: s.caller(s.createResponse), http.MethodGet: s.caller(s.noSocket)})
	t.add("/v1/responses/input_tokens", methods{http.MethodPost: s.caller(s.inputTokens)})
	t.add("/v1/responses/compact", methods{http.MethodPost: s.caller(s.compact)})
	t.add("/v1/responses/{response}", methods{
		http.MethodGet: s.caller(s.getResponse), http.MethodDelete: s.caller(s.deleteResponse)})
	t.add("/v1/responses/{response}/cancel", methods{http.MethodPost: s.caller(s.cancelResponse)})
	t.add("/v1/responses/{response}/input_items", methods{http.MethodGet: s.caller(s.inputItems)})
}

// noSocket is GET /v1/responses. Clients that try WebSocket first go on over HTTP after a 426, and after nothing else.
func (s *responseFace) noSocket(w http.ResponseWriter, r *http.Request, _ api.Identity) {
	if r.Header.Get("Upgrade") == "" {
		writeFault(w, methodFault(w, r, http.MethodPost))
		return
	}
	f := api.Refused(messages.MethodNotAllowed, "responses are served over HTTP; send POST /v1/responses")
	f.Status = http.StatusUpgradeRequired
	w.Header().Set("Upgrade", "HTTP/1.1")
	writeFault(w, f)
}

// createResponse is POST /v1/responses, streaming and not, in the background and not.
func (s *responseFace) createResponse(w http.ResponseWriter, r *http.Request, id api.Identity) {
	req, o, turn := s.turn(w, r, id)
	if turn == nil {
		return
	}
	req.Body = turn.Body
	switch {
	case prefers(r.Header, "respond-async"):
		s.run(w, r, req)
	case len(turn.Answers) > 0:
		s.goOn(w, r, id, o, turn, req)
	case turn.Background:
		s.inBackground(w, r, o, turn, req)
	default:
		s.respond(w, r, &answering{s: s, o: o, turn: turn}, req)
	}
}

// turn reads a request for a response, with all that it refers to; nil if it has answered why not.
func (s *responseFace) turn(w http.ResponseWriter, r *http.Request, id api.Identity) (req pipeline.Request,
	o responses.Owner, turn *responses.Turn) {
	req, ok := s.body(w, r, id, messages.ResponsesWire)
	if !ok {
		return req, o, nil
	}
	o = responses.Owner{Tenant: req.Tenant, Key: id.KeyID}
	turn, err := s.kept.Prepare(r.Context(), o, req.Body)
	if err != nil {
		s.failed(w, r, err)
		return req, o, nil
	}
	return req, o, turn
}

// respond runs a call whose caller waits for the response.
func (s *responseFace) respond(w http.ResponseWriter, r *http.Request, a *answering, req pipeline.Request) {
	pending, err := s.accept(w, r, req)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	a.rec = a.turn.Record(pending.ID(), time.Now().Unix())
	if req.Stream {
		defer context.AfterFunc(r.Context(), pending.Leave)()
		a.follow = stream.NewEventFollower(messages.ResponsesWire, req.Body)
		s.streamWith(w, r, pending, req, a)
		return
	}
	c, err := s.await(r, pending)
	if errors.Is(err, pipeline.ErrHeld) && a.turn.Store && s.kept.Asks != nil &&
		s.kept.Begin(r.Context(), a.o, a.rec) == nil {
		s.awaitResponse(w, r, a.o, a.rec)
		return
	}
	if err != nil {
		s.notEnded(w, r, pending, err)
		return
	}
	if c.Fault == nil && c.HasReply() {
		c.SetReply(a.whole(c.Reply()))
	}
	s.finish(w, r, c)
}

// accept has a call accepted and says its ids.
func (s *callRunner) accept(w http.ResponseWriter, r *http.Request, req pipeline.Request) (pipeline.Pending, error) {
	pending, err := s.entry.Accept(r.Context(), req)
	if err != nil {
		return nil, err
	}
	setHeader(w.Header(), "Shallot-Call", pending.ID())
	if req.RequestID == "" {
		setHeader(w.Header(), "X-Request-Id", pending.ID()) // without one of the caller's own it is the call id
	}
	return pending, nil
}

// answering makes the answer of a turn: it gives the response its id, and keeps it before the caller sees its end. As a
// Follower it does so for a stream.
type answering struct {
	s      *responseFace
	o      responses.Owner
	turn   *responses.Turn
	rec    *responses.Record
	follow *stream.EventFollower
	sent   [][]byte
}

func (a *answering) whole(reply []byte) []byte {
	reply = a.rec.Shape(reply, a.turn.Store)
	if !a.turn.Store || a.save(reply, nil) == nil {
		return reply
	}
	return rawjson.SetField(reply, "store", []byte("false")) // the answer was paid for, so the caller gets it
}

func (a *answering) save(response []byte, events [][]byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), saveTime)
	defer cancel()
	a.rec.Response = response
	err := a.s.kept.Save(ctx, a.o, a.rec, events)
	if err != nil {
		a.s.log.Error("a response was not kept", "response", a.rec.ID, "err", err)
	}
	return err
}

// Held implements holder: the response ends with what its call waits for, if it is kept.
func (a *answering) Held(ctx context.Context) *messages.Call {
	if !a.turn.Store {
		return nil
	}
	return a.s.kept.Held(ctx, a.o, a.rec, a.sent)
}

// Delta implements Follower.
func (a *answering) Delta(d pipeline.Delta) [][]byte { return a.shape(a.follow.Delta(d)) }

func (a *answering) shape(events [][]byte) [][]byte {
	for i, e := range events {
		events[i] = a.rec.Event(e, a.turn.Store)
	}
	if a.turn.Store {
		a.sent = append(a.sent, events...)
	}
	return events
}

// End implements Follower. After a part of the stream, its failure is an event that clients know.
func (a *answering) End(c *messages.Call) ([][]byte, *messages.Fault) {
	begun := a.follow.Released()
	events, fault := a.follow.End(c)
	if fault != nil && !begun {
		return nil, fault
	}
	if events = a.shape(events); fault != nil {
		events = a.shape([][]byte{a.rec.Failed(fault, a.turn.Store, len(a.sent))})
	}
	if !a.turn.Store || len(events) == 0 {
		return events, nil
	}
	last := events[len(events)-1]
	if response, ok := rawjson.Field(last, "response"); ok && a.save(response, a.sent) != nil {
		response = rawjson.SetField(response, "store", []byte("false"))
		events[len(events)-1] = rawjson.SetField(last, "response", response)
	}
	return events, nil
}

// inBackground accepts a call that goes on whatever becomes of this connection, and of this process.
func (s *responseFace) inBackground(w http.ResponseWriter, r *http.Request, o responses.Owner, turn *responses.Turn,
	req pipeline.Request) {
	req.Keep = true
	pending, err := s.accept(w, r, req)
	if err != nil {
		s.failed(w, r, err)
		return
	}
	rec := turn.Record(pending.ID(), time.Now().Unix())
	if err := s.kept.Begin(r.Context(), o, rec); err != nil {
		pending.Leave()
		s.failed(w, r, err)
		return
	}
	s.tended.Go(func() { s.tend(o, rec, pending, req) })
	if req.Stream {
		s.followResponse(w, r, o, rec, -1)
		return
	}
	api.WriteJSON(w, http.StatusOK, rec.Queued())
}

// tend keeps the events and the end of a background response. If this process ends first, whoever asks for the response
// does the rest.
func (s *responseFace) tend(o responses.Owner, rec *responses.Record, pending pipeline.Pending, req pipeline.Request) {
	ctx, cancel := s.untilHalt(context.Background())
	defer cancel()
	var onDelta func(pipeline.Delta)
	wait := func() {}
	if req.Stream {
		onDelta, wait = s.keepEvents(ctx, o, rec, req)
	}
	c, err := pending.Wait(ctx, onDelta)
	wait()
	switch {
	case err == nil:
		_, err = s.kept.Settle(ctx, o, rec.ID, c)
	case errors.Is(err, pipeline.ErrHeld):
		_, err = s.kept.Look(ctx, o, rec.ID)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Warn("the end of a response is not kept yet", "response", rec.ID, "err", err)
	}
}

// keepEvents returns what takes deltas, and what waits until the events are written. What comes while a batch is
// written makes the next one. Events that cannot be written follow from the end of the call.
func (s *responseFace) keepEvents(ctx context.Context, o responses.Owner, rec *responses.Record, req pipeline.Request) (
	onDelta func(pipeline.Delta), wait func()) {
	follow := stream.NewEventFollower(messages.ResponsesWire, req.Body)
	q := &queue{max: s.streamBuffer, ready: make(chan struct{}, 1)}
	over, done := make(chan struct{}), make(chan struct{})
	lost := false
	go func() {
		defer close(done)
		log := s.kept.Write(o, rec)
		write := func() bool {
			events, _ := q.take()
			if len(events) == 0 {
				return true
			}
			return log.Add(ctx, events) == nil
		}
		for {
			select {
			case <-q.ready:
				if !write() {
					return
				}
			case <-over:
				write()
				return
			}
		}
	}()
	onDelta = func(d pipeline.Delta) {
		if events := follow.Delta(d); !lost {
			lost = !q.put(events, d.Marks)
		}
	}
	return onDelta, func() { close(over); <-done }
}

// inputTokens is POST /v1/responses/input_tokens: an estimate, as for the Messages API.
func (s *responseFace) inputTokens(w http.ResponseWriter, r *http.Request, id api.Identity) {
	_, _, turn := s.turn(w, r, id)
	if turn == nil {
		return
	}
	writeValue(w, http.StatusOK, struct {
		Object string `json:"object"`
		Tokens int64  `json:"input_tokens"`
	}{"response.input_tokens", view.Estimate(view.Of(messages.ResponsesWire), turn.Body)})
}

// itemList is a page of items as clients read it.
type itemList struct {
	Object  string            `json:"object"`
	Data    []json.RawMessage `json:"data"`
	First   *string           `json:"first_id"`
	Last    *string           `json:"last_id"`
	HasMore bool              `json:"has_more"`
}
