// Package stream decides what a caller may see of a call before its end: it follows the deltas of one source, and runs
// them through the chunk filters of the stages on the route. It does no input or output.
package stream

import (
	"encoding/json"
	"fmt"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// Follower decides what a caller sees of a streamed call: which deltas go out, and what is still to be written when the
// call has ended. The APIs use it. It does no input or output, and one goroutine uses it. The zero value is not ready;
// use NewFollower.
//
// It follows one source. A newer source replaces it as long as nothing was released; after that all others are ignored.
// Thoughts are shown as they come; they do not count as released. After a gap nothing more is released until End, which
// sends the rest of the final reply if what was shown is a prefix of it.
type Follower struct {
	source
	usage    bool
	waiting  [][]byte // chunks that say nothing yet
	released bool
	like     []byte // the first chunk that went out: all others get its id, created and model
	shared   [len(sharedKeys)][]byte
	shown    map[int64]*shownChoice
}

// shownChoice is what a caller has seen of one choice.
type shownChoice struct {
	texts map[string]*seenText // content, refusal and the other texts of the message
	other map[string]bool      // fields that are not text
	slots chat.ToolSlots
	tools []*shownTool
}

type shownTool struct {
	id, name string
	args     seenText
}

// NewFollower returns a follower for the caller's own request, which says whether they want the usage chunk.
func NewFollower(request []byte) *Follower {
	return &Follower{usage: chat.WantsUsage(request), shown: map[int64]*shownChoice{}}
}

// Released reports whether the caller has seen anything of the reply; thoughts do not count.
func (f *Follower) Released() bool { return f.released }

// Delta takes the next delta and returns the chunks to write now, mostly one or none.
func (f *Follower) Delta(d pipeline.Delta) [][]byte {
	ok, other := f.admit(d, f.released)
	if other || f.over {
		f.waiting = nil
	}
	if other {
		f.shown = map[int64]*shownChoice{} // thoughts of a run that failed
	}
	if !ok {
		return nil
	}
	if !f.released {
		if len(choicesOf(d.Chunk)) == 0 {
			return nil // usage and the like come at the end
		}
		f.released = chat.Says(d.Chunk)
		if !f.released && !chat.Thinks(d.Chunk) {
			f.waiting = append(f.waiting, d.Chunk)
			return nil
		}
	}
	chunks := append(f.waiting, d.Chunk)
	f.waiting = nil
	out := chunks[:0]
	for _, chunk := range chunks {
		if f.like == nil {
			f.like = bare(chunk)
			for i, key := range sharedKeys {
				f.shared[i], _ = rawjson.Field(f.like, key)
			}
		}
		chunk, choices := f.normal(chunk)
		if f.see(choices); len(choices) > 0 {
			out = append(out, chunk)
		}
	}
	return out
}

// source is the run of the target whose deltas are followed. The zero value is ready.
type source struct {
	name string
	last int             // number of the last delta that was taken
	over bool            // there was a gap: ignore the rest of this source
	past map[string]bool // sources that were replaced
}

// admit reports whether the delta is the next one of the followed source (ok), and whether the source has changed
// (other): a newer source takes over as long as nothing was released.
func (s *source) admit(d pipeline.Delta, released bool) (ok, other bool) {
	if d.Source != s.name {
		if released || s.past[d.Source] {
			return false, false
		}
		if s.name != "" {
			if s.past == nil {
				s.past = map[string]bool{}
			}
			s.past[s.name] = true
		}
		s.name, s.last, s.over, other = d.Source, 0, false, true
	}
	if s.over || d.N <= s.last {
		return false, other // after a gap, or a delta that came twice
	}
	if d.N > s.last+1 {
		s.over = true
		return false, other
	}
	s.last = d.N
	return true, other
}

// End takes the finished call and returns the chunks that are still to be written, and the fault that ends the stream
// instead of [DONE]. After a fault no chunk is to be written. If nothing was released, the fault is the call's own, so
// that the caller can still get an ordinary error; later it is stream_cut. End is called once.
func (f *Follower) End(c *messages.Call) ([][]byte, *messages.Fault) {
	reply := c.Reply()
	choices := chat.Choices(reply)
	switch {
	case c.Fault != nil && (!f.released || c.Fault.Code == messages.StreamCut):
		return nil, c.Fault
	case c.Fault != nil:
		return nil, cut(c.Fault.Code, "the call failed after a part of the reply had been sent: %s", c.Fault.Message)
	case len(choices) == 0:
		fault := messages.NewFault(messages.ProviderBadReply, "the reply has no choices, so it cannot be "+
			"streamed; ask without stream")
		if f.released {
			fault = cut(fault.Code, "%s", fault.Message)
		}
		return nil, fault.From(messages.TargetOrigin)
	case !f.released && len(f.shown) == 0:
		return chat.Replay(reply, f.usage), nil
	}
	var tail [][]byte
	var raw []json.RawMessage
	if c.Noted(messages.NoteStreamTail, &raw) {
		for _, r := range raw {
			tail = append(tail, r)
		}
	}
	var out [][]byte
	known := map[int64]bool{}
	for i, ch := range choices {
		index := indexOf(ch.Raw, int64(i))
		known[index] = true
		rest, ok := f.rest(index, ch.Message())
		if !ok {
			return nil, cut("", "the final reply differs from what had been sent of choice %d; ask again", index)
		}
		out = append(out, rest...)
	}
	for index := range f.shown {
		if !known[index] {
			return nil, cut("", "the final reply has no choice %d, of which a part had been sent; ask again", index)
		}
	}
	for i, ch := range choices {
		out = append(out, f.finish(indexOf(ch.Raw, int64(i)), ch, tail))
	}
	return append(out, f.usageChunk(reply, tail)...), nil
}

// rest returns chunks with the part of a choice that was not yet shown; ok is false if what was shown is not a prefix
// of it.
func (f *Follower) rest(index int64, m chat.Msg) (out [][]byte, ok bool) {
	seen := f.shown[index]
	if seen == nil {
		seen = &shownChoice{}
	}
	ok = true
	say := func(delta []byte) { out = append(out, chat.Chunk(f.like, index, delta, nil)) }
	if len(seen.texts) == 0 && len(seen.tools) == 0 && len(seen.other) == 0 {
		say(rawjson.SetFieldString([]byte("{}"), "role", orAssistant(m.Role())))
	}
	found := map[string]bool{}
	rawjson.EachField(m.Raw, func(key string, raw []byte) {
		found[key] = true
		if key == "role" || key == "tool_calls" || rawjson.IsNull(raw) {
			found[key] = key != "content" && key != "refusal"
			return
		}
		full, text := rawjson.IsString(raw)
		had := seen.texts[key]
		more, begins := had.rest(full)
		strict := key == "content" || key == "refusal"
		switch {
		case text && begins:
			if more != "" {
				say(rawjson.SetFieldString([]byte("{}"), key, more))
			}
		case strict && (text || !had.empty()):
			ok = false
		case !text && !seen.other[key] && had.empty():
			say(rawjson.SetField([]byte("{}"), key, raw))
		}
	})
	for _, key := range []string{"content", "refusal"} {
		if !seen.texts[key].empty() && !found[key] {
			ok = false
		}
	}
	calls := m.ToolCalls()
	if len(seen.tools) > len(calls) {
		return nil, false
	}
	for i, call := range calls {
		if i >= len(seen.tools) {
			say(rawjson.SetField([]byte("{}"), "tool_calls", rawjson.Array([][]byte{chat.Indexed(call.Raw, int64(i))})))
			continue
		}
		had := seen.tools[i]
		more, begins := had.args.rest(call.Arguments())
		if had.id != "" && had.id != call.ID() || had.name != "" && had.name != call.Name() ||
			!begins {
			return nil, false
		}
		if more != "" {
			say(toolRest(call, i, more))
		}
	}
	return out, ok
}

func toolRest(call chat.ToolCall, i int, more string) []byte {
	inner, field := "function", "arguments"
	if _, custom := rawjson.Field(call.Raw, "custom"); custom {
		inner, field = "custom", "input"
	}
	t := rawjson.SetField([]byte(fmt.Sprintf(`{"index":%d}`, i)), inner, rawjson.SetFieldString([]byte("{}"), field,
		more))
	return rawjson.SetField([]byte("{}"), "tool_calls", rawjson.Array([][]byte{t}))
}

// finish returns the chunk that ends a choice: the model's own if there is one, with the finish reason of the final
// reply.
func (f *Follower) finish(index int64, ch chat.Choice, tail [][]byte) []byte {
	reason, ok := rawjson.Field(ch.Raw, "finish_reason")
	if !ok || rawjson.IsNull(reason) {
		reason = []byte(`"stop"`)
	}
	for _, chunk := range tail {
		for _, c := range choicesOf(chunk) {
			if indexOf(c, 0) != index {
				continue
			}
			c = rawjson.SetField(rawjson.SetField(c, "delta", []byte("{}")), "finish_reason", reason)
			chunk, _ = f.normal(rawjson.SetField(chunk, "choices", rawjson.Array([][]byte{c})))
			return chunk
		}
	}
	return chat.Chunk(f.like, index, []byte("{}"), reason)
}

// usageChunk returns the usage chunk after the last choice, if the caller asked for it.
func (f *Follower) usageChunk(reply []byte, tail [][]byte) (out [][]byte) {
	if !f.usage {
		return nil
	}
	for _, chunk := range tail {
		u, ok := rawjson.Field(chunk, "usage")
		if normal, choices := f.normal(chunk); len(choices) == 0 {
			out = append(out, normal)
			if ok && !rawjson.IsNull(u) {
				return out
			}
		}
	}
	if u, ok := rawjson.Field(reply, "usage"); ok && !rawjson.IsNull(u) {
		return append(out, chat.UsageChunk(f.like, u))
	}
	return out
}

// bare returns the fields that all chunks of a stream share.
func bare(chunk []byte) []byte {
	return rawjson.DropField(rawjson.DropField(chunk, "usage"), "choices")
}

func choicesOf(chunk []byte) [][]byte {
	raw, _ := rawjson.Field(chunk, "choices")
	return rawjson.Elements(raw)
}

func indexOf(choice []byte, or int64) int64 {
	raw, _ := rawjson.Field(choice, "index")
	if n, ok := rawjson.Int(raw); ok {
		return n
	}
	return or
}

func orAssistant(role string) string {
	if role == "" {
		return "assistant"
	}
	return role
}
