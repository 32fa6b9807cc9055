package responses

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// batch is a piece of the log of a stream. Batches are numbered from 0, and each number is written once: whoever comes
// second reads what is there. So all readers see the same events, whichever process writes them.
type batch struct {
	Events []json.RawMessage `json:"events"`
	End    bool              `json:"end,omitempty"`
	Fault  *messages.Fault   `json:"fault,omitempty"` // that ended the stream of a chat call
}

func (o Owner) events(id string, n int) string { return o.key("events", id, strconv.Itoa(n)) }

// append writes a batch. It is pipeline.ErrExists if that number is written.
func (k *Kept) append(ctx context.Context, o Owner, id string, n int, b batch) error {
	return k.put(ctx, o.events(id, n), b, pipeline.IfAbsent())
}

// Events returns a batch of events, and whether it is the last. It is pipeline.ErrNotFound if it is not written yet.
func (k *Kept) Events(ctx context.Context, o Owner, id string, n int) (events [][]byte, last bool, err error) {
	var b batch
	if _, err := k.get(ctx, o.events(id, n), &b); err != nil {
		return nil, false, err
	}
	return bytesOf(b.Events), b.End, nil
}

// log reads all batches.
func (k *Kept) log(ctx context.Context, o Owner, id string) (all [][]byte, next int, ended bool, err error) {
	for ; ; next++ {
		events, last, err := k.Events(ctx, o, id, next)
		switch {
		case errors.Is(err, pipeline.ErrNotFound):
			return all, next, false, nil
		case err != nil:
			return nil, 0, false, fault(err)
		}
		all = append(all, events...)
		if last {
			return all, next + 1, true, nil
		}
	}
}

// Writer writes the events of a stream while they come. One goroutine uses it.
type Writer struct {
	k *Kept
	o Owner
	r *Record
	n int
}

// Write begins the log of a response.
func (k *Kept) Write(o Owner, r *Record) *Writer { return &Writer{k: k, o: o, r: r} }

// Add writes events. After an error it must not be used again; the log goes on from the end of the call.
func (w *Writer) Add(ctx context.Context, events [][]byte) error {
	shaped := make([][]byte, len(events))
	for i, e := range events {
		shaped[i] = w.r.Event(e, true)
	}
	err := w.k.append(ctx, w.o, w.r.ID, w.n, batch{Events: raws(shaped)})
	w.n++
	return err
}

// Number is the sequence number of an event; -1 if it has none.
func Number(event []byte) int {
	raw, _ := rawjson.Field(event, "sequence_number")
	n, ok := rawjson.Int(raw)
	if !ok {
		return -1
	}
	return int(n)
}

// ended is the response that the last event tells of.
func ended(all [][]byte) []byte {
	if len(all) == 0 {
		return nil
	}
	response, _ := rawjson.Field(all[len(all)-1], "response")
	if status, _ := rawjson.FieldString(response, "status"); status == "" || status == "in_progress" {
		return nil
	}
	return response
}

var errGone = messages.NewFault(messages.Internal, "the end of the call is not known any more").From("entry")
