package stages_test

import (
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
)

func depsWith(s pipeline.Store) stages.Deps {
	return stages.Deps{Store: func(string) pipeline.Store { return s }}
}

func callIn(session, request string) *messages.Call {
	c := messages.NewCall(messages.Model, "t1", []byte(request))
	c.Session = session
	return c
}

const helloBody = `{"model":"m","temperature":0,"big":9007199254740993,"messages":[{"role":"system",` +
	`"content":"Be kind."},{"role":"user","content":"hello"}]}`

func replyWith(texts ...string) []byte {
	type m struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	type ch struct {
		Index   int `json:"index"`
		Message m   `json:"message"`
	}
	var out []ch
	for i, s := range texts {
		out = append(out, ch{i, m{"assistant", s}})
	}
	return rawjson.Encode(map[string]any{"choices": out})
}

func textOf(c *messages.Call, choice int) string {
	return chat.Choices(c.Reply())[choice].Message().Text()
}

// throughFilter passes a text through a chunk filter, cut at the given sizes.
func throughFilter(f pipeline.ChunkFilter, at pipeline.ChunkKey, text string, sizes []int) string {
	var out strings.Builder
	for i := 0; len(text) > 0; i++ {
		n := len(text)
		if len(sizes) > 0 {
			n = min(n, sizes[i%len(sizes)])
		}
		out.WriteString(f.Text(at, text[:n]))
		text = text[n:]
	}
	out.WriteString(f.Flush(at))
	return out.String()
}
