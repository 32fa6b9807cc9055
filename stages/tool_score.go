package stages

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/stages/internal/conversation"
)

// toolView is one element of a request's tools, with what it is judged by.
type toolView struct {
	raw         []byte
	name        string
	description string
}

// readTools reads the tools of a request: functions, custom tools, and those that carry their name themselves.
func readTools(raw []byte) []toolView {
	elems := rawjson.Elements(raw)
	out := make([]toolView, len(elems))
	for i, e := range elems {
		body := e
		for _, key := range []string{"function", "custom"} {
			if inner, ok := rawjson.Field(e, key); ok {
				body = inner
				break
			}
		}
		out[i].raw = e
		out[i].name, _ = rawjson.FieldString(body, "name")
		out[i].description, _ = rawjson.FieldString(body, "description")
	}
	return out
}

// chosen returns the tools that tool_choice names: one tool, or the list of allowed ones.
func chosen(request []byte) map[string]bool {
	raw, _ := rawjson.Field(request, "tool_choice")
	names := map[string]bool{}
	add := func(raw []byte) {
		for _, t := range readTools(rawjson.Array([][]byte{raw})) {
			if t.name != "" {
				names[t.name] = true
			}
		}
	}
	if len(raw) == 0 || raw[0] != '{' {
		return names
	}
	add(raw)
	if allowed, ok := rawjson.Field(raw, "allowed_tools"); ok {
		raw = allowed
	}
	list, _ := rawjson.Field(raw, "tools")
	for _, e := range rawjson.Elements(list) {
		add(e)
	}
	return names
}

// lastMessages is how many messages at the end of a conversation may name a tool.
const lastMessages = 8

// inUse adds the tools that the conversation works with: those it has called, and those that its last messages name.
func inUse(keep map[string]bool, msgs []view.Msg, tools []toolView) {
	for _, m := range msgs {
		for _, call := range m.ToolCalls() {
			keep[call.Name()] = true
		}
		if call, ok := rawjson.Field(m.Raw, "function_call"); ok {
			name, _ := rawjson.FieldString(call, "name")
			keep[name] = true
		}
		if role := m.Role(); role == "tool" || role == "function" {
			name, _ := rawjson.FieldString(m.Raw, "name")
			keep[name] = true
		}
	}
	for _, m := range msgs[max(0, len(msgs)-lastMessages):] {
		if m.System() {
			continue
		}
		text := m.Text()
		for _, tool := range tools {
			if !keep[tool.name] && names(text, tool.name) {
				keep[tool.name] = true
			}
		}
	}
}

// names reports whether a text holds a name as a word of its own.
func names(text, name string) bool {
	if name == "" {
		return false
	}
	for from := 0; ; {
		i := strings.Index(text[from:], name)
		if i < 0 {
			return false
		}
		i += from
		before, _ := utf8.DecodeLastRuneInString(text[:i])
		after, _ := utf8.DecodeRuneInString(text[i+len(name):])
		if !inName(before) && !inName(after) {
			return true
		}
		from = i + len(name)
	}
}

// inName reports whether a rune may be a part of a tool's name; letters of scripts without blanks may not.
func inName(r rune) bool {
	word := unicode.IsLetter(r) || unicode.IsDigit(r)
	return r == '_' || r != utf8.RuneError && word && !conversation.SpacelessScript(r)
}

// Points for the full name of a tool, for each part of the name, and for each word of the description.
const (
	pointsName = 10
	pointsPart = 3
	pointsWord = 2
)

// toolScorer scores tools against one message.
type toolScorer struct {
	text   string
	fold   bool
	spaces bool
	seen   map[string]bool // words looked up already: descriptions share most of theirs
}

func newToolScorer(c ToolSelectionConfig, text string) *toolScorer {
	s := &toolScorer{text: text, fold: !c.CaseSensitive, spaces: c.DescriptionWords == "spaces", seen: map[string]bool{}}
	if s.fold {
		s.text = strings.ToLower(text)
	}
	return s
}

// score adds up what of a tool the message contains: its full name, each part of the name, each word of the
// description. A part or a word that comes twice in one tool counts once.
func (s *toolScorer) score(name, description string) int {
	n := 0
	if s.has(name) {
		n += pointsName
	}
	n += pointsPart * s.hits(nameParts(name))
	words := descriptionWords
	if s.spaces {
		words = strings.Fields
	}
	return n + pointsWord*s.hits(words(description))
}

func (s *toolScorer) hits(words []string) int {
	n := 0
	once := make(map[string]bool, len(words))
	for _, w := range words {
		if s.fold {
			w = strings.ToLower(w)
		}
		if !once[w] {
			once[w] = true
			if s.has(w) {
				n++
			}
		}
	}
	return n
}

func (s *toolScorer) has(word string) bool {
	if word == "" {
		return false
	}
	if s.fold {
		word = strings.ToLower(word)
	}
	hit, ok := s.seen[word]
	if !ok {
		hit = strings.Contains(s.text, word)
		s.seen[word] = hit
	}
	return hit
}

// nameParts splits a tool name where a camel-case word begins and at everything that is neither letter nor digit:
// getURLInfo gives get, URL, Info; send_mail gives send, mail.
func nameParts(name string) []string {
	var parts []string
	r := []rune(name)
	from := 0
	cut := func(to int) {
		if to > from {
			parts = append(parts, string(r[from:to]))
		}
		from = to
	}
	for i, c := range r {
		switch {
		case !unicode.IsLetter(c) && !unicode.IsDigit(c):
			cut(i)
			from = i + 1
		case i > from && unicode.IsUpper(c) && !unicode.IsUpper(r[i-1]):
			cut(i)
		case i > from && unicode.IsLower(c) && unicode.IsUpper(r[i-1]) && i-1 > from:
			cut(i - 1)
		}
	}
	cut(len(r))
	return parts
}

// descriptionWords splits a description at everything that is not a letter. A run of CJK letters is one word, and a
// word of its own where it touches other letters.
func descriptionWords(text string) []string {
	var words []string
	from, wide := -1, false
	for i, c := range text {
		letter := unicode.IsLetter(c) || from >= 0 && unicode.IsMark(c)
		w := letter && conversation.SpacelessScript(c)
		if from >= 0 && (!letter || w != wide && !unicode.IsMark(c)) {
			words = append(words, text[from:i])
			from = -1
		}
		if letter && from < 0 {
			from, wide = i, w
		}
	}
	if from >= 0 {
		words = append(words, text[from:])
	}
	return words
}

// ToolScore is the score of one tool for one message under a configuration, for those who want to see why a tool was or
// was not offered.
func ToolScore(c ToolSelectionConfig, text, name, description string) int {
	return newToolScorer(c, text).score(name, description)
}
