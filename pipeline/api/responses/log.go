package responses

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

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

// Events returns a batch of events, and whether it is the last. It is pipeline.ErrNotFound if it is not written yet.
func (k *Kept) Events(ctx context.Context, o Owner, id string, n int) (events [][]byte, last bool, err error) {
	b, err := log{k: k, o: o, id: id}.read(ctx, n)
	return bytesOf(b.Events), b.End, err
}

// all reads the whole log; next is the number of the first batch that is not written.
func (l log) all(ctx context.Context) (all [][]byte, next int, ended bool, err error) {
	for ; ; next++ {
		b, err := l.read(ctx, next)
		switch {
		case errors.Is(err, pipeline.ErrNotFound):
			return all, next, false, nil
		case err != nil:
			return nil, 0, false, fault(err)
		}
		all = append(all, bytesOf(b.Events)...)
		if b.End {
			return all, next + 1, true, nil
		}
	}
}

// log is where the batches of one stream are.
type log struct {
	k   *Kept
	o   Owner
	id  string
	ttl time.Duration // of each batch; 0: as long as the store keeps it
}

// write writes a batch. It is pipeline.ErrExists if that number is written.
func (l log) write(ctx context.Context, n int, b batch) error {
	return l.k.putFor(ctx, l.o.events(l.id, n), b, pipeline.IfAbsent(), l.ttl)
}

// read reads a batch. It is pipeline.ErrNotFound if that number is not written yet.
func (l log) read(ctx context.Context, n int) (b batch, err error) {
	_, err = l.k.get(ctx, l.o.events(l.id, n), &b)
	return b, err
}

func (k *Kept) logOf(o Owner, r *Record) log { return log{k: k, o: o, id: r.ID} }

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
