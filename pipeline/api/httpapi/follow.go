package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
)

// This file follows the log of a kept stream, that of a response or of a chat call, at whichever gateway.

// followPause is how often a follower looks for new events.
const followPause = 50 * time.Millisecond

// abandoned is after how many pauses without an event a log may be that of a gateway that has died.
const abandoned = 20

// streamLog is the log of a stream: responses.Followed, or responses.Chat.
type streamLog interface {
	// Next reads a batch of events; pipeline.ErrNotFound: it is not written yet. The fault is what ended the stream.
	Next(ctx context.Context, n int) (events [][]byte, last bool, fault *messages.Fault, err error)
	// Mind ends the log if its call has ended. It waits a moment for that, and reports whether nothing more will come.
	Mind(ctx context.Context) (over bool, err error)
	// Rest goes on with a log that nobody writes.
	Rest() *responses.Rest
}

// follow says how a log is followed.
type follow struct {
	call     string
	patience int                   // pauses without an event before the log is minded
	show     func(events [][]byte) // a batch
	end      func()                // the log has ended well
}

// following begins a stream that shows a log.
func (s *callRunner) following(w http.ResponseWriter, wire messages.Wire) *events {
	e := &events{w: w, rc: http.NewResponseController(w), timeout: s.writeTimeout, wire: wire}
	e.raw(": following\n\n")
	return e
}

// follow writes what is in the log and what comes, until the log ends or the reader leaves. It minds the log meanwhile,
// so that the stream goes on and ends even if the gateway that began it has died.
func (s *callRunner) follow(r *http.Request, e *events, log streamLog, f follow) {
	ctx, cancel := s.untilHalt(r.Context())
	x := &logReader{e: e, log: log, follow: f, own: -1, rest: log.Rest(), minded: make(chan minding, 1)}
	defer func() { cancel(); x.leave() }()
	beat, pause := time.NewTicker(s.heartbeat), time.NewTicker(followPause)
	defer beat.Stop()
	defer pause.Stop()
	for e.err == nil && x.read(ctx) {
		select {
		case <-pause.C:
			x.look(ctx)
		case m := <-x.minded:
			x.minds, x.over = false, m.over
			if m.err != nil && ctx.Err() == nil {
				lostLog(ctx, e, f.call, m.err)
				return
			}
		case <-beat.C:
			e.ping()
		case <-ctx.Done():
			lostLog(ctx, e, f.call, context.Cause(ctx))
			return
		}
	}
}

// logReader reads one log for one reader. One goroutine uses it.
type logReader struct {
	follow
	e      *events
	log    streamLog
	rest   *responses.Rest
	n      int // the next batch
	own    int // the last batch that was written here
	idle   int // pauses since others have written one
	over   bool
	minds  bool // somebody does
	minded chan minding
}

// minding is what came of Mind.
type minding struct {
	over bool
	err  error
}

// read shows what is in the log by now, and reports whether more may come.
func (x *logReader) read(ctx context.Context) bool {
	for x.e.err == nil {
		list, last, fault, err := x.log.Next(ctx, x.n)
		switch {
		case errors.Is(err, pipeline.ErrNotFound) && x.over:
			x.e.fail(api.Refused(messages.NotFound, "the events of call %s are not kept any more", x.call))
			return false
		case errors.Is(err, pipeline.ErrNotFound):
			return true
		case err != nil:
			lostLog(ctx, x.e, x.call, err)
			return false
		}
		x.show(list)
		switch {
		case last && fault != nil:
			x.e.fail(fault)
			return false
		case last:
			x.end()
			return false
		}
		if x.n != x.own {
			x.idle = 0
		}
		x.n++
	}
	return false
}

// look does what is to be done about a log in which nothing has come for a while.
func (x *logReader) look(ctx context.Context) {
	x.idle++
	if x.idle > x.patience && !x.minds {
		x.minds = true
		go func() {
			over, err := x.log.Mind(ctx)
			x.minded <- minding{over, err}
		}()
	}
	if x.idle >= abandoned {
		x.own = max(x.own, x.rest.More(ctx))
	}
}

// leave waits for what is under way.
func (x *logReader) leave() {
	if x.minds {
		<-x.minded
	}
}

// lostLog ends a stream whose log cannot be followed any more.
func lostLog(ctx context.Context, e *events, call string, err error) {
	if errors.Is(context.Cause(ctx), errStopping) {
		e.fail(api.StoppingFault(messages.StreamCut, call))
		return
	}
	if f, ok := errors.AsType[*messages.Fault](err); ok {
		e.fail(f)
		return
	}
	e.fail(api.Refused(messages.StreamCut, "the gateway lost the stream; ask again after the last event"))
}
