package responses

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
)

const conversationPrefix = "conv_"

// maxAdded is how many items one request may bring into a conversation.
const maxAdded = 20

// Conversation is a list of items that goes on from response to response.
type Conversation struct {
	ID       string            `json:"id"`
	Created  int64             `json:"created"` // Unix seconds
	Metadata map[string]string `json:"metadata"`
	Next     int               `json:"next"` // number of the next item
	Entries  []entry           `json:"entries"`
}

// entry is an item, and the response that has brought it.
type entry struct {
	Item json.RawMessage `json:"item"`
	Of   string          `json:"of,omitempty"`
}

func (c *Conversation) items() []json.RawMessage {
	out := make([]json.RawMessage, len(c.Entries))
	for i, e := range c.Entries {
		out[i] = e.Item
	}
	return out
}

// add appends items and returns them with their ids.
func (c *Conversation) add(items []json.RawMessage, of string) []json.RawMessage {
	var out []json.RawMessage
	for _, item := range items {
		item = withID(item, c.ID, c.Next)
		c.Next++
		c.Entries = append(c.Entries, entry{item, of})
		out = append(out, item)
	}
	return out
}

// Object is the conversation as clients read it.
func (c *Conversation) Object() any {
	return struct {
		ID       string            `json:"id"`
		Object   string            `json:"object"`
		Created  int64             `json:"created_at"`
		Metadata map[string]string `json:"metadata"`
	}{c.ID, "conversation", c.Created, c.Metadata}
}

// Items are the items of the conversation, the oldest first.
func (c *Conversation) Items() []json.RawMessage { return c.items() }

// Conversation returns a conversation of the owner.
func (k *Kept) Conversation(ctx context.Context, o Owner, id string) (*Conversation, error) {
	c, _, err := k.loadConversation(ctx, o, id)
	return c, err
}

func (k *Kept) loadConversation(ctx context.Context, o Owner, id string) (*Conversation, uint64, error) {
	if !validID(id) {
		return nil, 0, missing("conversation", id)
	}
	c := &Conversation{}
	rev, err := k.get(ctx, o.key("conversation", id), c)
	if errors.Is(err, pipeline.ErrNotFound) {
		return nil, 0, missing("conversation", id)
	}
	if err != nil {
		return nil, 0, fault(err)
	}
	return c, rev, nil
}

// change edits a conversation until no other writer came between; edit may run several times.
func (k *Kept) change(ctx context.Context, o Owner, id string, edit func(c *Conversation) error) (*Conversation,
	error) {
	for {
		c, rev, err := k.loadConversation(ctx, o, id)
		if err != nil {
			return nil, err
		}
		if err := edit(c); err != nil {
			return nil, err
		}
		if len(c.Entries) > api.MaxMessages {
			return nil, api.Refused(messages.TooLarge, "a conversation has at most %d items", api.MaxMessages)
		}
		err = k.put(ctx, o.key("conversation", id), c, pipeline.IfRevision(rev))
		switch {
		case err == nil:
			return c, nil
		case ctx.Err() != nil || !errors.Is(err, pipeline.ErrChanged):
			return nil, fault(err)
		}
	}
}

// CreateConversation makes a conversation of a body {items?, metadata?}.
func (k *Kept) CreateConversation(ctx context.Context, o Owner, body []byte) (*Conversation, error) {
	c := &Conversation{ID: conversationPrefix + messages.NewID(), Created: time.Now().Unix()}
	var err error
	if c.Metadata, err = metadata(body); err != nil {
		return nil, err
	}
	items, err := k.bodyItems(ctx, o, body, false)
	if err != nil {
		return nil, err
	}
	c.add(items, "")
	if err := k.put(ctx, o.key("conversation", c.ID), c, pipeline.IfAbsent()); err != nil {
		return nil, fault(err)
	}
	return c, nil
}

// UpdateConversation replaces the metadata by that of a body {metadata}.
func (k *Kept) UpdateConversation(ctx context.Context, o Owner, id string, body []byte) (*Conversation, error) {
	m, err := metadata(body)
	if err != nil {
		return nil, err
	}
	return k.change(ctx, o, id, func(c *Conversation) error { c.Metadata = m; return nil })
}

// DeleteConversation removes a conversation and its items.
func (k *Kept) DeleteConversation(ctx context.Context, o Owner, id string) error {
	if !validID(id) {
		return missing("conversation", id)
	}
	ok, err := k.drop(ctx, o.key("conversation", id))
	switch {
	case err != nil:
		return fault(err)
	case !ok:
		return missing("conversation", id)
	}
	return nil
}

// AddItems appends the items of a body {items} and returns them with their ids.
func (k *Kept) AddItems(ctx context.Context, o Owner, id string, body []byte) (added []json.RawMessage, err error) {
	items, err := k.bodyItems(ctx, o, body, true)
	if err != nil {
		return nil, err
	}
	_, err = k.change(ctx, o, id, func(c *Conversation) error { added = c.add(items, ""); return nil })
	return added, err
}

// DeleteItem removes one item and returns the conversation.
func (k *Kept) DeleteItem(ctx context.Context, o Owner, id, item string) (*Conversation, error) {
	return k.change(ctx, o, id, func(c *Conversation) error {
		i := slices.IndexFunc(c.Entries, func(e entry) bool { return rawjson.Text(e.Item, "id") == item })
		if i < 0 {
			return missing("item", item)
		}
		c.Entries = slices.Delete(c.Entries, i, i+1)
		return nil
	})
}

// extend adds a response that has ended to its conversation, once. A conversation that is gone stays gone.
func (k *Kept) extend(ctx context.Context, o Owner, r *Record) error {
	_, err := k.change(ctx, o, r.Conversation, func(c *Conversation) error {
		if !slices.ContainsFunc(c.Entries, func(e entry) bool { return e.Of == r.ID }) {
			c.add(slices.Concat(r.Input, output(r.Response)), r.ID)
		}
		return nil
	})
	if f, ok := errors.AsType[*messages.Fault](err); ok && f.Code == messages.NotFound {
		return nil
	}
	return err
}

// bodyItems are the items of a body, with what they refer to in place.
func (k *Kept) bodyItems(ctx context.Context, o Owner, body []byte, needed bool) ([]json.RawMessage, error) {
	raw, ok := rawjson.Field(body, "items")
	if !needed && (!ok || rawjson.IsNull(raw)) {
		return nil, nil
	}
	list := rawjson.Elements(raw)
	if len(raw) == 0 || raw[0] != '[' || len(list) > maxAdded || slices.ContainsFunc(list, func(i []byte) bool {
		return i[0] != '{'
	}) {
		return nil, api.Invalid("items", "items must be an array of up to %d objects", maxAdded)
	}
	list, err := k.resolve(ctx, o, list)
	return raws(list), err
}
