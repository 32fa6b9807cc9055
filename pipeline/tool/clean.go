package tool

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// MaxDescription is the default limit of a description in bytes.
const MaxDescription = 8 << 10

// escapes matches terminal escape sequences with their parameters.
var escapes = regexp.MustCompile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|" +
	"[PX^_][^\x1b]*(?:\x1b\\\\)?|[ -/]*[0-~])?")

// cleanText removes what a person does not see but a model or a terminal obeys: escape sequences, control characters
// other than line ends and tabs, marks that turn the direction of writing, and other invisible characters. limit is in
// bytes; 0 means MaxDescription.
func cleanText(s string, limit int) string {
	s = escapes.ReplaceAllString(strings.ToValidUTF8(s, "\uFFFD"), "")
	s = strings.Map(func(r rune) rune {
		const nonJoiner, joiner = '\u200c', '\u200d' // needed in some scripts and in pictures
		if r != '\n' && r != '\t' && unicode.IsControl(r) || unicode.Is(unicode.Cf, r) && r != nonJoiner && r != joiner {
			return -1
		}
		return r
	}, s)
	if limit <= 0 {
		limit = MaxDescription
	}
	if len(s) <= limit {
		return s
	}
	const more = "..."
	for limit -= len(more); limit > 0 && !utf8.RuneStart(s[limit]); limit-- {
	}
	return s[:max(0, limit)] + more
}

// clean cleans the texts of the tool that models and people read. changed reports whether it had to.
func (d *Definition) clean(limit int) (changed bool) {
	one := func(s string) string {
		out := cleanText(s, limit)
		changed = changed || out != s
		return out
	}
	d.Description = one(d.Description)
	d.InputSchema, d.OutputSchema = args.CleanTexts(d.InputSchema, one), args.CleanTexts(d.OutputSchema, one)
	if d.Annotations != nil {
		a := *d.Annotations
		a.Title = one(a.Title)
		d.Annotations = &a
	}
	return changed
}
