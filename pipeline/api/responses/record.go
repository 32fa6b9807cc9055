package responses

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// Owner is whose something is: the tenant, and the key with which it was made.
type Owner struct{ Tenant, Key string }

// Kept is what is kept. It is safe for concurrent use, by any number of processes on one store.
type Kept struct {
	docs
	entry pipeline.Entry
	// Asks knows what calls wait for; nil: a call that waits for a person runs, as far as its response tells.
	Asks Questions
	// Said knows what targets have said; nil: a log whose writer is gone goes on when its call has ended.
	Said Said
}

// New returns what the store keeps, which also decides how long; the entry knows the ends of calls. What is written to
// the store must be there for every reader at once.
func New(store pipeline.Store, entry pipeline.Entry) *Kept {
	return &Kept{docs: docs{store, newRoom()}, entry: entry}
}

// Record is a response as it is kept.
type Record struct {
	ID      string `json:"id"`
	Call    string `json:"call"`
	Created int64  `json:"created"` // Unix seconds
	// Request is what the caller sent, without the input.
	Request      json.RawMessage   `json:"request"`
	Input        []json.RawMessage `json:"input"` // of this turn alone; each item has an id
	Previous     string            `json:"previous,omitempty"`
	Conversation string            `json:"conversation,omitempty"`
	Background   bool              `json:"background,omitempty"`
	Stream       bool              `json:"stream,omitempty"`   // its events are kept
	Answered     []string          `json:"answered,omitempty"` // questions of the call that this turn has answered
	Response     json.RawMessage   `json:"response,omitempty"`
}

// Done reports whether the response has ended, well or not.
func (r *Record) Done() bool { return len(r.Response) > 0 }

// ID is the id of the response that a call makes.
func ID(call string) string { return "resp_" + call }

func (o Owner) key(kind string, rest ...string) string {
	return messages.Key(append([]string{o.Tenant, "key " + o.Key, kind}, rest...)...)
}

func missing(what, id string) *messages.Fault {
	return api.Refused(messages.NotFound, "%s %q was not found", what, messages.Clip(id, 100))
}

// fault turns what is no fault yet into one that says that the store did not answer.
func fault(err error) error {
	if f, ok := errors.AsType[*messages.Fault](err); ok {
		return f
	}
	return messages.NewFault(messages.StoreUnavailable, "%v", err).From("entry")
}

// validID bounds what is made a key of.
func validID(id string) bool { return api.MetaValue(id) }

// Load returns a response of the owner, with its revision. It is the fault not_found if there is none.
func (k *Kept) Load(ctx context.Context, o Owner, id string) (*Record, uint64, error) {
	if !validID(id) {
		return nil, 0, missing("response", id)
	}
	r := &Record{}
	rev, err := k.get(ctx, o.key("response", id), r)
	if errors.Is(err, pipeline.ErrNotFound) {
		return nil, 0, missing("response", id)
	}
	if err != nil {
		return nil, 0, fault(err)
	}
	return r, rev, nil
}

// Begin keeps a response that has begun, before anybody hears its id. A second one with the id is the same call, made
// twice with one idempotency key.
func (k *Kept) Begin(ctx context.Context, o Owner, r *Record) error {
	if err := k.note(ctx, o, r.ID); err != nil {
		return fault(err)
	}
	err := k.put(ctx, o.key("response", r.ID), r, pipeline.IfAbsent())
	if err != nil && !errors.Is(err, pipeline.ErrExists) {
		return fault(err)
	}
	return nil
}

// Save keeps a response that has ended, with the events of its stream. It is there for every process when Save returns.
func (k *Kept) Save(ctx context.Context, o Owner, r *Record, stream [][]byte) error {
	if len(stream) > 0 {
		err := k.logOf(o, r).write(ctx, 0, batch{Events: raws(stream), End: true})
		if err != nil && !errors.Is(err, pipeline.ErrExists) {
			return fault(err)
		}
	}
	if err := k.index(ctx, o, r); err != nil {
		return err
	}
	err := k.put(ctx, o.key("response", r.ID), r, pipeline.Always())
	if err != nil {
		return fault(err)
	}
	return nil
}

// index makes the items of a response that has ended known by their ids, and part of its conversation.
func (k *Kept) index(ctx context.Context, o Owner, r *Record) error {
	for _, item := range output(r.Response) {
		id := rawjson.Text(item, "id")
		if !validID(id) {
			continue
		}
		err := k.put(ctx, o.key("item", id), place{Response: r.ID}, pipeline.Always())
		if err != nil {
			return fault(err)
		}
	}
	if r.Conversation == "" {
		return nil
	}
	return k.extend(ctx, o, r)
}

// Delete removes a response. Its items go with it.
func (k *Kept) Delete(ctx context.Context, o Owner, id string) error {
	if !validID(id) {
		return missing("response", id)
	}
	ok, err := k.drop(ctx, o.key("response", id))
	if err != nil {
		return fault(err)
	}
	if !ok {
		return missing("response", id)
	}
	k.closed(ctx, id)
	for n := 0; ; n++ {
		if ok, err := k.drop(ctx, o.events(id, n)); err != nil || !ok {
			return nil // what is left of the events cannot be reached, and ends with its time
		}
	}
}

func output(response []byte) []json.RawMessage {
	raw, _ := rawjson.Field(response, "output")
	return raws(rawjson.Elements(raw))
}

func raws(list [][]byte) []json.RawMessage {
	out := make([]json.RawMessage, len(list))
	for i, e := range list {
		out[i] = e
	}
	return out
}

// ourPrefix begins the ids that items of an input get here. The rest names what they belong to. Models never see them,
// because providers check the ids that they read.
const ourPrefix = "in_"

// withID gives an item an id that leads back to its response or conversation, unless it has one.
func withID(item []byte, of string, n int) []byte {
	if id, ok := rawjson.FieldString(item, "id"); ok && id != "" {
		return item
	}
	return rawjson.SetFieldString(item, "id", fmt.Sprintf("%s%s_%d", ourPrefix, of, n))
}

func withoutOurID(item []byte) []byte {
	if id, _ := rawjson.FieldString(item, "id"); strings.HasPrefix(id, ourPrefix) {
		return rawjson.DropField(item, "id")
	}
	return item
}
