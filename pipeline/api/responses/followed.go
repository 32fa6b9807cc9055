package responses

import (
	"context"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

// Followed is a kept response as those see it who follow its events. It is safe for concurrent use.
type Followed struct {
	k *Kept
	o Owner
	r *Record
}

// Follow returns a response of the owner for those who follow its events.
func (k *Kept) Follow(o Owner, r *Record) *Followed { return &Followed{k, o, r} }

// Next reads a batch of events, and whether it is the last. A response that was not streamed has one, when it has
// ended. The error is pipeline.ErrNotFound if the batch is not there yet; no fault ends such a stream.
func (f *Followed) Next(ctx context.Context, n int) (list [][]byte, last bool, _ *messages.Fault, err error) {
	if f.r.Stream {
		list, last, err = f.k.Events(ctx, f.o, f.r.ID, n)
		return list, last, nil, err
	}
	now, _, err := f.k.Load(ctx, f.o, f.r.ID)
	switch {
	case err != nil:
		return nil, false, nil, err
	case !now.Done():
		return nil, false, nil, pipeline.ErrNotFound
	}
	return now.Replay(), true, nil, nil
}

// Mind keeps the end of the response, if its call has ended and nobody has done so. It waits a moment for that end, and
// reports whether nothing more will be written.
func (f *Followed) Mind(ctx context.Context) (over bool, err error) {
	now, err := f.k.Look(ctx, f.o, f.r.ID)
	return err == nil && now.Done(), err
}

// Rest goes on with the events of the response.
func (f *Followed) Rest() *Rest {
	return &Rest{said: f.k.Said, tenant: f.o.Tenant, call: f.r.Call, over: !f.r.Stream,
		begin: func() (func(pipeline.Delta) [][]byte, *Writer) {
			return stream.NewEventFollower(messages.ResponsesWire, f.r.Request).Delta, f.k.Write(f.o, f.r)
		}}
}
