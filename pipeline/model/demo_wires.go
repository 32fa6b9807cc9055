package model

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/translate"
)

// demoWires are all wires: the demonstration models answer in each as a provider of it would.
var demoWires = []messages.Wire{messages.ChatWire, messages.ResponsesWire, messages.MessagesWire}

func demoWire(path string) messages.Wire {
	switch {
	case strings.HasSuffix(path, "/responses"):
		return messages.ResponsesWire
	case strings.HasSuffix(path, "/messages"):
		return messages.MessagesWire
	}
	return messages.ChatWire
}

func demoID(model string, body []byte) string {
	return "demo-" + messages.Token(model+strconv.Itoa(len(body)))
}

// itemsID is what the ids of items are made of, by which a client may name them later: requests that differ share none.
func itemsID(body []byte) string {
	sum := sha256.Sum256(body)
	return "demo-" + hex.EncodeToString(sum[:8])
}

// demoIn answers on another wire than chat: the request and the answer are translated.
func demoIn(w messages.Wire, req *http.Request, body []byte) (*http.Response, error) {
	p := translate.Pair{Client: w, Provider: messages.ChatWire, Owner: DemoName, ID: itemsID(body),
		Created: demoCreated}
	ask, _, err := p.Request(body)
	if f, ok := errors.AsType[*messages.Fault](err); ok {
		return demoError(w, req, respond(req, http.StatusBadRequest, "application/json", f.Body()))
	}
	res, err := demoChat(req, ask)
	if err != nil {
		return res, err
	}
	if res.StatusCode != http.StatusOK {
		return demoError(w, req, res)
	}
	if res.Header.Get("Content-Type") == "text/event-stream" {
		res.Body = &demoEvents{from: chat.NewEventReader(res.Body, maxEvent, nil), via: p.Stream(body), body: res.Body}
		return res, nil
	}
	whole, err := io.ReadAll(res.Body)
	if err == nil {
		whole, err = p.Reply(body, whole)
	}
	if err != nil { // it breaks within its answer, as it was asked to
		res.Body = &demoStream{ctx: req.Context(), events: [][]byte{[]byte("{")}, cut: true}
		return res, nil
	}
	res.Body = io.NopCloser(bytes.NewReader(whole))
	return res, nil
}

// demoError has an error in the shape of the wire.
func demoError(w messages.Wire, req *http.Request, res *http.Response) (*http.Response, error) {
	body, err := io.ReadAll(res.Body)
	if err != nil || w != messages.MessagesWire {
		res.Body = io.NopCloser(bytes.NewReader(body))
		return res, err
	}
	e := parseError(body)
	out := respond(req, res.StatusCode, "application/json", rawjson.Encode(map[string]any{"type": "error",
		"error": map[string]string{"type": orText(e.kind, "api_error"), "message": e.message}}))
	for key, values := range res.Header {
		if key != "Content-Type" {
			out.Header[key] = values
		}
	}
	return out, nil
}

// demoEvents translates a stream while it is read.
type demoEvents struct {
	from *chat.EventReader
	via  *translate.Stream
	body io.Closer
	rest []byte
	end  error
}

func (d *demoEvents) Read(p []byte) (int, error) {
	for len(d.rest) == 0 {
		if d.end != nil {
			return 0, d.end
		}
		ev, err := d.from.Next()
		switch {
		case err != nil:
			d.end = err
		case string(ev.Data) == "[DONE]":
			d.put(d.via.End())
			d.end = io.EOF
		default:
			d.put(d.via.Add(ev.Data))
		}
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

func (d *demoEvents) put(pieces [][]byte) {
	for _, e := range pieces {
		d.rest = append(append(append(append(d.rest, "event: "...), events.Name(e)...), '\n'), sseData(e)...)
	}
}

func (d *demoEvents) Close() error { return d.body.Close() }
