package natsapi

import (
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
