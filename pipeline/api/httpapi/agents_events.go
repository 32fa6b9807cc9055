package httpapi

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// runEvents is GET /v1/agents/{agent}/runs/{run}/events: the run's events after the one that Last-Event-ID or ?after=
// names, those that have happened and those to come. A browser's EventSource sends the header by itself.
func (s *agentFace) runEvents(w http.ResponseWriter, r *http.Request, id api.Identity) {
	got, tenant, ok := s.findRun(w, r, id)
	if !ok {
		return
	}
	after := r.Header.Get("Last-Event-ID")
	if after == "" {
		after = r.URL.Query().Get("after")
	}
	if err := s.agents.CheckEvent(after); err != nil {
		writeFault(w, api.Invalid("after", "%v", err))
		return
	}
	s.follow(w, r, tenant, got.Agent, got.ID, after)
}

// endGrace is how long the last event of a run is waited for when its call has ended. A run that was ended from
// outside, by its deadline, a cancel or a stage, has none of its own.
const endGrace = time.Second

// follow writes the events of a run until it has ended or the caller leaves. The run goes on without them.
func (s *agentFace) follow(w http.ResponseWriter, r *http.Request, tenant, agent, run, after string) {
	ctx, cancel := s.untilHalt(r.Context())
	defer cancel()
	e := &events{w: w, rc: http.NewResponseController(w), timeout: s.writeTimeout}
	w.Header().Set("Location", runPath(agent, run))
	e.raw(": run " + run + "\n\n")
	news := make(chan api.RunEvent)
	followed, ends := make(chan error, 1), make(chan *messages.Call, 1)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	work.Go(func() {
		followed <- s.agents.Follow(ctx, tenant, run, after, func(ev api.RunEvent) error {
			select {
			case news <- ev:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	work.Go(func() { ends <- s.endOf(ctx, tenant, run) })
	var last *messages.Call
	var grace <-chan time.Time
	beat := time.NewTicker(s.heartbeat)
	defer beat.Stop()
	for e.err == nil {
		select {
		case ev := <-news:
			e.runEvent(ev)
		case <-beat.C:
			e.ping()
		case last = <-ends:
			if last == nil {
				return
			}
			grace = time.After(endGrace)
		case <-grace:
			e.runEvent(endEvent(last))
			return
		case err := <-followed:
			if err != nil && ctx.Err() == nil {
				s.log.Warn("the events of a run were lost", "run", run, "err", err)
			}
			return
		}
	}
}

// endOf waits for the end of a run's call; nil if ctx is over before.
func (s *agentFace) endOf(ctx context.Context, tenant, run string) *messages.Call {
	for ctx.Err() == nil {
		c, err := s.entry.Result(ctx, tenant, run)
		switch {
		case err == nil && c != nil:
			return c
		case errors.Is(err, pipeline.ErrHeld), err != nil: // it waits for a person, or the store is away
			t := time.NewTimer(2 * time.Second)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
			}
		}
	}
	return nil
}

// endEvent is the end of a run that has no record of it.
func endEvent(c *messages.Call) api.RunEvent {
	if c.Fault == nil {
		return api.RunEvent{Type: api.RunEnded, Data: []byte(`{"reason":"answered"}`)}
	}
	reason := api.RunFailed
	if c.Fault.Code == messages.Cancelled {
		reason = api.RunCancelled
	}
	return api.RunEvent{Type: api.RunEnded, Data: rawjson.SetFieldString(c.Fault.Body(), "reason", reason)}
}

// runEvent writes an event of a run, with its id.
func (e *events) runEvent(ev api.RunEvent) {
	e.id = ev.ID
	e.event(ev.Type, oneLine(ev.Data))
}
