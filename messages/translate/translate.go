// Package translate turns the bodies of one wire into those of another: requests from the client's wire to the
// provider's, replies and streams back. Each field is mapped, dropped and said, or refused by name; nothing is lost in
// silence. It is pure: the same input gives the same output, so prompts keep their prefix from call to call.
package translate

import (
	"slices"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
)

// Pair says between which wires, and for whom.
type Pair struct {
	// Client is the wire of the caller, Provider that of whoever answers.
	Client, Provider messages.Wire
	// Owner names who answers: provider and model. Signed and encrypted reasoning goes back to its owner alone.
	Owner string
	// ID is the id of the call. Ids of replies and their items are made of it, so a run that is repeated gives the
	// same.
	ID string
	// Created is the time of the call in seconds since 1970, for the replies that are made here.
	Created int64
	// OutputLimit stands in for the limit that the messages wire demands; 0 means 8192.
	OutputLimit int64
	// OldLimit has chat requests say max_tokens, which servers other than OpenAI's read, in place of its successor.
	OldLimit bool
}

const defaultLimit = 8192

// Request translates a request. dropped names the fields that the provider's wire cannot say, sorted. The error is a
// *messages.Fault that names the field without which the request would mean something else.
func (p Pair) Request(body []byte) (out []byte, dropped []string, err error) {
	if p.Client.Or() == p.Provider.Or() {
		return body, nil, nil
	}
	r := &request{pair: p, model: view.ModelName(body)}
	switch p.Client.Or() {
	case messages.ResponsesWire:
		r.fromResponses(body)
	case messages.MessagesWire:
		r.fromMessages(body)
	default:
		r.fromChat(body)
	}
	r.tidy()
	r.sound()
	switch p.Provider.Or() {
	case messages.ResponsesWire:
		out = r.toResponses()
	case messages.MessagesWire:
		out = r.toMessages()
	default:
		out = r.toChat()
	}
	if r.refused != nil {
		return nil, nil, r.refused
	}
	slices.Sort(r.dropped)
	return out, slices.Compact(r.dropped), nil
}

// Reply translates a whole reply of the provider to the client's wire. The request is the client's own. The error says
// that the reply is not of the provider's wire.
func (p Pair) Reply(request, reply []byte) ([]byte, error) {
	if p.Client.Or() == p.Provider.Or() {
		return reply, nil
	}
	s := p.Stream(request)
	var out [][]byte
	for _, e := range events.Replay(p.Provider.Or(), []byte(`{"stream_options":{"include_usage":true}}`), reply) {
		out = append(out, s.Add(e)...)
	}
	return events.Assemble(p.Client.Or(), append(out, s.End()...))
}

// Stream translates the pieces of one stream as they come. Usage is told whether or not the client asked for it: the
// stages want to know. One goroutine uses it.
type Stream struct {
	from decoder
	to   encoder
}

// decoder reads the pieces of a provider's stream.
type decoder interface{ read(piece []byte) []delta }

// encoder writes the pieces of the client's stream. It emits the end of the reply at end, when usage has come too.
type encoder interface {
	write(d delta) [][]byte
	end() [][]byte
}

// Stream begins the translation of a stream. The request is the client's own.
func (p Pair) Stream(request []byte) *Stream {
	s := &Stream{}
	switch p.Provider.Or() {
	case messages.ResponsesWire:
		s.from = &responsesReader{pair: p}
	case messages.MessagesWire:
		s.from = &messagesReader{pair: p}
	default:
		s.from = &chatReader{pair: p}
	}
	names := readNames(p.Client.Or(), request)
	switch p.Client.Or() {
	case messages.ResponsesWire:
		s.to = newResponsesWriter(p, request, names)
	case messages.MessagesWire:
		s.to = newMessagesWriter(p, request, names)
	default:
		s.to = newChatWriter(p, request, names)
	}
	return s
}

// Add takes the next piece of the provider and returns those of the client, often none.
func (s *Stream) Add(piece []byte) (out [][]byte) {
	for _, d := range s.from.read(piece) {
		out = append(out, s.to.write(d)...)
	}
	return out
}

// End returns the pieces that end the client's stream, once the provider's has ended well.
func (s *Stream) End() [][]byte { return s.to.end() }

func integer(obj []byte, key string) int {
	n, _ := rawjson.Int(rawjson.At(obj, key))
	return int(n)
}

func flag(obj []byte, key string) bool { return string(rawjson.At(obj, key)) == "true" }

// obj writes an object of pairs of key and value; a []byte is raw JSON, and an empty one leaves its key out.
func obj(pairs ...any) []byte {
	out := []byte{'{'}
	for i := 0; i+1 < len(pairs); i += 2 {
		raw, ok := pairs[i+1].([]byte)
		if !ok {
			raw = rawjson.Encode(pairs[i+1])
		}
		if len(raw) == 0 {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, rawjson.Encode(pairs[i])...), ':'), raw...)
	}
	return append(out, '}')
}
