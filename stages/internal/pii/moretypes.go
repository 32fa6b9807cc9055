package pii

import (
	"encoding/base64"
	"encoding/json"
	"strings"
)

// Words that make a number next to them a telephone number, in the languages of the test set.
var phoneWords = []string{"tel", "tel.", "telephone", "phone", "phone number", "mobile", "cell", "cellphone", "fax",
	"whatsapp", "telefon", "telefonnummer", "rufnummer", "handy", "handynummer", "mobil", "téléphone", "portable",
	"teléfono", "móvil", "celular", "telefone", "telefono", "cellulare", "telefoon", "телефон", "тел",
	"тел.", "电话", "手机", "手机号", "电话号码", "手机号码", "联系电话", "電話", "電話番号",
	"携帯", "전화", "전화번호", "휴대폰"}

// phoneNumber is a run of digit groups that may be a telephone number.
type phoneNumber struct {
	n      int // groups
	groups [16]int
	first  [16]byte // first digit of each group
	ends   [16]int  // where each group ends in the text
	digits [16]int  // digits up to there
	last   string   // what stands before the last group
}

// findPhone finds telephone numbers: E.164 with its plus sign; the North American form with its separators; anything
// else of 7 to 15 digits only where a word before it says so.
func findPhone(s string, i int, final bool) (int, says) {
	c := s[i]
	plus := c == '+'
	if !plus && c != '(' && !isDigit(c) || inWord(s, i) || plus && i > 0 && strings.IndexByte("+/=).", s[i-1]) >= 0 {
		return 0, saysNo
	}
	if i >= 1 && !plus && (s[i-1] == '+' || i >= 2 && (s[i-1] == '.' || s[i-1] == '-') && isDigit(s[i-2])) {
		return 0, saysNo
	}
	p, said := readPhone(s, i, plus, final)
	if said != saysYes {
		return 0, said
	}
	end, total := p.ends[p.n-1], p.digits[p.n-1]
	word, _ := wordAt(s, end, final)
	dated := p.groups[0] == 4 && p.n >= 3 && p.groups[1] <= 2 && p.groups[2] <= 2
	switch {
	case plus:
		return p.international(strings.TrimLeft(s[i+1:end], " ("), word)
	case word:
		return 0, saysNo
	case northAmerican(s[i:end], p.groups[:p.n], p.first[:p.n]):
		return end, saysYes
	case total >= 7 && phoneSaid(textBefore(s, i)) && !dated:
		return end, saysYes
	}
	return 0, saysNo
}

// readPhone reads the groups of digits at i, with the separators that may stand between them.
func readPhone(s string, i int, plus, final bool) (p phoneNumber, said says) {
	j := i
	if plus {
		j++
	}
	for total := 0; p.n < len(p.groups); p.n++ {
		sep := j
		j = phoneSep(s, j, plus)
		if cutShort(s, j, final) {
			return p, saysMore
		}
		gap := s[sep:j]
		if plus && p.n == 0 && gap != "" && gap != "(" { // a sum, not a number
			return p, saysNo
		}
		if len(gap) > 1 && !strings.ContainsAny(gap, "()") && sepLen(gap, 0) != len(gap) {
			break
		}
		from := j
		for j < len(s) && isDigit(s[j]) && j-from <= 15 {
			j++
		}
		if j == from || j-from > 15 {
			break
		}
		if cutShort(s, j, final) {
			return p, saysMore
		}
		if total += j - from; total > 15 {
			break
		}
		p.first[p.n], p.groups[p.n], p.ends[p.n], p.digits[p.n], p.last = s[from], j-from, j, total, gap
	}
	if p.n == 0 {
		return p, saysNo
	}
	return p, saysYes
}

// phoneSep returns where the separators at j end: at most three bytes of them.
func phoneSep(s string, j int, plus bool) int {
	for from := j; j < len(s) && j-from < 3; {
		w := sepLen(s, j)
		if w == 0 && (strings.IndexByte("().", s[j]) >= 0 || s[j] == '/' && !plus) {
			w = 1
		}
		if w == 0 {
			break
		}
		j += w
	}
	return j
}

// international judges a number with a plus sign by its digits, which begin with d; word says that a word goes on
// behind it.
func (p *phoneNumber) international(d string, word bool) (int, says) {
	switch {
	case p.digits[p.n-1] < 8 || d[0] == '0' || word, p.n == 2 && p.last == "." && p.groups[1] <= 2:
		return 0, saysNo
	case strings.HasPrefix(d, "28"), strings.HasPrefix(d, "83"), strings.HasPrefix(d, "89"): // no such countries
		return 0, saysNo
	case d[0] == '1':
		for k := range p.n {
			if p.digits[k] == 11 {
				return p.ends[k], saysYes
			}
		}
		return 0, saysNo
	}
	return p.ends[p.n-1], saysYes
}

// northAmerican accepts (415) 555-2671, 415-555-2671, 415.555.2671 and a 1 before them.
func northAmerican(text string, groups []int, first []byte) bool {
	if len(groups) == 4 && groups[0] == 1 && first[0] == '1' {
		groups, first = groups[1:], first[1:]
	}
	return len(groups) == 3 && groups[0] == 3 && groups[1] == 3 && groups[2] == 4 && first[0] >= '2' && first[1] >= '2' &&
		(strings.Contains(text, "(") || strings.Count(text, "-")+strings.Count(text, ".") >= 2)
}

// phoneFill may stand between such a word and the number; any other word there means that the first one is part of
// something else: Tel Aviv, a mobile home, a cell culture.
var phoneFill = set("number", "numbers", "no", "nr", "num", "is", "my", "me", "us", "at", "on", "or", "the", "office",
	"home", "work", "direct", "private", "mobile", "cell", "phone", "fax", "ist", "lautet", "nummer", "büro", "privat",
	"mobil", "est", "le", "la", "el", "es", "è", "é", "numéro", "número", "numero", "bureau", "oficina",
	"номер", "моб", "раб", "дом")

// phoneGap reports whether a number may follow such a word after this. What ends with a colon is a label, whatever it
// says.
func phoneGap(gap string) bool {
	if end := strings.TrimRight(gap, " \t+("); end != "" && strings.IndexByte(":)=", end[len(end)-1]) >= 0 {
		return true
	}
	for word := range strings.FieldsFuncSeq(gap, func(r rune) bool { return !isWordRune(r) }) {
		if !phoneFill[word] {
			return false
		}
	}
	return true
}

// phoneSaid reports whether one of the words stands before, with nothing but a few words that fit and no digit between.
func phoneSaid(look string) bool {
	if i := strings.LastIndexAny(look, "\r\n0123456789"); i >= 0 {
		look = look[i+1:]
	}
	look = strings.ToLower(look)
	for _, w := range phoneWords {
		i := strings.LastIndex(look, w)
		if i < 0 || len(look)-i-len(w) > 16 || inWord(look, i) && w[0] < 0x80 {
			continue
		}
		if rest := look[i+len(w):]; (w[0] >= 0x80 || rest == "" || !isLetter(rest[0])) && phoneGap(rest) {
			return true
		}
	}
	return false
}

// secretKey is a form of secret that its issuer marks with a prefix.
type secretKey struct {
	prefix string
	min    int  // characters after the prefix, at least
	exact  bool // and no more
	digit  bool // one of them must be a digit: sk-learn-contrib-examples is not a key
	chars  string
}

// Bounds of secrets, so that a stream holds back no more than this.
const (
	maxKey = 1024
	maxJWT = 8 << 10
	maxPEM = 16 << 10
)

var secretKeys = []secretKey{
	{prefix: "sk-", min: 16, digit: true, chars: "-_"},
	{prefix: "sk_live_", min: 16},
	{prefix: "sk_test_", min: 16},
	{prefix: "rk_live_", min: 16},
	{prefix: "whsec_", min: 24, digit: true},
	{prefix: "AKIA", min: 16, exact: true},
	{prefix: "ASIA", min: 16, exact: true, digit: true},
	{prefix: "ghp_", min: 20},
	{prefix: "gho_", min: 20},
	{prefix: "ghu_", min: 20},
	{prefix: "ghs_", min: 20},
	{prefix: "ghr_", min: 20},
	{prefix: "github_pat_", min: 22, digit: true, chars: "_"},
	{prefix: "glpat-", min: 20, chars: "-_"},
	{prefix: "xoxb-", min: 12, digit: true, chars: "-"},
	{prefix: "xoxp-", min: 12, digit: true, chars: "-"},
	{prefix: "xoxa-", min: 12, digit: true, chars: "-"},
	{prefix: "xoxs-", min: 12, digit: true, chars: "-"},
	{prefix: "AIza", min: 35, exact: true, chars: "-_"},
	{prefix: "npm_", min: 36, digit: true},
	{prefix: "hf_", min: 30, digit: true},
	{prefix: "gsk_", min: 30, digit: true},
}

// findSecret finds keys by the prefixes of their issuers, signed tokens (JWT) and private keys in PEM blocks.
func findSecret(s string, i int, final bool) (int, says) {
	if inWord(s, i) {
		return 0, saysNo
	}
	if s[i] == '-' {
		return findPEM(s, i, final)
	}
	rest := s[i:]
	if strings.HasPrefix(rest, "eyJ") {
		return findJWT(s, i, final)
	}
	for _, k := range secretKeys {
		if !strings.HasPrefix(rest, k.prefix) {
			if !final && strings.HasPrefix(k.prefix, rest) {
				return 0, saysMore
			}
			continue
		}
		j, digits := i+len(k.prefix), 0
		for j < len(s) && j-i < maxKey && (isAlnum(s[j]) || strings.IndexByte(k.chars, s[j]) >= 0) {
			if isDigit(s[j]) {
				digits++
			}
			j++
		}
		if cutShort(s, j, final) {
			return 0, saysMore
		}
		for j > i && (s[j-1] == '-' || s[j-1] == '_') && !k.exact {
			j--
		}
		n := j - i - len(k.prefix)
		if n < k.min || k.exact && n != k.min || k.digit && digits == 0 {
			return 0, saysNo
		}
		return j, saysYes
	}
	if !final && strings.HasPrefix("eyJ", rest) {
		return 0, saysMore
	}
	return 0, saysNo
}

func findJWT(s string, i int, final bool) (int, says) {
	var parts [3]int // ends
	j := i
	for p := range parts {
		from := j
		for j < len(s) && j-i < maxJWT && (isAlnum(s[j]) || s[j] == '-' || s[j] == '_') {
			j++
		}
		if cutShort(s, j, final) {
			return 0, saysMore
		}
		if j-from < 8 {
			return 0, saysNo
		}
		parts[p] = j
		if p == 2 {
			break
		}
		if j >= len(s) || s[j] != '.' {
			return 0, saysNo
		}
		j++
		if p == 0 {
			head, err := base64.RawURLEncoding.DecodeString(s[from:parts[0]])
			if err != nil || !json.Valid(head) {
				return 0, saysNo
			}
		}
	}
	return parts[2], saysYes
}

// findPEM finds a private key block. One that is not closed within the bound is taken as far as the bound, because
// most of a key is a key too.
func findPEM(s string, i int, final bool) (int, says) {
	const open, mark, end = "-----BEGIN ", "PRIVATE KEY", "-----END "
	if i > 0 && s[i-1] == '-' {
		return 0, saysNo
	}
	rest := s[i:min(len(s), i+maxPEM)]
	if !strings.HasPrefix(rest, open) {
		if !final && strings.HasPrefix(open, rest) {
			return 0, saysMore
		}
		return 0, saysNo
	}
	label := rest[len(open):min(len(rest), len(open)+48)]
	close := strings.Index(label, "-----")
	if close < 0 {
		if !final && len(label) < 48 {
			return 0, saysMore
		}
		return 0, saysNo
	}
	if !strings.Contains(label[:close], mark) {
		return 0, saysNo
	}
	from := len(open) + close + 5
	if k := strings.Index(rest[from:], end); k >= 0 {
		tail := rest[from+k+len(end):]
		if m := strings.Index(tail[:min(len(tail), 48)], "-----"); m >= 0 {
			return i + from + k + len(end) + m + 5, saysYes
		} else if len(tail) >= 48 {
			return i + from + k + len(end), saysYes
		}
	}
	if !final && len(s) <= i+maxPEM {
		return 0, saysMore
	}
	cutAt := i + len(rest)
	for cutAt < len(s) && cutAt > i && s[cutAt]&0xC0 == 0x80 {
		cutAt--
	}
	return cutAt, saysYes
}
