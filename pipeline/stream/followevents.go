package stream

import (
	"encoding/json"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
)

// EventFollower is the Follower of the wires responses and messages: it returns the data of events to be written, whose
// names are events.Name. Events go out as the model's provider sent them, byte for byte, but for what a stage edits
// and for numbers that no longer count from 0. It waits for the first event that shows something, thoughts included, so
// that until then a standby can take over; after it, no second stream begins.
//
// The faces use it; one goroutine does. The zero value is not ready; use NewEventFollower.
type EventFollower struct {
	source
	wire     messages.Wire
	request  []byte
	waiting  [][]byte
	released bool
	next     int // number of the next event
	texts    map[events.Key]*seenText
	marks    map[string]bool
	ids      map[string]string // what was shown as begun -> its id
}

// NewEventFollower returns a follower for the caller's own request.
func NewEventFollower(w messages.Wire, request []byte) *EventFollower {
	return &EventFollower{wire: w, request: request, texts: map[events.Key]*seenText{},
		marks: map[string]bool{}, ids: map[string]string{}}
}

// Released reports whether the caller has seen anything of the reply.
func (f *EventFollower) Released() bool { return f.released }

// Delta takes the next delta and returns the events to write now.
func (f *EventFollower) Delta(d pipeline.Delta) (out [][]byte) {
	ok, other := f.admit(d, f.released)
	if other || f.over {
		f.waiting = nil
	}
	if !ok {
		return nil
	}
	f.waiting = append(f.waiting, d.Chunk)
	if f.released = f.released || events.Says(d.Chunk); !f.released {
		return nil
	}
	for _, e := range f.waiting {
		if raw, ok := rawjson.Field(e, "response"); ok {
			e = rawjson.SetField(e, "response", view.Echo(f.request, raw))
		}
		f.see(e)
		out = append(out, f.number(e))
	}
	f.waiting = nil
	return out
}

func (f *EventFollower) number(e []byte) []byte {
	e, counts := events.Number(e, f.next)
	if counts {
		f.next++
	}
	return e
}

// see remembers what an event shows.
func (f *EventFollower) see(e []byte) {
	if mark := events.Mark(e); mark != "" {
		f.marks[mark] = true
		if id := idOf(e); id != "" {
			f.ids[mark] = id
		}
	}
	events.Texts(e, func(at events.Key, whole bool, text string) string {
		if !whole {
			f.text(at).add(text)
		}
		return text
	})
}

func (f *EventFollower) text(at events.Key) *seenText {
	if f.texts[at] == nil {
		f.texts[at] = &seenText{}
	}
	return f.texts[at]
}

// idOf is the id of what an event begins: a response, a message, an item, a call.
func idOf(e []byte) string {
	for _, key := range []string{"response", "message", "item", "content_block"} {
		if raw, ok := rawjson.Field(e, key); ok {
			id, _ := rawjson.FieldString(raw, "id")
			return id
		}
	}
	return ""
}

// End takes the finished call and returns the events that are still to be written, and the fault that ends the stream
// instead. After a fault no event is to be written. End is called once.
func (f *EventFollower) End(c *messages.Call) ([][]byte, *messages.Fault) {
	switch {
	case c.Fault != nil && (!f.released || c.Fault.Code == messages.StreamCut):
		return nil, c.Fault
	case c.Fault != nil:
		return nil, cut(c.Fault.Code, "the call failed after a part of the reply had been sent: %s", c.Fault.Message)
	}
	reply := c.Reply()
	if f.wire == messages.ResponsesWire {
		reply = view.Echo(f.request, reply)
	}
	reply = f.sameID(reply)
	all := events.Replay(f.wire, f.request, reply)
	if len(all) == 0 {
		fault := messages.NewFault(messages.ProviderBadReply, "the reply has no output, so it cannot be streamed; "+
			"ask without stream")
		if f.released {
			fault = cut(fault.Code, "%s", fault.Message)
		}
		return nil, fault.From(messages.TargetOrigin)
	}
	tail := f.tail(c, reply)
	var out [][]byte
	seen := map[events.Key]bool{}
	for _, e := range all {
		rest, ok := f.rest(e, seen)
		if !ok {
			return nil, cut("", "the final reply differs from what had been sent; ask again")
		}
		if t, ok := tail[events.Name(e)]; ok && rest != nil {
			rest = t
		}
		if rest != nil {
			out = append(out, rest)
		}
	}
	for at, b := range f.texts {
		if !seen[at] && !b.empty() {
			return nil, cut("", "the final reply lacks a text that had been sent; ask again")
		}
	}
	for i, e := range out {
		out[i] = f.number(e)
	}
	return out, nil
}

// rest returns what an event of the whole reply adds to what was shown; nil if nothing. ok is false if they differ.
func (f *EventFollower) rest(e []byte, seen map[events.Key]bool) (out []byte, ok bool) {
	if !f.released {
		return e, true
	}
	if at, text, is := events.Delta(e); is {
		seen[at] = true
		_, shown := f.texts[at]
		more, ok := f.text(at).rest(text)
		switch {
		case !ok:
			return nil, false
		case more == "" && shown:
			return nil, true
		}
		return events.WithDelta(e, more), true
	}
	events.Texts(e, func(at events.Key, _ bool, text string) string {
		seen[at] = true
		return text
	})
	mark := events.Mark(e)
	if mark == "" { // a delta without a text: it belongs to a block that is there or not
		_, shown := f.marks["content_block_start "+string(fieldOf(e, "index"))]
		if shown {
			return nil, true
		}
		return e, true
	}
	if !f.marks[mark] {
		return e, true
	}
	return nil, f.ids[mark] == "" || f.ids[mark] == idOf(e)
}

func fieldOf(obj []byte, key string) []byte { raw, _ := rawjson.Field(obj, key); return raw }

// sameID gives the final reply the id that was shown.
func (f *EventFollower) sameID(reply []byte) []byte {
	for _, mark := range []string{"response.created", "message_start"} {
		if id := f.ids[mark]; id != "" {
			if have, _ := rawjson.FieldString(reply, "id"); have != id {
				reply = rawjson.SetFieldString(reply, "id", id)
			}
		}
	}
	return reply
}

// tail returns the events with which the provider ended the stream, by name, with the final reply in them; those that
// say something else than the final reply are left out.
func (f *EventFollower) tail(c *messages.Call, reply []byte) map[string][]byte {
	var raw []json.RawMessage
	c.Noted(messages.NoteStreamTail, &raw)
	out := map[string][]byte{}
	for _, e := range raw {
		name := events.Name(e)
		switch {
		case strings.HasPrefix(name, "response."):
			e = rawjson.SetField(e, "response", reply)
		case name == "message_delta":
			if string(fieldOf(fieldOf(e, "delta"), "stop_reason")) != string(fieldOf(reply, "stop_reason")) {
				continue
			}
		}
		out[name] = e
	}
	return out
}

func cut(last messages.Code, format string, args ...any) *messages.Fault {
	fault := messages.NewFault(messages.StreamCut, format, args...).From(messages.TargetOrigin)
	fault.Last = last
	return fault
}
