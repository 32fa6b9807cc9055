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

// resultStream takes the signs of life and the chunks of one run of a tool and sends what the caller may see now to the
// process that accepted the call. Nothing is sent after end, but by finish: the call then belongs to whoever passes it
// on. Executors may use it from any goroutine.
type resultStream struct {
	progress bool // the caller asked for signs of life
	show     bool // the caller reads chunks and no stage holds them back
	wordless bool // a stage rewrites results: signs of life go without their texts, which no stage sees
	filters  []pipeline.ChunkFilter

	mu    sync.Mutex
	emit  pipeline.Emit
	over  bool
	given bool // there were chunks
	join  chat.TextJoiner
	text  strings.Builder // all chunks
	shown bool            // a part of the text was sent
}

// alive sends a sign of life.
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
	_ = s.emit(chat.ToolProgress(what)) // a lost sign of life is no failure
}

// numbers is what may be said of a sign of life where a stage rewrites results: how far the tool is, if it says that.
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
		s.show = false // nobody takes them any more; the result is whole at the end
	}
}

// end stops the executor's access: it may still be on its way out.
func (s *resultStream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
}

// begun reports whether the tool has given a piece of its result: then it has run, whatever it says later.
func (s *resultStream) begun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.given
}

// complete makes a result of which chunks were given whole. A result that says something else than its chunks is a
// failure where a part of them was shown, and stands where nobody saw them.
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
		return messages.NewFault(messages.ToolError, "the result of tool '%s' does not begin with the chunks that it gave before; give chunks only, or the whole text too", tool)
	default:
		s.show = false
	}
	return nil
}

// reply puts a streamed result into the call, and sends what the filters have held back of it.
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
