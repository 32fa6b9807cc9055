package stages

import (
	"unicode"
	"unicode/utf8"
)

// piiLook is how many bytes before a position a detector may look at. A stream keeps at least as many.
const piiLook = 48

// piiSays is what a detector says about one position.
type piiSays int

const (
	piiNo   piiSays = iota
	piiYes          // a find ends at the returned position
	piiMore         // the text ends before it is certain; never said of a final text
)

// piiDetect looks for one type at s[i:]. It is anchored at i and bounded, so a whole text costs linear time; it looks
// back at most piiLook bytes. Unless it says piiMore, no text that may follow s changes its answer: that is what makes
// a stream and a whole text give the same finds.
type piiDetect func(s string, i int, final bool) (end int, says piiSays)

// piiDetectors are the built-in types. Nothing here guesses names or postal addresses.
var piiDetectors = map[string]piiDetect{
	"email":       piiEmail,
	"credit_card": piiCard,
	"iban":        piiIBAN,
	"ip":          piiIP,
	"phone":       piiPhone,
	"secret":      piiSecret,
}

// piiFind is one find: a half-open byte range, and the rule that it falls under.
type piiFind struct {
	from, to int
	rule     int
	// block is a BLOCK rule that has a find in the range, or -1: hiding the range otherwise would let it pass.
	block int
}

// piiRules are the compiled rules of a stage.
type piiRules []piiRule

// next returns the first built-in find at or after i. Without one, upTo is how far the text is certain to hold none.
func (rs piiRules) next(s string, i int, final bool) (f piiFind, upTo int, ok bool) {
	for i < len(s) {
		if !piiTrigger(s, i) {
			_, n := utf8.DecodeRuneInString(s[i:])
			if !final && !utf8.FullRuneInString(s[i:]) {
				return f, i, false
			}
			i += n
			continue
		}
		f, says := rs.at(s, i, final)
		switch says {
		case piiMore:
			return f, i, false
		case piiYes:
			return f, i, true
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		i += n
	}
	return f, len(s), false
}

// at asks all detectors about one position. The longest find wins; one that begins inside it and ends later makes it
// longer, so that two detectors over one place give one replacement and leave no half of a value behind (PI-8).
func (rs piiRules) at(s string, i int, final bool) (f piiFind, says piiSays) {
	f = piiFind{from: i, to: -1, block: -1}
	more := false
	ask := func(j int, inside bool) {
		for k := range rs {
			if rs[k].detect == nil {
				continue
			}
			end, says := rs[k].detect(s, j, final)
			more = more || says == piiMore
			if says != piiYes {
				continue
			}
			if rs[k].strategy == piiBlock && f.block < 0 {
				f.block = k
			}
			if end > f.to {
				f.to = end
				if !inside {
					f.rule = k
				}
			}
		}
	}
	ask(i, false)
	if f.to < 0 || more {
		if more {
			return f, piiMore
		}
		return f, piiNo
	}
	for j := i + 1; j < f.to && j-i < 256; j++ {
		if utf8.RuneStart(s[j]) && piiTrigger(s, j) {
			ask(j, true)
		}
	}
	if more {
		return f, piiMore
	}
	return f, piiYes
}

// piiTrigger reports whether any find can begin at i; it passes over the inside of words.
func piiTrigger(s string, i int) bool {
	c := s[i]
	switch {
	case c >= utf8.RuneSelf:
		return true
	case piiAlnum(c):
		return i == 0 || !piiAlnum(s[i-1])
	}
	return c == '+' || c == '(' || c == ':' || c == '-' || c == '_'
}

func piiAlnum(c byte) bool { return piiDigit(c) || piiLetter(c) }
func piiDigit(c byte) bool { return c >= '0' && c <= '9' }
func piiLetter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// piiWide reports whether a letter belongs to a script that writes no blanks between words, where a value stands next to
// other text without a boundary.
func piiWide(r rune) bool {
	return unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar)
}

// piiWordRune reports whether r is part of a word: a value does not begin or end inside one.
func piiWordRune(r rune) bool {
	if r < utf8.RuneSelf {
		return piiAlnum(byte(r)) || r == '_'
	}
	return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r)) && !piiWide(r)
}

// piiInWord reports whether the rune before i is part of a word.
func piiInWord(s string, i int) bool {
	if i == 0 {
		return false
	}
	r, _ := utf8.DecodeLastRuneInString(s[max(0, i-utf8.UTFMax):i])
	return piiWordRune(r)
}

// piiWordAt reports whether a word goes on at j. more: the text ends there.
func piiWordAt(s string, j int, final bool) (word, more bool) {
	if !final && !utf8.FullRuneInString(s[j:]) {
		return false, true
	}
	if j >= len(s) {
		return false, false
	}
	r, _ := utf8.DecodeRuneInString(s[j:])
	return piiWordRune(r), false
}

// piiBefore returns the text before i that a detector may look at.
func piiBefore(s string, i int) string { return s[max(0, i-piiLook):i] }

// piiSep returns the length of a separator between digit groups: a blank, a no-break blank or a hyphen.
func piiSep(s string, j int) int {
	switch {
	case j >= len(s):
		return 0
	case s[j] == ' ' || s[j] == '-':
		return 1
	case len(s) >= j+2 && s[j:j+2] == "\u00a0":
		return 2
	case len(s) >= j+3 && (s[j:j+3] == "\u202f" || s[j:j+3] == "\u2011"):
		return 3
	}
	return 0
}

// piiShort reports whether the text ends within the character at j, so nothing can be said about it yet.
func piiShort(s string, j int, final bool) bool { return !final && !utf8.FullRuneInString(s[j:]) }
