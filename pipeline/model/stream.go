package model

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// readStream reads the chunks of a reply until its end. A stream is whole when each choice has its finish reason;
// [DONE] alone proves nothing, and its absence nothing either.
//
// An error after the last finish reason is ignored: nothing of the reply is missing.
func (r *run) readStream(ctx context.Context, clock *clock, body io.Reader) error {
	s := r.sink()
	defer s.end()
	idle := r.idle()
	events := chat.NewEventReader(body, maxEvent, func() {
		if at := s.state(); at.token && !at.complete {
			clock.set(r.times.Idle, idle)
		}
	})
	for {
		ev, err := events.Next()
		if err != nil {
			return r.endStream(ctx, s, err)
		}
		for _, data := range pieces(ev.Data) {
			if string(data) == "[DONE]" {
				return r.endStream(ctx, s, io.EOF)
			}
			if err := s.add(data, ev.Name); err != nil {
				if _, theirs := errors.AsType[*messages.Fault](err); theirs && s.state().complete {
					return s.settle()
				}
				return r.broken(s, err)
			}
			if at := s.state(); at.complete {
				clock.set(min(r.times.Idle, doneGrace), idle)
			} else if at.token {
				clock.set(r.times.Idle, idle)
			}
		}
	}
}

// pieces splits an event in which each data line is a chunk: some providers leave out the blank lines between them.
func pieces(data []byte) [][]byte {
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return nil
	}
	if !bytes.ContainsRune(data, '\n') || messages.IsJSON(data) {
		return [][]byte{data}
	}
	var out [][]byte
	for line := range bytes.SplitSeq(data, []byte{'\n'}) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			out = append(out, line)
		}
	}
	return out
}

func (r *run) endStream(ctx context.Context, s sink, err error) error {
	clean := errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF)
	if s.whole(clean) {
		return s.settle()
	}
	switch why := ended(ctx); {
	case why != nil:
		return r.broken(s, why)
	case errors.Is(err, chat.ErrTooLong), errors.Is(err, errCoding):
		return r.broken(s, r.badReply("its stream cannot be read (%s)", err))
	case clean && !s.state().choices:
		return r.badReply("its stream held no choice")
	case clean:
		f := messages.NewFault(messages.ProviderError, "provider %s ended the stream without a finish reason",
			r.provider.Name)
		return r.broken(s, r.provider.explain(f, "ended the stream after %d chunks without a finish reason",
			s.state().pieces))
	}
	f := messages.NewFault(messages.ProviderError, "provider %s broke the stream", r.provider.Name)
	return r.broken(s, r.provider.explain(f, "broke the stream after %d chunks: %s", s.state().pieces, err))
}

// broken is the fault of a stream that broke: once something was released it is stream_cut, on which no stage acts;
// before, it is the provider's own fault, so that a standby can take over.
func (r *run) broken(s sink, err error) error {
	f, ok := errors.AsType[*messages.Fault](err)
	if !ok || !s.state().released {
		return err
	}
	cut := messages.NewFault(messages.StreamCut, "the stream broke after a part of the reply had been sent: %s",
		f.Message)
	cut.Last, cut.RetryAfter, cut.Headers, cut.Detail = f.Code, f.RetryAfter, f.Headers, f.Reason()
	return cut
}

// relay takes the raw chunks of one run, passes on what may be seen now, and puts the reply together.
type relay struct {
	run      *run
	show     bool // the caller reads chunks and no stage holds them back
	filters  *filters
	reply    chat.Assembly
	newest   []byte // of the chunks
	count    int    // of them
	size     int
	waiting  [][]byte // chunks that say nothing yet
	released bool
	tail     []json.RawMessage
	expected int            // choices asked for
	open     map[int64]bool // choices seen: true while they have no finish reason
	finished int
	sawToken bool // something other than a role came
	complete bool // all expected choices are finished
	mended   bool // bytes that are not UTF-8 were replaced

	mu      sync.Mutex  // of all above, and of emit: the hold may end while a chunk is read
	hold    *time.Timer // since something waits
	overdue bool        // the hold is over: nothing waits any more
	lost    error       // of sending what had waited
}

func newRelay(r *run) *relay {
	s := &relay{run: r, show: r.call.Stream, expected: 1, open: map[int64]bool{}}
	raw, _ := rawjson.Field(r.body, "n")
	if n, ok := rawjson.Int(raw); ok && n > 1 {
		s.expected = int(n)
	}
	if s.show {
		s.filters, s.show = r.makeFilters()
	}
	return s
}

// add takes one chunk.
func (s *relay) add(data []byte, eventName string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil {
		return s.lost
	}
	data, mended, err := s.run.checked(data, eventName)
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
	s.take(data)
	choices := choicesOf(data)
	if len(choices) == 0 {
		s.keepTail(data)
		return nil
	}
	body, tail := s.split(data, choices)
	if body != nil {
		if err := s.pass(body); err != nil {
			return err
		}
	}
	for _, c := range choices {
		if c.finishes && s.open[c.index] {
			s.open[c.index] = false
			s.finished++
			if err := s.flush(c.index); err != nil {
				return err
			}
		}
	}
	s.complete = s.finished >= s.expected && s.finished == len(s.open)
	if tail != nil {
		s.keepTail(tail)
	}
	return nil
}

func (s *relay) keepTail(chunk []byte) {
	if s.run.call.Stream {
		s.tail = append(s.tail, chunk)
	}
}

// split divides a chunk into the part that may go out now and the part that ends choices, because the end is only sent
// when the final reply is known. A choice with both is in both. A chunk that is only one of them stays the same, byte
// for byte.
func (s *relay) split(chunk []byte, choices []choice) (body, tail []byte) {
	var now, end [][]byte
	for _, c := range choices {
		if _, known := s.open[c.index]; !known {
			s.open[c.index] = true
		}
		full := (c.finishes || !s.sawToken) && substance(c.delta)
		if full && !s.sawToken {
			s.sawToken, s.run.first = true, time.Since(s.run.began)
		}
		switch {
		case !c.finishes:
			now = append(now, c.raw)
		case !full:
			end = append(end, c.raw)
		default:
			now = append(now, rawjson.SetField(c.raw, "finish_reason", []byte("null")))
			end = append(end, rawjson.SetField(rawjson.DropField(c.raw, "logprobs"), "delta", []byte("{}")))
		}
	}
	if len(end) == 0 {
		return chunk, nil
	}
	if len(now) == 0 {
		return nil, chunk
	}
	body = chunk
	if usage, ok := rawjson.Field(chunk, "usage"); ok && !rawjson.IsNull(usage) {
		body = rawjson.SetField(chunk, "usage", []byte("null")) // it belongs to the end
	}
	return rawjson.SetField(body, "choices", rawjson.Array(now)), rawjson.SetField(chunk, "choices", rawjson.Array(end))
}

// pass sends a chunk through the filters, and holds it back until the model has said something.
func (s *relay) pass(chunk []byte) error {
	if !s.show {
		return nil
	}
	if s.filters != nil {
		var ok bool
		if chunk, ok = s.filters.chunk(chunk); !ok {
			s.show = false // the filters cannot read this form of text: nothing more goes out before the end
			s.waiting = nil
			return nil
		}
		if chunk == nil {
			return nil
		}
	}
	says := !s.released && chat.Says(chunk)
	if !s.released && !says && !s.overdue && (s.filters != nil || !chat.Thinks(chunk)) {
		s.waiting = append(s.waiting, chunk)
		if s.hold == nil {
			s.hold = time.AfterFunc(s.run.times.FirstTokenHold, s.unhold)
		}
		return nil
	}
	if says {
		s.release()
	}
	return s.send(chunk)
}

// unhold sends what has waited long enough for the model to say something.
func (s *relay) unhold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.overdue = true; s.show && s.lost == nil {
		s.lost = s.send()
	}
}

// end stops the hold; nothing is sent after it but by who calls.
func (s *relay) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = nil
	if s.hold != nil {
		s.hold.Stop()
	}
}

// send sends the waiting chunks and these. Thoughts alone do not count as released: they are shown as they come, or
// after the hold where a stage filters the texts, and a standby may still take over.
func (s *relay) send(chunks ...[]byte) error {
	out := append(s.waiting, chunks...)
	s.waiting = nil
	for _, c := range out {
		if err := s.run.emit(c); err != nil {
			return fmt.Errorf("emit: %w", err)
		}
	}
	return nil
}

// release marks that the caller sees something from now on. No standby can take over any more, so the run may use all
// the time.
func (s *relay) release() {
	s.released = true
	s.run.share.halt()
}

// flush sends what the filters held back of a finished choice.
func (s *relay) flush(index int64) error {
	if !s.show || s.filters == nil {
		return nil
	}
	for _, delta := range s.filters.flush(index) {
		chunk := chat.Chunk(s.newest, index, delta, nil)
		s.release()
		if err := s.send(chunk); err != nil {
			return err
		}
	}
	return nil
}

func (s *relay) state() sinkState {
	return sinkState{token: s.sawToken, complete: s.complete, released: s.released, choices: len(s.open) > 0,
		pieces: s.count}
}

// whole reports whether nothing of the reply is missing. If the stream broke, it is complete only if all requested
// choices are finished.
func (s *relay) whole(clean bool) bool {
	return s.complete || clean && s.finished > 0 && s.finished == len(s.open)
}

// take adds a chunk to the reply.
func (s *relay) take(chunk []byte) {
	s.reply.Add(chunk)
	s.newest = chunk
	s.count++
}

// settle sets the call's reply.
func (s *relay) settle() error {
	reply, err := s.reply.Reply()
	if err != nil {
		return s.run.badReply("%s", err)
	}
	s.run.settled(reply, s.tail, s.mended)
	return nil
}

// substance reports whether a delta has more than a role and empty values.
func substance(delta []byte) bool {
	found := false
	rawjson.EachField(delta, func(key string, v []byte) {
		switch string(v) {
		case "null", `""`, "[]", "{}":
		default:
			found = found || key != "role"
		}
	})
	return found
}

// choice is one choice of a chunk.
type choice struct {
	raw, delta []byte
	index      int64
	finishes   bool // it has a finish reason
}

func choicesOf(chunk []byte) (out []choice) {
	raw, _ := rawjson.Field(chunk, "choices")
	for _, one := range rawjson.Elements(raw) {
		out = append(out, readChoice(one))
	}
	return out
}

// readChoice reads a choice in one pass, because a stream has many.
func readChoice(raw []byte) choice {
	c := choice{raw: raw}
	rawjson.EachField(raw, func(key string, v []byte) {
		switch key {
		case "delta":
			c.delta = v
		case "index":
			c.index, _ = rawjson.Int(v)
		case "finish_reason":
			c.finishes = !rawjson.IsNull(v) && string(v) != `""`
		}
	})
	return c
}
