package responses

import (
	"context"
	"errors"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

// Patience of Look: how long it waits for the end of a call, and how long a call that nobody knows may still come.
const (
	lookTime = 250 * time.Millisecond
	longest  = 24 * time.Hour
)

// Look returns a response as it is now. If its call has ended and nobody has kept the end, it does that first.
func (k *Kept) Look(ctx context.Context, o Owner, id string) (*Record, error) {
	r, _, err := k.Load(ctx, o, id)
	if err != nil || r.Done() {
		return r, err
	}
	look, cancel := context.WithTimeout(ctx, lookTime)
	c, err := k.entry.Result(look, o.Tenant, r.Call)
	cancel()
	f, isFault := errors.AsType[*messages.Fault](err)
	switch {
	case c != nil:
		return k.Settle(ctx, o, id, c)
	case errors.Is(err, pipeline.ErrHeld):
		return k.pause(ctx, o, r)
	case isFault && f.Code == messages.NotFound && time.Since(time.Unix(r.Created, 0)) > longest:
		return k.end(ctx, o, id, nil, errGone)
	}
	return r, ctx.Err() // it runs, or its end cannot be asked for now
}

// pause ends a response whose call waits for a person with what it waits for.
func (k *Kept) pause(ctx context.Context, o Owner, r *Record) (*Record, error) {
	var shown [][]byte
	if r.Stream {
		var err error
		if shown, _, _, err = k.logOf(o, r).all(ctx); err != nil {
			return nil, err
		}
	}
	if c := k.Held(ctx, o, r, shown); c != nil {
		return k.Settle(ctx, o, r.ID, c)
	}
	return r, ctx.Err()
}

// Settle keeps the end of a call as the end of its response. Any process may do it, and several at once: one of them
// writes, and all return what is kept then.
func (k *Kept) Settle(ctx context.Context, o Owner, id string, c *messages.Call) (*Record, error) {
	return k.end(ctx, o, id, c, c.Fault)
}

// Cancel ends a response that still runs; one that has ended stays as it is. stop ends the call.
func (k *Kept) Cancel(ctx context.Context, o Owner, id string, stop func(call string)) (*Record, error) {
	r, err := k.Look(ctx, o, id)
	if err != nil || r.Done() {
		return r, err
	}
	stop(r.Call)
	return k.end(ctx, o, id, nil, messages.NewFault(messages.Cancelled, "cancelled"))
}

// end writes the end of a response, of which the stream's end is the first part.
func (k *Kept) end(ctx context.Context, o Owner, id string, c *messages.Call, f *messages.Fault) (*Record, error) {
	for {
		r, rev, err := k.Load(ctx, o, id)
		if err != nil || r.Done() {
			return r, err
		}
		if r.Stream {
			r.Response, err = k.endStream(ctx, o, r, c, f)
		} else {
			r.Response = r.final(c, f)
		}
		if err != nil {
			return nil, err
		}
		if err := k.index(ctx, o, r); err != nil {
			return nil, err
		}
		err = k.put(ctx, o.key("response", id), r, pipeline.IfRevision(rev))
		switch {
		case err == nil:
			k.closed(ctx, id)
			return r, nil
		case ctx.Err() != nil || !errors.Is(err, pipeline.ErrChanged):
			return nil, fault(err)
		}
	}
}

// final is the response of an ended call.
func (r *Record) final(c *messages.Call, f *messages.Fault) []byte {
	if f != nil {
		return r.failed(f)
	}
	reply := c.Reply()
	if _, ok := rawjson.Field(reply, "output"); !ok {
		return r.failed(messages.NewFault(messages.ProviderBadReply, "the reply has no output"))
	}
	return r.Shape(reply, true)
}

// endStream writes the events that the log still lacks and returns the response that they end with. The log decides:
// what others have written stays.
func (k *Kept) endStream(ctx context.Context, o Owner, r *Record, c *messages.Call, f *messages.Fault) ([]byte, error) {
	l := k.logOf(o, r)
	for {
		all, next, over, err := l.all(ctx)
		if err != nil {
			return nil, err
		}
		if over {
			if response := ended(all); response != nil {
				return response, nil
			}
			return r.failed(messages.NewFault(messages.Cancelled, "cancelled")), nil // no event tells of that
		}
		err = l.write(ctx, next, batch{Events: raws(r.rest(all, c, f)), End: true})
		if err != nil && !errors.Is(err, pipeline.ErrExists) {
			return nil, fault(err)
		}
	}
}

// rest are the events that follow those of the log when the call has ended. If the call ran again and its reply does
// not go on from there, the stream fails: nobody gets a mixture of two replies.
func (r *Record) rest(log [][]byte, c *messages.Call, f *messages.Fault) [][]byte {
	if f != nil && f.Code == messages.Cancelled {
		return nil
	}
	var out [][]byte
	if c != nil {
		follow := stream.NewEventFollower(messages.ResponsesWire, r.Request)
		for i, e := range log {
			follow.Delta(pipeline.Delta{Source: "log", N: i + 1, Chunk: e})
		}
		more, fault := follow.End(c)
		if fault == nil {
			for _, e := range more {
				out = append(out, r.Event(e, true))
			}
			return out
		}
		f = fault
	}
	if len(log) == 0 {
		begun := r.Shape(r.blank("in_progress"), true)
		created := rawjson.SetField([]byte(`{"type":"response.created","sequence_number":0}`), "response", begun)
		out = append(out, created)
	}
	return append(out, r.Failed(f, true, len(log)+len(out)))
}

// Replay are the events of a response that was not streamed.
func (r *Record) Replay() [][]byte {
	return events.Replay(messages.ResponsesWire, r.Request, r.Response)
}
