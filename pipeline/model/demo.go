package model

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// The demonstration models. They answer in this process, without a key or a network. The code is the same as for a real
// provider, except for the HTTP round trip. The same request always gets the same answer.
const (
	DemoName   = "demo"
	DemoPrefix = "demo/"

	DemoEcho  = "demo/echo"  // answers with the newest user text
	DemoSlow  = "demo/slow"  // the same, word by word with a pause
	DemoTools = "demo/tools" // calls the first tool, and answers with its result
	DemoFail  = "demo/fail"  // fails as the newest user text says: fail 429, fail cut 3, fail timeout
	DemoLong  = "demo/long"  // a long answer, to try limits and streams
)

// demoPause is the pause between two words of demo/slow.
const demoPause = 60 * time.Millisecond

// demoCreated is the time in all answers, so that the same request gives the same bytes.
const demoCreated = 1700000000

// Demo is the provider of the demonstration models.
func Demo() Provider {
	return Provider{
		Name: DemoName, BaseURL: "http://demo.invalid/v1", Client: demo{}, KeyEnv: "none",
		Models: []string{DemoEcho, DemoSlow, DemoTools, DemoFail, DemoLong, DemoEmbed}, Wires: demoWires,
	}
}

type demo struct{}

// Do answers a request as a provider would.
func (demo) Do(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	if strings.HasSuffix(req.URL.Path, "/models") {
		return respond(req, http.StatusOK, "application/json", []byte(`{"object":"list","data":[]}`)), nil
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(req.URL.Path, "/embeddings") {
		return demoEmbeddings(req, body)
	}
	if w := demoWire(req.URL.Path); w != messages.ChatWire {
		return demoIn(w, req, body)
	}
	return demoChat(req, body)
}

// demoChat answers on the chat wire.
func demoChat(req *http.Request, body []byte) (*http.Response, error) {
	a := demoAnswer{model: chat.ModelName(body), n: 1, finish: "stop"}
	a.id = "chatcmpl-" + demoID(a.model, body)
	if raw, ok := rawjson.Field(body, "n"); ok {
		if n, ok := rawjson.Int(raw); ok && n > 0 && n <= 16 {
			a.n = int(n)
		}
	}
	msgs := chat.Messages(body)
	text := ""
	if i := chat.NewestUser(msgs); i >= 0 {
		text = msgs[i].Text()
	}
	a.text = text
	for _, m := range msgs {
		a.prompt += words(m.Text())
	}
	switch a.model {
	case DemoSlow:
		a.pause = demoPause
	case DemoLong:
		a.text = strings.TrimSpace(strings.Repeat("An onion has layers, and a call passes each of them twice. ", 200))
	case DemoTools:
		a.useTools(body, msgs, text)
	case DemoFail:
		if res, done, err := a.fail(req, text); done {
			return res, err
		}
	}
	return a.respond(req, body), nil
}

// demoAnswer is an answer before it is written as a reply or as a stream.
type demoAnswer struct {
	id, model, text string
	tools           [][]byte // raw tool calls
	finish          string
	n, prompt       int
	pause           time.Duration
	cut             int // chunks with text after which the connection breaks; 0 for never
}

func (a *demoAnswer) reply() []byte {
	var choices [][]byte
	for i := range a.n {
		msg := []byte(`{"role":"assistant","content":null,"refusal":null}`)
		if a.text != "" || len(a.tools) == 0 {
			msg = rawjson.SetFieldString(msg, "content", a.text)
		}
		if len(a.tools) > 0 {
			msg = rawjson.SetField(msg, "tool_calls", rawjson.Array(a.tools))
		}
		c := rawjson.SetField(fmt.Appendf(nil, `{"index":%d}`, i), "message", msg)
		c = rawjson.SetField(c, "logprobs", []byte("null"))
		choices = append(choices, rawjson.SetFieldString(c, "finish_reason", a.finish))
	}
	out := words(a.text) * a.n
	for _, t := range a.tools {
		out += words(chat.ToolCall{Raw: t}.Arguments()) * a.n
	}
	r := fmt.Appendf(nil, `{"id":%s,"object":"chat.completion","created":%d,"model":%s}`, rawjson.Encode(a.id),
		demoCreated, rawjson.Encode(a.model))
	r = rawjson.SetField(r, "choices", rawjson.Array(choices))
	return rawjson.SetField(r, "usage", fmt.Appendf(nil, `{"prompt_tokens":%d,"completion_tokens":%d,`+
		`"total_tokens":%d}`, a.prompt, out, a.prompt+out))
}

func (a *demoAnswer) respond(req *http.Request, body []byte) *http.Response {
	stream, _ := rawjson.Field(body, "stream")
	if string(stream) != "true" {
		reply := a.reply()
		if a.cut > 0 {
			res := respond(req, http.StatusOK, "application/json", nil)
			res.Body = &demoStream{ctx: req.Context(), events: [][]byte{reply[:len(reply)/2]}, cut: true}
			return res
		}
		if a.pause > 0 {
			res := respond(req, http.StatusOK, "application/json", nil)
			res.Body = &demoStream{ctx: req.Context(), events: [][]byte{nil, reply},
				pause: a.pause * time.Duration(words(a.text))}
			return res
		}
		return respond(req, http.StatusOK, "application/json", reply)
	}
	s := &demoStream{ctx: req.Context(), pause: a.pause}
	said := 0
	for _, chunk := range a.chunks(chat.WantsUsage(body)) {
		s.events = append(s.events, sseData(chunk))
		if chat.Says(chunk) {
			said++
		}
		if a.cut > 0 && said == a.cut {
			s.cut = true
			break
		}
	}
	if !s.cut {
		s.events = append(s.events, []byte("data: [DONE]\n\n"))
	}
	res := respond(req, http.StatusOK, "text/event-stream", nil)
	res.Body = s
	return res
}

// chunks writes the answer word by word; the texts of several choices interleave as with a real model.
func (a *demoAnswer) chunks(usage bool) [][]byte {
	var out [][]byte
	reply := a.reply()
	var rows [][][]byte
	for _, chunk := range chat.Replay(reply, usage) {
		raw, _ := rawjson.Field(chunk, "choices")
		elems := rawjson.Elements(raw)
		if len(elems) == 0 {
			rows = append(rows, [][]byte{chunk})
			continue
		}
		index := readChoice(elems[0]).index
		delta, _ := rawjson.Field(elems[0], "delta")
		content, _ := rawjson.FieldString(delta, "content")
		for len(rows) <= int(index) {
			rows = append(rows, nil)
		}
		if content == "" {
			rows[index] = append(rows[index], chunk)
			continue
		}
		for _, w := range strings.SplitAfter(content, " ") {
			if w != "" {
				rows[index] = append(rows[index], chat.Chunk(reply, index, rawjson.SetFieldString([]byte("{}"),
					"content", w), nil))
			}
		}
	}
	last := rows
	if usage {
		last = rows[:len(rows)-1]
	}
	for i := 0; ; i++ {
		more := false
		for _, row := range last {
			if i < len(row) {
				out, more = append(out, row[i]), true
			}
		}
		if !more {
			break
		}
	}
	for _, row := range rows[len(last):] {
		out = append(out, row...)
	}
	return out
}

func sseData(chunk []byte) []byte {
	return append(append([]byte("data: "), chunk...), "\n\n"...)
}

// words counts tokens: to the demonstration models, a token is a word.
func words(text string) int { return len(strings.Fields(text)) }

func respond(req *http.Request, status int, kind string, body []byte) *http.Response {
	return &http.Response{
		StatusCode: status, Status: strconv.Itoa(status) + " " + http.StatusText(status), Proto: "HTTP/1.1",
		ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(bytes.NewReader(body)), Request: req,
	}
}

// demoStream is a body that comes in pieces, with pauses between them, until the request's context ends.
type demoStream struct {
	ctx    context.Context //nolint:containedctx // a body lives as long as its request
	events [][]byte
	pause  time.Duration
	cut    bool // ends like a broken connection
	begun  bool
	rest   []byte
}

// Read waits for the next piece.
func (s *demoStream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if err := s.ctx.Err(); err != nil {
			return 0, err
		}
		if len(s.events) == 0 {
			if s.cut {
				return 0, io.ErrUnexpectedEOF
			}
			return 0, io.EOF
		}
		if s.pause > 0 && s.begun {
			t := time.NewTimer(s.pause)
			select {
			case <-t.C:
			case <-s.ctx.Done():
				t.Stop()
				return 0, s.ctx.Err()
			}
		}
		s.begun = true
		s.rest, s.events = s.events[0], s.events[1:]
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// Close does nothing: the stream has no goroutine.
func (s *demoStream) Close() error { return nil }
