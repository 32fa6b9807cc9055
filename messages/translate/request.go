package translate

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// request is what all wires can say, between two of them.
type request struct {
	pair   Pair
	model  string
	system []part
	turns  []turn
	tools  []tool
	choice toolChoice
	params params

	dropped []string
	refused *messages.Fault
}

// turn is what one role says at a time: user (results of tools among it), assistant, or system within a conversation.
type turn struct {
	role  string
	parts []part
}

type partKind byte

const (
	text partKind = iota
	refusal
	image
	file
	audio
	thought
	call
	result
)

// part is one piece of a turn. Of the fields, those of its kind count.
type part struct {
	kind  partKind
	text  string
	media media
	cache string // time to live of a cache breakpoint after this part: 5m or 1h

	id, name string // of a call, and of the call that a result answers
	args     string // JSON of an object, or the free text of a custom tool
	custom   bool
	failed   bool   // a result that is an error
	inner    []part // of a result
	raw      []byte // reasoning as the provider made it, or the audio part
}

// media is an image or a file: by URL, by its bytes in base64, or by the id that a provider gave it.
type media struct {
	url, kind, data, id string
	name, detail        string
}

// tool is a tool's definition.
type tool struct {
	name, description string
	schema            []byte
	strict            []byte
	custom            bool
	format            []byte // of a custom tool's text
	cache             string
}

// toolChoice is auto, none, any or tool; empty: the request does not say.
type toolChoice struct {
	mode, name string
	allowed    []string // only these may be called
	serial     bool     // one call at a time
	parallel   bool     // the request says that several may be called
}

// drop notes fields that the provider's wire cannot say.
func (r *request) drop(names ...string) { r.dropped = append(r.dropped, names...) }

// refuse notes that the request cannot be translated; the first reason counts.
func (r *request) refuse(param, format string, args ...any) {
	if r.refused == nil {
		why := fmt.Sprintf(format, args...)
		r.refused = messages.NewFault(messages.InvalidRequest, "%s: %s; the model's provider speaks the %s wire",
			param, why, r.pair.Provider.Or()).At(param).From("translate")
	}
}

// tidy brings the turns into the form that every wire takes: neighbours of one role together, no empty texts.
func (r *request) tidy() {
	var out []turn
	for _, t := range r.turns {
		var parts []part
		for _, p := range t.parts {
			if p.kind == text && p.text == "" {
				continue
			}
			parts = append(parts, p)
		}
		if len(parts) == 0 {
			continue
		}
		if n := len(out) - 1; n >= 0 && out[n].role == t.role && t.role != "system" {
			out[n].parts = append(out[n].parts, parts...)
			continue
		}
		out = append(out, turn{t.role, parts})
	}
	r.turns = out
}

// sound refuses what no wire can mean.
func (r *request) sound() {
	if (r.choice.mode == "any" || r.choice.mode == "tool") && len(r.tools) == 0 {
		r.refuse("tool_choice", "there is no tool to choose")
	}
	for _, t := range r.turns {
		r.hasMedia(t.parts)
		for _, p := range t.parts {
			r.hasMedia(p.inner)
		}
	}
	if n := len(r.turns); r.pair.Client == messages.MessagesWire && n > 0 && r.turns[n-1].role == "assistant" {
		r.drop("messages: the beginning of the answer") // others take it for an answer that is over
	}
}

// hasMedia refuses images and files of which only the frame is there.
func (r *request) hasMedia(parts []part) {
	for _, p := range parts {
		empty := p.media.link() == "" && p.media.id == ""
		switch {
		case p.kind == image && empty:
			r.refuse("image", "an image without a picture: give its address, its bytes or its id")
		case p.kind == file && empty:
			r.refuse("file", "a file without content: give its address, its bytes or its id")
		}
	}
}

// limited reads a limit of tokens. One that allows none would be no limit on other wires.
func (r *request) limited(body []byte, key string) int64 {
	raw := rawjson.At(body, key)
	n, ok := rawjson.Int(raw)
	if !rawjson.IsNull(raw) && (!ok || n < 1) {
		r.refuse(key, "a limit must be a whole number of 1 or more")
	}
	return n
}

// leftover says which fields of a body were not read.
func (r *request) leftover(body []byte, known map[string]bool) {
	rawjson.EachField(body, func(key string, raw []byte) {
		if !known[key] && !rawjson.IsNull(raw) {
			r.drop(key)
		}
	})
}

func names(list ...string) map[string]bool {
	out := map[string]bool{}
	for _, n := range list {
		out[n] = true
	}
	return out
}

// dataURL splits a data URL into type and base64 text.
func dataURL(url string) (kind, data string, ok bool) {
	rest, ok := strings.CutPrefix(url, "data:")
	if !ok {
		return "", "", false
	}
	kind, data, ok = strings.Cut(rest, ",")
	kind, is64 := strings.CutSuffix(kind, ";base64")
	return kind, data, ok && is64
}

func mediaOf(url string) media {
	if kind, data, ok := dataURL(url); ok {
		return media{kind: kind, data: data}
	}
	return media{url: url}
}

// link is the URL of a media, its bytes as a data URL.
func (m media) link() string {
	if m.data != "" {
		kind := m.kind
		if kind == "" {
			kind = "application/octet-stream"
		}
		return "data:" + kind + ";base64," + m.data
	}
	return m.url
}

// callID fits the id of a call to the provider: letters, digits, - and _, at most 64. The same id always becomes the
// same, so that calls and results stay together.
func callID(id string) string {
	const most = 64
	clean := strings.Map(func(c rune) rune {
		if c == '-' || c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
			return c
		}
		return '_'
	}, id)
	if clean == id && len(id) <= most && id != "" {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	tail := "_" + hex.EncodeToString(sum[:6])
	return clean[:min(len(clean), most-len(tail))] + tail
}

// arguments are those of a call as a JSON object: empty text is an empty one, and text that is none is wrapped.
func (p part) object() []byte {
	s := strings.TrimSpace(p.args)
	switch {
	case p.custom:
		return obj("input", p.args)
	case s == "":
		return []byte("{}")
	case s[0] == '{' && json.Valid([]byte(s)):
		return []byte(s)
	}
	return obj("input", p.args)
}

// arguments are those of a call as text.
func (p part) argText() string {
	if p.custom || strings.TrimSpace(p.args) == "" {
		return string(p.object())
	}
	return p.args
}

// texts joins the texts of parts.
func texts(parts []part) string {
	var out []string
	for _, p := range parts {
		if p.kind == text || p.kind == refusal {
			out = append(out, p.text)
		}
	}
	return strings.Join(out, "\n")
}

func only(parts []part, kinds ...partKind) bool {
	for _, p := range parts {
		ok := false
		for _, k := range kinds {
			ok = ok || p.kind == k
		}
		if !ok {
			return false
		}
	}
	return true
}

// cached returns the breakpoint of a part in the words of the messages wire.
func cached(ttl string) []byte {
	switch ttl {
	case "":
		return nil
	case "5m":
		return []byte(`{"type":"ephemeral"}`)
	}
	return obj("type", "ephemeral", "ttl", ttl)
}

// cacheOf reads a cache_control, or a prompt_cache_breakpoint.
func cacheOf(p []byte) string {
	if c := rawjson.At(p, "cache_control"); len(c) > 0 && c[0] == '{' {
		if rawjson.Text(c, "ttl") == "1h" {
			return "1h"
		}
		return "5m"
	}
	if c := rawjson.At(p, "prompt_cache_breakpoint"); len(c) > 0 && c[0] == '{' {
		if rawjson.Text(c, "ttl") == "12h" {
			return "1h"
		}
		return "5m"
	}
	return ""
}
