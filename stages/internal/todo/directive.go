// Package todo reads the directives with which a model edits its list, in whole texts and in streams. It knows no
// stage.
package todo

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/todolist"
)

// maxDirective is the longest directive in characters, brackets included. What is longer stays in the text.
const maxDirective = 1024

// Mark is in every directive.
const Mark = "TODO_"

var openers = [...]struct{ verb, text string }{{"ADD", "[TODO_ADD:"}, {"UPDATE", "[TODO_UPDATE:"}}

// Directive is one directive as it stood in the text.
type Directive struct{ Verb, Body string }

// Scanner takes the directives out of one text that may come in pieces. It is the only reader of directives: the
// whole text in after and the pieces of a stream pass it alike, so both give the same text.
type Scanner struct {
	held  string
	Found []Directive // grows only if Collect is set
	// Collect keeps what was found; a stream only strips.
	Collect bool
}

// Text takes the next piece and returns what is certain to be visible. Held back is only an open directive, or what
// may become the beginning of one.
func (s *Scanner) Text(piece string) string { return s.scan(s.held+piece, false) }

// Flush returns what was held back: at the end of a text nothing open can become a directive.
func (s *Scanner) Flush() string { return s.scan(s.held, true) }

func (s *Scanner) scan(text string, final bool) string {
	var out strings.Builder
	s.held = ""
	end := -1 // of the line or directive that holds i; found once, not for each opener
	for i := 0; i < len(text); {
		j := strings.IndexByte(text[i:], '[')
		if j < 0 {
			out.WriteString(text[i:])
			break
		}
		out.WriteString(text[i : i+j])
		i += j
		verb, after, partial := opened(text[i:])
		if partial && !final {
			s.held = text[i:]
			break
		}
		if verb == "" {
			out.WriteByte('[')
			i++
			continue
		}
		if from := i + after; end < from {
			if k := strings.IndexAny(text[from:], "]\r\n"); k >= 0 {
				end = from + k
			} else {
				end = len(text)
			}
		}
		body := text[i:end]
		switch {
		case tooLong(body):
			out.WriteByte('[') // no directive begins here; one may begin further on
			i++
		case end < len(text) && text[end] == ']':
			if s.Collect {
				s.Found = append(s.Found, Directive{verb, body[after:]})
			}
			i = end + 1
		case end == len(text) && !final:
			s.held = text[i:]
			return out.String()
		default: // the line ends first: nothing that begins on it is a directive
			out.WriteString(body)
			i = end
		}
	}
	return out.String()
}

// opened says which directive the text opens, and how long the opener is. partial means that the text is too short
// to tell.
func opened(text string) (verb string, length int, partial bool) {
	for _, o := range openers {
		if strings.HasPrefix(text, o.text) {
			return o.verb, len(o.text), false
		}
		if strings.HasPrefix(o.text, text) {
			partial = true
		}
	}
	return "", 0, partial
}

// tooLong reports whether text, and the bracket that is to close it, are more than a directive may have.
//
// It counts the bytes that begin a character, so a piece that ends within one is counted no other than the whole.
func tooLong(text string) bool {
	if len(text) < maxDirective {
		return false
	}
	n := 0
	for i := range len(text) {
		if text[i]&0xC0 != 0x80 {
			if n++; n >= maxDirective {
				return true // no further: the text may be long
			}
		}
	}
	return false
}

// Filter strips directives from streamed texts; tool-call arguments pass untouched.
type Filter struct {
	Off   bool // the call has no session
	Texts map[pipeline.ChunkKey]*Scanner
}

var _ pipeline.ChunkFilter = (*Filter)(nil)

// Text implements pipeline.ChunkFilter.
func (f *Filter) Text(at pipeline.ChunkKey, piece string) string {
	if f.Off || at.Tool != -1 { // directives stand in the answer, not in calls or thoughts
		return piece
	}
	s := f.Texts[at]
	if s == nil {
		s = &Scanner{}
		f.Texts[at] = s
	}
	return s.Text(piece)
}

// Flush implements pipeline.ChunkFilter.
func (f *Filter) Flush(at pipeline.ChunkKey) string {
	if s := f.Texts[at]; s != nil {
		return s.Flush()
	}
	return ""
}

// Edit is what a directive asks for, or why it cannot be done.
type Edit struct {
	Title   string // of an ADD
	Cut     bool   // the title was longer than a title may be
	ID      int64  // of an UPDATE
	Status  string
	Invalid string
}

// Parse reads the directive's fields. Everything a model may write gives an edit or a reason, never an error.
func (d Directive) Parse() Edit {
	if d.Verb == "ADD" {
		whole, ok := titleField(d.Body)
		title := todolist.Title(whole)
		if !ok || title == "" {
			return Edit{Invalid: "the title is missing or empty"}
		}
		return Edit{Title: title, Cut: utf8.RuneCountInString(strings.TrimSpace(whole)) >= todolist.MaxTitle}
	}
	fields := map[string]string{}
	for _, pair := range strings.FieldsFunc(d.Body, func(r rune) bool { return r == ',' || r == '，' }) {
		if k, v, ok := strings.Cut(pair, "="); ok {
			fields[strings.TrimSpace(k)] = strings.TrimSpace(v)
		}
	}
	id, err := strconv.ParseInt(strings.TrimPrefix(fields["id"], "#"), 10, 64)
	if err != nil {
		return Edit{Invalid: fmt.Sprintf("id %q is not a number", todolist.Clip(fields["id"], 40))}
	}
	status := todolist.Status(fields["status"])
	if !status.Valid() {
		said := todolist.Clip(fields["status"], 40)
		return Edit{Invalid: fmt.Sprintf("status %q is none of %s", said, todolist.StatusNames)}
	}
	return Edit{ID: id, Status: string(status)}
}

// titleField takes everything after title=, so a title may hold commas and equals signs.
func titleField(body string) (string, bool) {
	for rest := body; ; {
		k, v, ok := strings.Cut(rest, "=")
		if !ok {
			return "", false
		}
		if i := strings.LastIndexByte(k, ','); i >= 0 {
			k = k[i+1:]
		}
		if strings.TrimSpace(k) == "title" {
			return v, true
		}
		rest = v
	}
}
