package toolbox

import (
	"encoding/json"
	"strings"
	"sync"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

// resultKey is the one text of a tool's stream.
var resultKey = pipeline.ChunkKey{Tool: -1}

// resultStream takes the progress messages and the chunks of one run of a tool and sends what the caller may see now to
// the process that accepted the call. After end, only finish sends: the call then belongs to the process that continues
// it. Executors may use it from any goroutine.
type resultStream struct {
	progress bool // the caller asked for progress
	show     bool // the caller reads chunks and no stage holds them back
	wordless bool // a stage rewrites results: progress goes without its texts, which no stage sees
	filters  []pipeline.ChunkFilter

	mu    sync.Mutex
	emit  pipeline.Emit
	over  bool
	given bool // there were chunks
	join  chat.TextJoiner
	text  strings.Builder // all chunks
	shown bool            // a part of the text was sent
}

// alive sends a progress message.
func (s *resultStream) alive(what json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.progress || s.over || !json.Valid(what) {
		return
	}
	if s.wordless {
		var far bool
		if what, far = numbers(what); !far {
			return
		}
	}
	_ = s.emit(chat.ToolProgress(what)) // losing progress is not a failure
}

// numbers keeps only the numbers of a progress message, for calls on whose way a stage rewrites results. far is false
// if it has none.
func numbers(what json.RawMessage) (out json.RawMessage, far bool) {
	out = json.RawMessage("{}")
	for _, key := range []string{"progress", "total"} {
		if v, ok := rawjson.Field(what, key); ok && len(v) > 0 && (v[0] == '-' || v[0] >= '0' && v[0] <= '9') {
			out, far = rawjson.SetField(out, key, v), far || key == "progress"
		}
	}
	return out, far
}

// chunk takes the next piece of the result.
func (s *resultStream) chunk(piece string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || piece == "" {
		return
	}
	s.given = true
	s.add(s.join.Add(piece))
}

func (s *resultStream) add(text string) {
	s.text.WriteString(text)
	if s.show {
		s.send(stream.PassText(s.filters, resultKey, text))
	}
}

func (s *resultStream) send(text string) {
	if text == "" {
		return
	}
	s.shown = true
	if s.emit(chat.ToolChunk(text)) != nil {
		s.show = false // nothing takes them any more; the result is whole at the end
	}
}

// end ends the executor's access, because it may run on for a while.
func (s *resultStream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
}

// begun reports whether the tool has given a piece of its result. Then it has run, whatever it says later.
func (s *resultStream) begun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.given
}

// complete adds the chunks to a result that was given in chunks. A result that differs from its chunks is a failure if
// a part of them was shown, and replaces them if nobody saw them.
func (s *resultStream) complete(tool string, r *Result) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.given {
		return nil
	}
	if len(r.Content) == 0 {
		s.add(s.join.End())
		r.Content, r.streamed = []byte(s.text.String()), true
		return nil
	}
	whole := strings.ToValidUTF8(string(r.Content), "\uFFFD")
	rest, ok := strings.CutPrefix(whole, s.text.String())
	switch {
	case ok:
		s.join = chat.TextJoiner{}
		s.add(rest)
		r.Content, r.streamed = []byte(whole), true
	case s.shown && r.IsError:
		return messages.NewFault(messages.ToolError, "tool '%s' failed: %s", tool, Short(whole))
	case s.shown:
		return messages.NewFault(messages.ToolError, "the result of tool '%s' does not begin with the chunks "+
			"that it gave before; give chunks only, or the whole text too", tool)
	default:
		s.show = false
	}
	return nil
}

// reply puts a streamed result into the call and sends what the filters have held back.
func (s *resultStream) reply(c *messages.Call, content string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.SetReply([]byte(content))
	if !s.show && !s.shown {
		return
	}
	if out, text, _ := c.ReplyPlain(); !text && (out != content || out[0] != '{' && out[0] != '[') {
		c.SetReplyText(content) // what was shown must be its beginning
	}
	if rest := stream.FlushText(s.filters, resultKey); s.show {
		s.send(rest)
	}
}
