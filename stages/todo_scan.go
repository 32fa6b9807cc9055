package stages

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/pipeline"
)

// todoMax is the longest directive in characters, brackets included (contracts 21). Longer text is no directive.
const todoMax = 1024

var todoOpeners = [...]struct{ verb, text string }{{"ADD", "[TODO_ADD:"}, {"UPDATE", "[TODO_UPDATE:"}}

// todoDirective is one directive as it stood in the text.
type todoDirective struct{ verb, body string }

// todoScanner takes the directives out of one text that may come in pieces. It is the only reader of directives: the
// whole text in after and the pieces of a stream pass it alike, so both give the same text (contracts 21).
type todoScanner struct {
	held  string
	found []todoDirective // grows only if collect is set
	// collect keeps what was found; a stream only strips.
	collect bool
}

// text takes the next piece and returns what is certain to be visible. Held back is only an open directive, or what
// may become the beginning of one.
func (s *todoScanner) text(piece string) string { return s.scan(s.held+piece, false) }

// flush returns what was held back: at the end of a text nothing open can become a directive.
func (s *todoScanner) flush() string { return s.scan(s.held, true) }

func (s *todoScanner) scan(text string, final bool) string {
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
		verb, after, partial := todoOpen(text[i:])
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
		case todoTooLong(body):
			out.WriteByte('[') // no directive begins here; one may begin further on
			i++
		case end < len(text) && text[end] == ']':
			if s.collect {
				s.found = append(s.found, todoDirective{verb, body[after:]})
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

// todoOpen says which directive the text opens, and how long the opener is. partial means that the text is too short
// to tell.
func todoOpen(text string) (verb string, length int, partial bool) {
	for _, o := range todoOpeners {
		if strings.HasPrefix(text, o.text) {
			return o.verb, len(o.text), false
		}
		if strings.HasPrefix(o.text, text) {
			partial = true
		}
	}
	return "", 0, partial
}

// todoTooLong reports whether text, and the bracket that is to close it, are more than a directive may have.
//
// It counts the bytes that begin a character, so a piece that ends within one is counted no other than the whole.
func todoTooLong(text string) bool {
	if len(text) < todoMax {
		return false
	}
	n := 0
	for i := range len(text) {
		if text[i]&0xC0 != 0x80 {
			if n++; n >= todoMax {
				return true // no further: the text may be long
			}
		}
	}
	return false
}

// todoFilter strips directives from streamed texts; tool-call arguments pass untouched.
type todoFilter struct {
	off   bool // the call has no session
	texts map[pipeline.ChunkKey]*todoScanner
}

var _ pipeline.ChunkFilter = (*todoFilter)(nil)

// Text implements pipeline.ChunkFilter.
func (f *todoFilter) Text(at pipeline.ChunkKey, piece string) string {
	if f.off || at.Tool >= 0 {
		return piece
	}
	s := f.texts[at]
	if s == nil {
		s = &todoScanner{}
		f.texts[at] = s
	}
	return s.text(piece)
}

// Flush implements pipeline.ChunkFilter.
func (f *todoFilter) Flush(at pipeline.ChunkKey) string {
	if s := f.texts[at]; s != nil {
		return s.flush()
	}
	return ""
}

// todoEdit is what a directive asks for, or why it cannot be done.
type todoEdit struct {
	title   string // of an ADD
	id      int64  // of an UPDATE
	status  string
	invalid string
}

// parse reads the directive's fields. Everything a model may write gives an edit or a reason, never an error.
func (d todoDirective) parse() todoEdit {
	if d.verb == "ADD" {
		title, ok := todoTitleField(d.body)
		if title = todoTitle(title); !ok || title == "" {
			return todoEdit{invalid: "the title is missing or empty"}
		}
		return todoEdit{title: title}
	}
	fields := map[string]string{}
	for _, pair := range strings.FieldsFunc(d.body, func(r rune) bool { return r == ',' || r == '，' }) {
		if k, v, ok := strings.Cut(pair, "="); ok {
			fields[strings.TrimSpace(k)] = strings.TrimSpace(v)
		}
	}
	id, err := strconv.ParseInt(strings.TrimPrefix(fields["id"], "#"), 10, 64)
	if err != nil {
		return todoEdit{invalid: fmt.Sprintf("id %q is no number", todoCut(fields["id"], 40))}
	}
	status := TodoStatus(fields["status"])
	if !status.Valid() {
		return todoEdit{invalid: fmt.Sprintf("status %q is none of %s", todoCut(fields["status"], 40), todoStatusNames)}
	}
	return todoEdit{id: id, status: string(status)}
}

// todoTitleField takes everything after title=, so a title may hold commas and equals signs (TD-7).
func todoTitleField(body string) (string, bool) {
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

// todoCut bounds a text by characters.
func todoCut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n]) + "…"
}
