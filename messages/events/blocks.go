package events

import (
	"encoding/json"
	"strings"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// This file is about the messages wire.

func blockTexts(name string, event []byte, edit Edit) []byte {
	at := Key{Item: integer(event, "index")}
	switch name {
	case "content_block_start":
		return inside(event, "content_block", func(b []byte) []byte {
			key := "text"
			switch rawjson.Text(b, "type") {
			case "text":
			case "thinking":
				key, at.Kind = "thinking", Signed
			default:
				return b
			}
			return editField(b, key, func(s string) string { return edit(at, false, s) })
		})
	case "content_block_delta":
		return inside(event, "delta", func(d []byte) []byte {
			key := "text"
			switch rawjson.Text(d, "type") {
			case "text_delta":
			case "input_json_delta":
				key, at.Kind = "partial_json", Args
			case "thinking_delta":
				key, at.Kind = "thinking", Signed
			case "signature_delta":
				key, at.Kind = "signature", Signature
			default:
				return d
			}
			return editField(d, key, func(s string) string { return edit(at, false, s) })
		})
	}
	return event
}

// Of a message, what only its end tells.
var endFields = []string{"stop_reason", "stop_sequence", "stop_details", "container"}

func replayMessage(reply []byte) (out [][]byte) {
	content, ok := rawjson.Field(reply, "content")
	if !ok {
		return nil
	}
	begun, delta := rawjson.SetField(reply, "content", []byte("[]")), []byte("{}")
	for _, key := range endFields {
		if raw, has := rawjson.Field(reply, key); has {
			begun = rawjson.SetField(begun, key, []byte("null"))
			delta = rawjson.SetField(delta, key, raw)
		}
	}
	usage, ok := rawjson.Field(reply, "usage")
	if !ok || rawjson.IsNull(usage) {
		usage = []byte(`{"input_tokens":0,"output_tokens":0}`) // clients read both usages
		begun = rawjson.SetField(begun, "usage", usage)
	}
	out = append(out, object("message_start", "message", begun))
	for i, b := range rawjson.Elements(content) {
		out = append(out, replayBlock(b, i)...)
	}
	return append(out, object("message_delta", "delta", delta, "usage", usage), object("message_stop"))
}

func replayBlock(b []byte, index int) (out [][]byte) {
	begun := b
	var deltas [][]byte
	piece := func(kind, key string, raw []byte) {
		deltas = append(deltas, object("content_block_delta", "index", index, "delta", object(kind, key, raw)))
	}
	take := func(key, kind string) {
		if s := rawjson.Text(b, key); s != "" {
			begun = rawjson.SetFieldString(begun, key, "")
			piece(kind, key, rawjson.At(b, key))
		}
	}
	switch rawjson.Text(b, "type") {
	case "text":
		take("text", "text_delta")
		for _, c := range rawjson.Elements(rawjson.At(b, "citations")) {
			begun = rawjson.SetField(begun, "citations", []byte("[]"))
			piece("citations_delta", "citation", c)
		}
	case "thinking":
		take("thinking", "thinking_delta")
		take("signature", "signature_delta")
	case "tool_use", "server_tool_use":
		if input := rawjson.At(b, "input"); len(input) > 0 && string(input) != "{}" {
			begun = rawjson.SetField(begun, "input", []byte("{}"))
			piece("input_json_delta", "partial_json", rawjson.Encode(string(input)))
		}
	}
	out = append(out, object("content_block_start", "index", index, "content_block", begun))
	out = append(out, deltas...)
	return append(out, object("content_block_stop", "index", index))
}

// growing is one block while its deltas come in.
type growing struct {
	raw       []byte
	texts     map[string]*strings.Builder
	keys      []string
	json      strings.Builder
	citations [][]byte
}

func assembleMessage(pieces [][]byte) ([]byte, error) {
	var reply []byte
	var blocks []*growing
	at := map[int]*growing{}
	for _, p := range pieces {
		switch Name(p) {
		case "message_start":
			if reply == nil {
				reply = rawjson.At(p, "message")
			}
		case "content_block_start":
			g := &growing{raw: rawjson.At(p, "content_block"), texts: map[string]*strings.Builder{}}
			at[integer(p, "index")] = g
			blocks = append(blocks, g)
		case "content_block_delta":
			if g := at[integer(p, "index")]; g != nil {
				g.add(rawjson.At(p, "delta"))
			}
		case "message_delta":
			if reply != nil {
				reply = withEnd(reply, p)
			}
		}
	}
	if reply == nil {
		return nil, chat.ErrNoChunks
	}
	out := make([][]byte, len(blocks))
	for i, g := range blocks {
		out[i] = g.block()
	}
	return rawjson.SetField(reply, "content", rawjson.Array(out)), nil
}

// withEnd writes what a message_delta tells into the message. Its usage counts from the beginning, so it replaces.
func withEnd(reply, event []byte) []byte {
	rawjson.EachField(rawjson.At(event, "delta"), func(key string, raw []byte) {
		reply = rawjson.SetField(reply, key, raw)
	})
	rawjson.EachField(event, func(key string, raw []byte) {
		switch key {
		case "type", "delta":
		case "usage":
			usage := rawjson.At(reply, "usage")
			if rawjson.IsNull(usage) {
				usage = []byte("{}")
			}
			rawjson.EachField(raw, func(key string, raw []byte) {
				if _, had := rawjson.Field(usage, key); !had || !rawjson.IsNull(raw) {
					usage = rawjson.SetField(usage, key, raw)
				}
			})
			reply = rawjson.SetField(reply, "usage", usage)
		default:
			reply = rawjson.SetField(reply, key, raw)
		}
	})
	return reply
}

// add takes a delta in. Its texts grow the fields of their names, so that kinds of deltas that are not known yet add up
// too.
func (g *growing) add(delta []byte) {
	rawjson.EachField(delta, func(key string, raw []byte) {
		s, text := rawjson.IsString(raw)
		switch {
		case key == "type":
		case key == "partial_json":
			g.json.WriteString(s)
		case key == "citation":
			g.citations = append(g.citations, raw)
		case text:
			b := g.texts[key]
			if b == nil {
				b = &strings.Builder{}
				b.WriteString(rawjson.Text(g.raw, key))
				g.texts[key], g.keys = b, append(g.keys, key)
			}
			b.WriteString(s)
		default:
			g.raw = rawjson.SetField(g.raw, key, raw)
		}
	})
}

func (g *growing) block() []byte {
	b := g.raw
	for _, key := range g.keys {
		b = rawjson.SetFieldString(b, key, g.texts[key].String())
	}
	if s := g.json.String(); json.Valid([]byte(s)) {
		b = rawjson.SetField(b, "input", []byte(s))
	}
	if g.citations != nil {
		b = rawjson.SetField(b, "citations", rawjson.Array(append(rawjson.Elements(rawjson.At(b, "citations")),
			g.citations...)))
	}
	return b
}
