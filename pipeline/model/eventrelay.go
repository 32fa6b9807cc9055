package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/translate"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

// sink takes the pieces of one stream: passes on what may be seen now, and keeps all of them for the reply.
type sink interface {
	// add takes one piece; name is that of its event.
	add(data []byte, name string) error
	// whole reports whether nothing of the reply is missing. clean says that the stream ended without an error.
	whole(clean bool) bool
	// settle sets the call's reply.
	settle() error
	state() sinkState
	// end stops what the sink has begun; it may be called at any time, and nothing is sent after it but by settle.
	end()
}

// sinkState is how far a stream has come.
type sinkState struct {
	token    bool // something other than a role came
	complete bool // only usage and the like may still come
	released bool // the caller has seen something
	choices  bool // there is anything at all
	pieces   int
}

// sink makes the sink of a run: for the caller's wire, behind a translation if the provider's is another one.
func (r *run) sink() sink {
	var s sink
	if r.pair.Client == messages.ChatWire {
		s = newRelay(r)
	} else {
		s = newEventRelay(r)
	}
	if r.pair.Client == r.pair.Provider {
		return s
	}
	return &translated{run: r, sink: s, via: r.pair.Stream(r.call.Request())}
}

// checked returns a piece as valid compact JSON. mended says that bytes which are not UTF-8 were replaced. The error is
// a fault, also where the piece is the provider's own error.
func (r *run) checked(data []byte, name string) (out []byte, mended bool, err error) {
	if !utf8.Valid(data) {
		data, mended = bytes.ToValidUTF8(data, []byte("\uFFFD")), true
	}
	if !messages.IsJSON(data) || data[0] != '{' {
		return nil, false, r.badReply("a malformed chunk in its stream (%d bytes)", len(data))
	}
	var failure, kind []byte
	rawjson.EachField(data, func(key string, raw []byte) {
		switch key {
		case "error":
			failure = raw
		case "type":
			kind = raw
		}
	})
	switch kind, _ := rawjson.IsString(kind); {
	case !rawjson.IsNull(failure):
		return nil, false, errorFault(r.provider, 0, nil, data)
	case name == "error" || kind == "error": // of the responses wire, whose error event is flat
		return nil, false, errorFault(r.provider, 0, nil, rawjson.SetField([]byte("{}"), "error",
			rawjson.DropField(data, "type")))
	case kind == "response.failed":
		failed, _ := rawjson.Field(data, "response")
		return nil, false, errorFault(r.provider, 0, nil, failed)
	}
	if bytes.ContainsAny(data, "\r\n") {
		var b bytes.Buffer
		_ = json.Compact(&b, data) // valid, see above; a chunk must be one line when it is sent to the caller
		data = b.Bytes()
	}
	return data, mended, nil
}

// eventRelay is the sink of the wires whose streams are events.
type eventRelay struct {
	run      *run
	wire     messages.Wire
	show     bool // the caller reads events and no stage holds them back
	chain    []pipeline.ChunkFilter
	texts    map[events.Key]*filtered
	order    []events.Key
	pieces   [][]byte
	size     int
	waiting  [][]byte // nothing was shown yet
	tail     []json.RawMessage
	released bool
	complete bool
	token    bool
	mended   bool
}

// filtered is a text that goes through filters.
type filtered struct {
	shown  strings.Builder
	edited bool
	like   []byte // its newest delta
}

func newEventRelay(r *run) *eventRelay {
	s := &eventRelay{run: r, wire: r.pair.Client, show: r.call.Stream, texts: map[events.Key]*filtered{}}
	if s.show {
		s.chain, s.show = stream.ChunkFilters(r.call, r.Filters, r.Log)
	}
	return s
}

func (s *eventRelay) end() {}

func (s *eventRelay) state() sinkState {
	return sinkState{token: s.token, complete: s.complete, released: s.released, choices: len(s.pieces) > 0,
		pieces: len(s.pieces)}
}

func (s *eventRelay) add(data []byte, name string) error {
	data, mended, err := s.run.checked(data, name)
	if err != nil {
		return err
	}
	s.mended = s.mended || mended
	if s.run.standby {
		data = s.run.pair.Seal(data)
	}
	if s.size += len(data); s.size > maxReply {
		return s.run.badReply("its stream is longer than %d bytes", maxReply)
	}
	if events.Ephemeral(data) {
		return s.pass(data)
	}
	s.pieces = append(s.pieces, data)
	s.token = s.token || events.Says(data)
	if events.Ends(data) {
		s.complete = s.complete || events.Last(data)
		if _, has := rawjson.Field(data, "response"); has {
			data = rawjson.SetField(data, "response", []byte("null")) // the final reply takes the place
		}
		if s.run.call.Stream {
			s.tail = append(s.tail, data)
		}
		return nil
	}
	return s.pass(data)
}

// pass sends an event through the filters and on. Before a text is closed, what the filters hold back of it goes out.
func (s *eventRelay) pass(e []byte) error {
	if !s.show {
		return nil
	}
	if len(s.chain) > 0 {
		if item := events.Closes(e); item >= 0 {
			if err := s.flush(item); err != nil {
				return err
			}
		}
		_, had, delta := events.Delta(e)
		e = events.Texts(e, func(at events.Key, whole bool, text string) string { return s.text(e, at, whole, text) })
		if _, left, _ := events.Delta(e); delta && had != "" && left == "" {
			return nil
		}
	}
	return s.send(e)
}

// text filters one text of an event.
func (s *eventRelay) text(e []byte, at events.Key, whole bool, text string) string {
	if at.Kind == events.Signed || at.Kind == events.Signature {
		return text // a client must give it back as it is
	}
	f := s.texts[at]
	if f == nil {
		f = &filtered{}
		s.texts[at], s.order = f, append(s.order, at)
	}
	if whole {
		if f.edited {
			return f.shown.String()
		}
		return text
	}
	if strings.HasSuffix(events.Name(e), "delta") {
		f.like = e
	}
	out := stream.PassText(s.chain, chunkKey(at), text)
	f.edited = f.edited || out != text
	f.shown.WriteString(out)
	return out
}

// chunkKey is a text's place as filters know it: what the model says, arguments, or a text beside.
func chunkKey(at events.Key) pipeline.ChunkKey {
	place := at.Item<<10 | at.Part
	switch at.Kind {
	case events.Answer:
		return pipeline.ChunkKey{Choice: place, Tool: -1}
	case events.Args:
		return pipeline.ChunkKey{Tool: at.Item}
	}
	return pipeline.ChunkKey{Choice: place, Tool: -1 - int(at.Kind)}
}

func (s *eventRelay) flush(item int) error {
	for _, at := range s.order {
		f := s.texts[at]
		if at.Item != item || f.like == nil {
			continue
		}
		rest := stream.FlushText(s.chain, chunkKey(at))
		if rest == "" {
			continue
		}
		f.shown.WriteString(rest)
		if err := s.send(events.WithDelta(f.like, rest)); err != nil {
			return err
		}
	}
	return nil
}

// send sends an event once something was said, and what waited before it.
func (s *eventRelay) send(e []byte) error {
	if !s.released && !events.Says(e) {
		s.waiting = append(s.waiting, e)
		return nil
	}
	if !s.released {
		s.released = true
		s.run.share.halt()
	}
	out := append(s.waiting, e)
	s.waiting = nil
	for _, e := range out {
		if err := s.run.emit(e); err != nil {
			return fmt.Errorf("emit: %w", err)
		}
	}
	return nil
}

func (s *eventRelay) whole(bool) bool { return s.complete }

func (s *eventRelay) settle() error {
	reply, err := events.Assemble(s.wire, s.pieces)
	if err != nil {
		return s.run.badReply("%s", err)
	}
	s.run.settled(reply, s.tail, s.mended)
	return nil
}

// settled sets the reply of a stream and notes its end.
func (r *run) settled(reply []byte, tail []json.RawMessage, mended bool) {
	r.call.SetReply(reply)
	if mended {
		r.call.Note(messages.NoteDegraded, "invalid_utf8")
		r.Log.Warn("a stream had bytes that are not UTF-8; they were replaced", "call", r.call.ID,
			"provider", r.provider.Name)
	}
	if len(tail) > 0 {
		r.call.Note(messages.NoteStreamTail, tail)
	}
}

// translated is a sink for the pieces of a provider that speaks another wire.
type translated struct {
	sink
	run      *run
	via      *translate.Stream
	size     int
	complete bool
	count    int
}

func (t *translated) add(data []byte, name string) error {
	data, _, err := t.run.checked(data, name)
	if err != nil {
		return err
	}
	if t.size += len(data); t.size > maxReply {
		return t.run.badReply("its stream is longer than %d bytes", maxReply)
	}
	t.count++
	for _, p := range t.via.Add(data) {
		if err := t.sink.add(p, events.Name(p)); err != nil {
			return err
		}
	}
	t.complete = t.complete || events.Last(data) || chatFinished(data)
	return nil
}

// chatFinished reports whether a chunk ends the only choice.
func chatFinished(chunk []byte) bool {
	raw, _ := rawjson.Field(chunk, "choices")
	for _, c := range rawjson.Elements(raw) {
		if of := readChoice(c); of.index == 0 && of.finishes {
			return true
		}
	}
	return false
}

func (t *translated) whole(bool) bool { return t.complete }

func (t *translated) state() sinkState {
	s := t.sink.state()
	s.complete, s.choices, s.pieces = t.complete, t.count > 0, t.count
	return s
}

func (t *translated) settle() error {
	for _, p := range t.via.End() {
		if err := t.sink.add(p, events.Name(p)); err != nil {
			return err
		}
	}
	return t.sink.settle()
}
