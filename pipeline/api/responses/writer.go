package responses

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// Writer writes the events of a stream while they come. Several may write one log, also in several processes, as long
// as all of them make the same events: each is written once. One goroutine uses a Writer. After an error it must not be
// used again: the log goes on from the end of the call.
type Writer struct {
	log
	shape func(event []byte) []byte
	next  int      // the first batch that is not read
	made  [][]byte // events that the log lacks, as far as it is read
	ahead [][]byte // events of the log that are still to be made here
}

// Write begins the log of a response, or goes on with it.
func (k *Kept) Write(o Owner, r *Record) *Writer {
	return &Writer{log: k.logOf(o, r), shape: func(e []byte) []byte { return r.Event(e, true) }}
}

var (
	errOther = errors.New("the log has other events than those that come")
	errOver  = errors.New("the log has its end")
)

// Add writes events, which follow those of the Add before.
func (w *Writer) Add(ctx context.Context, events [][]byte) error {
	_, err := w.add(ctx, events)
	return err
}

// add is Add, and returns the number of the batch that it wrote; -1 if others had written all of it.
func (w *Writer) add(ctx context.Context, events [][]byte) (int, error) {
	for _, e := range events {
		w.made = append(w.made, w.shape(e))
	}
	for {
		if err := w.meet(); err != nil || len(w.made) == 0 {
			return -1, err
		}
		err := w.write(ctx, w.next, batch{Events: raws(w.made)})
		if err == nil {
			w.made = nil
			w.next++
			return w.next - 1, nil
		}
		if !errors.Is(err, pipeline.ErrExists) {
			return -1, err
		}
		if err := w.readOn(ctx); err != nil {
			return -1, err
		}
	}
}

// end writes the last batch.
func (w *Writer) end(ctx context.Context, b batch) error {
	for {
		if err := w.meet(); err != nil {
			return err
		}
		if len(w.ahead) > 0 {
			return errOther
		}
		err := w.write(ctx, w.next, b)
		if !errors.Is(err, pipeline.ErrExists) {
			return err
		}
		if err := w.readOn(ctx); err != nil {
			return err
		}
	}
}

// catchUp reads what others have written.
func (w *Writer) catchUp(ctx context.Context) error {
	for {
		if err := w.readOn(ctx); err != nil {
			if errors.Is(err, pipeline.ErrNotFound) {
				err = nil
			}
			return err
		}
	}
}

func (w *Writer) readOn(ctx context.Context) error {
	b, err := w.read(ctx, w.next)
	if err != nil {
		return err
	}
	if b.End {
		return errOver
	}
	w.next++
	w.ahead = append(w.ahead, bytesOf(b.Events)...)
	return nil
}

// meet drops what was made here and is in the log.
func (w *Writer) meet() error {
	n := min(len(w.made), len(w.ahead))
	for i := range n {
		if !sameEvent(w.made[i], w.ahead[i]) {
			return errOther
		}
	}
	w.made, w.ahead = w.made[n:], w.ahead[n:]
	return nil
}

// sameEvent reports whether two events show the same. What a response repeats of its request is not shown by an event.
func sameEvent(a, b []byte) bool {
	return bytes.Equal(shown(a), shown(b))
}

// shown is what an event shows, written as the store writes it.
func shown(event []byte) []byte {
	if response, ok := rawjson.Field(event, "response"); ok {
		event = rawjson.SetFieldString(event, "response", rawjson.Text(response, "id"))
	}
	out, err := json.Marshal(json.RawMessage(event))
	if err != nil {
		return event
	}
	return out
}
