package natsapi

import (
	"sync"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

// follower decides what a caller of a stream sees.
type follower interface {
	Released() bool
	Delta(d pipeline.Delta) [][]byte
	End(c *messages.Call) (chunks [][]byte, fault *messages.Fault)
}

func followerOf(kind messages.Kind, request []byte) follower {
	if kind == messages.Tool {
		return &stream.ToolFollower{}
	}
	return stream.NewFollower(request)
}

// beatEvery is how long a caller of a stream waits for a sign of life.
const beatEvery = 5 * time.Second

// streamed sends a streamed reply: one message for each chunk, and an empty one at the end. The first message names the
// call, so that the caller can cancel it or ask for its result.
type streamed struct {
	follower
	to, call string
	largest  int
	send     func(out *nats.Msg)
	// beat is what is sent where nothing else was for beatEvery; nil: nothing is.
	beat  []byte
	every time.Duration

	mu    sync.Mutex
	named bool
	ended bool
	timer *time.Timer
}

// heartbeat is a chunk of a chat stream that says nothing. A tool's stream has none: each of its messages is a part of
// the result.
func heartbeat(kind messages.Kind, call string, request []byte) []byte {
	if kind == messages.Tool {
		return nil
	}
	model, _ := rawjson.FieldString(request, "model")
	return rawjson.Encode(struct {
		ID      string     `json:"id"`
		Object  string     `json:"object"`
		Created int64      `json:"created"`
		Model   string     `json:"model"`
		Choices []struct{} `json:"choices"`
	}{call, "chat.completion.chunk", time.Now().Unix(), model, []struct{}{}})
}

// begin has signs of life sent until end.
func (s *streamed) begin() {
	if s.beat == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(s.every, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.ended {
			s.put(&nats.Msg{Subject: s.to, Header: nats.Header{"Shallot-Status": {"running"}}, Data: s.beat})
		}
	})
}

// put sends a message. The lock is held.
func (s *streamed) put(out *nats.Msg) {
	if s.timer != nil {
		s.timer.Reset(s.every)
	}
	if !s.named {
		s.named = true
		if out.Header == nil {
			out.Header = nats.Header{}
		}
		out.Header[hdrCall] = []string{s.call}
	}
	s.send(out)
}

// delta sends a piece of the reply.
func (s *streamed) delta(d pipeline.Delta) {
	if s.Released() {
		d.Marks = pipeline.Marks{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, out := range streamMessages(s.to, s.Delta(d), d.Marks, s.largest) {
		s.put(out)
	}
}

// last sends the last messages. Nothing is sent after them.
func (s *streamed) last(out ...*nats.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range out {
		s.put(m)
	}
	s.stop()
}

// cut ends the stream without a word: its caller is gone, or is answered from elsewhere.
func (s *streamed) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
}

func (s *streamed) stop() {
	if s.ended = true; s.timer != nil {
		s.timer.Stop()
	}
}

// streamMessages are the messages that carry chunks: the chunks of a model as they are, or the bare text of a tool's.
// Progress of a tool is not sent. The first message carries the marks.
func streamMessages(subject string, chunks [][]byte, marks pipeline.Marks, largest int) (out []*nats.Msg) {
	add := func(data []byte) {
		m := &nats.Msg{Subject: subject, Data: data}
		marks.Each(func(name, value string) {
			if m.Header == nil {
				m.Header = nats.Header{}
			}
			m.Header[name] = []string{headerValue(value)}
		})
		marks = pipeline.Marks{}
		out = append(out, m)
	}
	for _, chunk := range chunks {
		if text, ok := chat.ToolChunkText(chunk); ok {
			for _, piece := range chat.SplitText(text, max(largest, utf8.UTFMax)) {
				add([]byte(piece))
			}
			continue
		}
		if _, alive := rawjson.Field(chunk, "progress"); alive {
			continue
		}
		for _, piece := range chat.SplitChunk(chunk, largest) {
			add(piece)
		}
	}
	return out
}

// streamEnd are the last messages of a stream: the rest, the fault if there is one, and an empty message. For a tool's
// call the empty message has the answer headers, and the result is the data of all messages before it, also if it is
// JSON.
func streamEnd(subject string, f follower, c *messages.Call, largest int) []*nats.Msg {
	var marks pipeline.Marks
	if !f.Released() {
		c.Noted(messages.NoteDegraded, &marks.Degraded)
		marks.Edited = c.Edits()
	}
	begun := f.Released()
	chunks, fault := f.End(c)
	last := &nats.Msg{Subject: subject}
	if c.Kind == messages.Tool {
		if reply, text, ok := c.ReplyPlain(); fault == nil && ok && !text && !begun {
			chunks = [][]byte{chat.ToolChunk(reply)}
		}
		last.Header = nats.Header{}
		for k, v := range api.ResponseHeaders(c, time.Now()) {
			last.Header[k] = []string{headerValue(v)}
		}
	}
	out := streamMessages(subject, chunks, marks, largest)
	if fault != nil {
		out = append(out, refusal(subject, fault))
	}
	return append(out, last)
}
