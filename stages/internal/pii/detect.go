package pii

import (
	"unicode"
	"unicode/utf8"
)

// lookBack is how many bytes before a position a detector may look at. A stream keeps at least as many.
const lookBack = 48

// says is what a detector says about one position.
type says int

const (
	saysNo   says = iota
	saysYes       // a find ends at the returned position
	saysMore      // the text ends before it is certain; never said of a final text
)

// detector looks for one type at s[i:]. It is anchored at i and bounded, so a whole text costs linear time; it looks
// back at most lookBack bytes. Unless it says saysMore, no text that may follow s changes its answer: that is what
// makes a stream and a whole text give the same finds.
type detector func(s string, i int, final bool) (end int, says says)

// detectors are the built-in types. Nothing here guesses names or postal addresses.
var detectors = map[string]detector{
	"email":       findEmail,
	"credit_card": findCard,
	"iban":        findIBAN,
	"ip":          findIP,
	"phone":       findPhone,
	"secret":      findSecret,
}

// found is one find: a half-open byte range, and the rule that it falls under.
type found struct {
	from, to int
	rule     int
	// block is a BLOCK rule that has a find in the range, or -1: hiding the range otherwise would let it pass.
	block int
}

// Rules are the compiled rules of a stage.
type Rules []compiledRule

// next returns the first built-in find at or after i. Without one, upTo is how far the text is certain to hold none.
func (rs Rules) next(s string, i int, final bool) (f found, upTo int, ok bool) {
	for i < len(s) {
		if !mayBegin(s, i) {
			_, n := utf8.DecodeRuneInString(s[i:])
			if !final && !utf8.FullRuneInString(s[i:]) {
				return f, i, false
			}
			i += n
			continue
		}
		f, says := rs.at(s, i, final)
		switch says {
		case saysMore:
			return f, i, false
		case saysYes:
			return f, i, true
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		i += n
	}
	return f, len(s), false
}

// at asks all detectors about one position. The longest find wins; one that begins inside it and ends later makes it
// longer, so that two detectors over one place give one replacement and leave no half of a value behind.
func (rs Rules) at(s string, i int, final bool) (f found, says says) {
	f = found{from: i, to: -1, block: -1}
	more := false
	ask := func(j int, inside bool) {
		for k := range rs {
			if rs[k].detect == nil {
				continue
			}
			end, says := rs[k].detect(s, j, final)
			more = more || says == saysMore
			if says != saysYes {
				continue
			}
			if rs[k].strategy == Block && f.block < 0 {
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
			return f, saysMore
		}
		return f, saysNo
	}
	for j := i + 1; j < f.to && j-i < 256; j++ {
		if utf8.RuneStart(s[j]) && mayBegin(s, j) {
			ask(j, true)
		}
	}
	if more {
		return f, saysMore
	}
	return f, saysYes
}

// mayBegin reports whether any find can begin at i; it passes over the inside of words.
func mayBegin(s string, i int) bool {
	c := s[i]
	switch {
	case c >= utf8.RuneSelf:
		return true
	case isAlnum(c):
		return i == 0 || !isAlnum(s[i-1])
	}
	return c == '+' || c == '(' || c == ':' || c == '-' || c == '_'
}

func isAlnum(c byte) bool { return isDigit(c) || isLetter(c) }
func isDigit(c byte) bool { return c >= '0' && c <= '9' }
func isHex(c byte) bool   { return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'f' }
func isLetter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// isWide reports whether a letter belongs to a script that writes no blanks between words, where a value stands next to
// other text without a boundary.
func isWide(r rune) bool {
	return unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul, unicode.Thai, unicode.Lao,
		unicode.Khmer, unicode.Myanmar)
}

// isWordRune reports whether r is part of a word: a value does not begin or end inside one.
func isWordRune(r rune) bool {
	if r < utf8.RuneSelf {
		return isAlnum(byte(r)) || r == '_'
	}
	return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r)) && !isWide(r)
}

// inWord reports whether the rune before i is part of a word.
func inWord(s string, i int) bool {
	if i == 0 {
		return false
	}
	r, _ := utf8.DecodeLastRuneInString(s[max(0, i-utf8.UTFMax):i])
	return isWordRune(r)
}

// wordAt reports whether a word goes on at j. more: the text ends there.
func wordAt(s string, j int, final bool) (word, more bool) {
	if !final && !utf8.FullRuneInString(s[j:]) {
		return false, true
	}
	if j >= len(s) {
		return false, false
	}
	r, _ := utf8.DecodeRuneInString(s[j:])
	return isWordRune(r), false
}

// textBefore returns the text before i that a detector may look at.
func textBefore(s string, i int) string { return s[max(0, i-lookBack):i] }

// sepLen returns the length of a separator between digit groups: a blank, a no-break blank or a hyphen.
func sepLen(s string, j int) int {
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

// cutShort reports whether the text ends within the character at j, so nothing can be said about it yet.
func cutShort(s string, j int, final bool) bool { return !final && !utf8.FullRuneInString(s[j:]) }
