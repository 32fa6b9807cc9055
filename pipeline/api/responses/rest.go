package responses

import (
	"context"
	"errors"
	"time"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

// The log of a stream is written by the gateway that has accepted the call. If that gateway dies, or loses a piece on
// the way, whoever follows the stream elsewhere goes on with the log: from what the call's target has said so far.

// Said asks what the target of a stored call has said after a piece, without a gap: first after the zero Delta, then
// after the last one that came. It is empty if there is nothing new, or if nobody knows. What another run of the target
// says begins at its first piece.
type Said func(ctx context.Context, tenant, call string, after pipeline.Delta) []pipeline.Delta

// Pauses between questions: while pieces come, and when there were none, which doubles up to the longest. A model may
// think for minutes, with its gateway alive.
const (
	restPause   = 50 * time.Millisecond
	restQuiet   = 250 * time.Millisecond
	restLongest = 2 * time.Second
)

// Rest goes on with a log that nobody seems to write. As several may do that, and its writer after all, each event is
// written once. One goroutine uses it.
type Rest struct {
	said   Said
	tenant string
	call   string
	begin  func() (follow func(pipeline.Delta) [][]byte, w *Writer)

	follow func(pipeline.Delta) [][]byte
	w      *Writer
	last   pipeline.Delta
	other  bool // this run of the target says something else than was shown
	over   bool
	quiet  time.Duration
	again  time.Time
}

// Rest goes on with the log of a chat stream.
func (c *Chat) Rest() *Rest {
	return &Rest{said: c.k.Said, tenant: c.o.Tenant, call: c.Call,
		begin: func() (func(pipeline.Delta) [][]byte, *Writer) {
			return stream.NewFollower(c.request()).Delta, c.writer()
		}}
}

// More asks for more, unless it has just done so, and writes what the log lacks of it. It returns the number of the
// batch that it wrote, or -1. Those who follow the log read it there.
func (r *Rest) More(ctx context.Context) int {
	if r.said == nil || r.over || time.Now().Before(r.again) {
		return -1
	}
	var events [][]byte
	pieces := r.said(ctx, r.tenant, r.call, r.last)
	for _, d := range pieces {
		if d.Source != r.last.Source {
			r.follow, r.w = r.begin()
			r.other, events = false, nil
		}
		r.last = pipeline.Delta{Source: d.Source, N: d.N}
		if !r.other {
			events = append(events, r.follow(d)...)
		}
	}
	pause := restPause
	if r.quiet = min(max(2*r.quiet, restQuiet), restLongest); len(pieces) > 0 {
		r.quiet = 0
	} else {
		pause = r.quiet
	}
	r.again = time.Now().Add(pause)
	if len(events) == 0 {
		return -1
	}
	err := r.w.catchUp(ctx)
	n := -1
	if err == nil {
		n, err = r.w.add(ctx, events)
	}
	switch {
	case errors.Is(err, errOver):
		r.over = true
	case errors.Is(err, errOther):
		r.other = true
	case err != nil: // the store does not answer: it begins again
		r.last = pipeline.Delta{}
	}
	return n
}
