package stream

import (
	"bytes"
	"slices"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// sharedKeys are the fields that all chunks get from the first.
var sharedKeys = [...]string{"id", "created", "model"}

// part is what a chunk says of one choice.
type part struct {
	index int64
	delta []byte
}

// normal gives a chunk the id, created and model of the first, and an explicit null where a finish reason is missing.
// It returns the choices too, because each look at a chunk costs: a stream has many.
func (f *Follower) normal(chunk []byte) (out []byte, parts []part) {
	var have [len(sharedKeys)][]byte
	var choices []byte
	rawjson.EachField(chunk, func(key string, raw []byte) {
		if key == "choices" {
			choices = raw
		} else if i := slices.Index(sharedKeys[:], key); i >= 0 {
			have[i] = raw
		}
	})
	for i, key := range sharedKeys {
		if want := f.shared[i]; want != nil && !bytes.Equal(have[i], want) {
			chunk = rawjson.SetField(chunk, key, want)
		}
	}
	all := rawjson.Elements(choices)
	changed := false
	for i, c := range all {
		p, finish := part{}, false
		rawjson.EachField(c, func(key string, raw []byte) {
			switch key {
			case "index":
				p.index, _ = rawjson.Int(raw)
			case "delta":
				p.delta = raw
			case "finish_reason":
				finish = true
			}
		})
		parts = append(parts, p)
		if !finish {
			all[i], changed = rawjson.SetField(c, "finish_reason", []byte("null")), true
		}
	}
	if changed {
		chunk = rawjson.SetField(chunk, "choices", rawjson.Array(all))
	}
	return chunk, parts
}

// see remembers what the caller sees of a chunk.
func (f *Follower) see(parts []part) {
	for _, c := range parts {
		s := f.shown[c.index]
		if s == nil {
			s = &shownChoice{texts: map[string]*seenText{}, other: map[string]bool{}}
			f.shown[c.index] = s
		}
		rawjson.EachField(c.delta, func(key string, raw []byte) {
			text, isText := rawjson.IsString(raw)
			switch {
			case key == "role" || rawjson.IsNull(raw):
			case key == "tool_calls":
				for _, t := range rawjson.Elements(raw) {
					s.seeTool(t)
				}
			case isText:
				if s.texts[key] == nil {
					s.texts[key] = &seenText{}
				}
				s.texts[key].add(text)
			default:
				s.other[key] = true
			}
		})
	}
}

func (s *shownChoice) seeTool(raw []byte) {
	at := s.slots.At(raw)
	for len(s.tools) <= at {
		s.tools = append(s.tools, &shownTool{})
	}
	t, call := s.tools[at], chat.ToolCall{Raw: raw}
	if t.id == "" {
		t.id = call.ID()
	}
	if t.name == "" {
		t.name = call.Name()
	}
	t.args.add(call.Arguments())
}
