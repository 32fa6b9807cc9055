package stream

import (
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
)

// ToolFollower is the Follower of a tool call: it decides which pieces of the result's text, and which signs of life, a
// caller sees (contracts 8). The chunks that it returns are chat.ToolChunk and chat.ToolProgress. The zero value
// is ready.
type ToolFollower struct {
	source
	shown strings.Builder
}

// Released reports whether the caller has seen a part of the result. Signs of life are none.
func (f *ToolFollower) Released() bool { return f.shown.Len() > 0 }

// Delta takes the next delta and returns the chunks to write now, one or none.
func (f *ToolFollower) Delta(d pipeline.Delta) [][]byte {
	if ok, _ := f.admit(d, f.Released()); !ok {
		return nil
	}
	text, ok := chat.ToolChunkText(d.Chunk)
	if ok && text == "" {
		return nil
	}
	f.shown.WriteString(text)
	return [][]byte{d.Chunk}
}

// End takes the finished call and returns the chunk of the text that was not shown yet, and the fault that ends the
// stream instead of a result. Joined, the chunks of a success are its result; a result that is JSON and of which nothing
// was shown has no chunks. A fault before anything was released is the call's own; later it is stream_cut, but for an
// unknown outcome, which must be read as one (contracts 10).
func (f *ToolFollower) End(c *messages.Call) ([][]byte, *messages.Fault) {
	out, text, ok := c.ReplyPlain()
	rest, prefix := strings.CutPrefix(out, f.shown.String())
	switch {
	case c.Fault != nil && (!f.Released() || c.Fault.Code == messages.StreamCut || c.Fault.Code == messages.OutcomeUnknown):
		return nil, c.Fault
	case c.Fault != nil:
		return nil, ToolCut(c.Fault)
	case !ok:
		return nil, messages.NewFault(messages.Internal, "the call %s ended without a reply", c.ID).From("entry")
	case !prefix:
		return nil, f.other(c)
	case rest == "" || !f.Released() && !text:
		return nil, nil
	}
	return [][]byte{chat.ToolChunk(rest)}, nil
}

// other is the fault of a result that does not begin with what was shown.
func (f *ToolFollower) other(c *messages.Call) *messages.Fault {
	var of struct {
		Code    messages.Code `json:"code"`
		Message string        `json:"message"`
	}
	if c.Noted(messages.NoteToolFault, &of) && of.Message != "" {
		return ToolCut(messages.NewFault(of.Code, "%s", of.Message))
	}
	return messages.NewFault(messages.StreamCut, "the final result of the tool differs from the part that had been sent; drop that part").From(messages.TargetOrigin)
}

// ToolCut is the fault of a tool's result that broke after a part of it had been sent; f is why. Nothing acts on it, so
// that nothing runs again and nothing else stands in for it.
func ToolCut(f *messages.Fault) *messages.Fault {
	if f.Code == messages.StreamCut {
		return f
	}
	cut := messages.NewFault(messages.StreamCut, "the call failed with %s after a part of the result had been sent: %s", f.Code, f.Message)
	cut.Last, cut.RetryAfter, cut.Headers, cut.Param = f.Code, f.RetryAfter, f.Headers, f.Param
	return cut.From(messages.TargetOrigin)
}
