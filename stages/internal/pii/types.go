package pii

import (
	"net/netip"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Ends of file names that the shape of a mail domain allows but no registry has: logo@2x.png is not an address.
var noTLD = []string{"png", "jpg", "jpeg", "gif", "svg", "webp", "bmp", "ico", "css", "js", "mjs", "jsx", "tsx",
	"json", "html", "htm", "xml", "yaml", "yml", "pdf", "txt", "csv", "log", "exe", "dll", "jar", "tar", "gz", "tgz",
	"local", "internal", "localhost", "invalid"}

// findEmail finds mail addresses: a local part of up to 64 characters, then at least two labels with an alphabetic
// last one. Labels of another script are read too, but one label keeps to one script (the text after the address may
// follow without a blank).
func findEmail(s string, i int, final bool) (int, says) {
	if inWord(s, i) || (s[i] < utf8.RuneSelf && !isAlnum(s[i]) && s[i] != '_') {
		return 0, saysNo
	}
	j, n := i, 0
	for ; ; n++ {
		if cutShort(s, j, final) {
			return 0, saysMore
		}
		if j >= len(s) || n > 64 {
			return 0, saysNo
		}
		r, w := utf8.DecodeRuneInString(s[j:])
		if r == '@' {
			break
		}
		if !isWordRune(r) && !strings.ContainsRune(".%+-'", r) || r == '.' && j > i && s[j-1] == '.' {
			return 0, saysNo
		}
		j += w
	}
	if n == 0 || n > 64 || s[j-1] == '.' {
		return 0, saysNo
	}
	local := s[i:j]
	at, end := j+1, -1
	for labels, k := 1, at; ; labels++ {
		stop, says := hostLabel(s, k, final)
		if says == saysMore {
			return 0, saysMore
		}
		if stop == k || stop-at > 253 {
			break
		}
		if labels >= 2 && isTLD(s[k:stop]) {
			end = stop
		}
		if stop >= len(s) || s[stop] != '.' {
			break
		}
		k = stop + 1
	}
	if end < 0 || local == "git" && end < len(s) && s[end] == ':' { // git@host:path is a remote, not a mailbox
		return 0, saysNo
	}
	return end, saysYes
}

// hostLabel returns the end of the domain label at k; k itself if there is none.
func hostLabel(s string, k int, final bool) (int, says) {
	first := true
	asian := false
	j := k
	for n := 0; n <= 63; n++ {
		if cutShort(s, j, final) {
			return 0, saysMore
		}
		if j >= len(s) {
			break
		}
		r, w := utf8.DecodeRuneInString(s[j:])
		if first {
			asian, first = r >= utf8.RuneSelf && unicode.IsLetter(r) && isWide(r), false
		}
		ok := isWordRune(r) && r != '_' || r == '-'
		if asian {
			ok = r >= utf8.RuneSelf && unicode.IsLetter(r) && isWide(r)
		}
		if !ok {
			break
		}
		j += w
	}
	for j > k && s[j-1] == '-' {
		j--
	}
	return j, saysYes
}

func isTLD(label string) bool {
	low := strings.ToLower(label)
	if strings.HasPrefix(low, "xn--") {
		return true
	}
	n := 0
	for _, r := range low {
		if !unicode.IsLetter(r) {
			return false
		}
		n++
	}
	return n >= 2 && n <= 24 && !slices.Contains(noTLD, low)
}

// findCard finds payment card numbers: 13 to 19 digits, plain or in groups, with a known prefix of the right length
// and a valid checksum.
func findCard(s string, i int, final bool) (int, says) {
	if !isDigit(s[i]) || inWord(s, i) || i >= 2 && s[i-1] == '.' && isDigit(s[i-2]) {
		return 0, saysNo
	}
	var digits [19]byte
	n, group, end := 0, 0, -1
	for j := i; ; {
		if cutShort(s, j, final) {
			return 0, saysMore
		}
		if j < len(s) && isDigit(s[j]) {
			if n == len(digits) {
				break // longer than any card; an end before this group stands
			}
			digits[n] = s[j]
			n, group, j = n+1, group+1, j+1
			continue
		}
		if group < 3 {
			break
		}
		if j < len(s) && s[j] == '.' { // a decimal, unless the sentence ends here
			if cutShort(s, j+1, final) {
				return 0, saysMore
			}
			if j+1 < len(s) && isDigit(s[j+1]) {
				break
			}
		}
		if word, _ := wordAt(s, j, final); word {
			break
		}
		if cardValid(digits[:n]) {
			end = j
		}
		sep := sepLen(s, j)
		if sep == 0 {
			break
		}
		if cutShort(s, j+sep, final) {
			return 0, saysMore
		}
		if j+sep >= len(s) || !isDigit(s[j+sep]) {
			break
		}
		j, group = j+sep, 0
	}
	if end < 0 {
		return 0, saysNo
	}
	return end, saysYes
}

func cardValid(d []byte) bool {
	n := len(d)
	if n < 13 {
		return false
	}
	num := func(k int) int {
		v := 0
		for _, c := range d[:k] {
			v = v*10 + int(c-'0')
		}
		return v
	}
	p2, p3, p4 := num(2), num(3), num(4)
	known := false
	switch {
	case d[0] == '4':
		known = n == 13 || n == 16 || n == 19
	case p2 >= 51 && p2 <= 55, p4 >= 2221 && p4 <= 2720:
		known = n == 16
	case p2 == 34 || p2 == 37:
		known = n == 15
	case p4 == 6011, p3 >= 644 && p3 <= 649, p2 == 65, p2 == 62, p4 >= 3528 && p4 <= 3589, p4 >= 2200 && p4 <= 2204:
		known = n >= 16
	case p3 >= 300 && p3 <= 305, p2 == 36, p2 == 38, p2 == 39:
		known = n == 14 || n == 16
	case slices.Contains([]int{5018, 5020, 5038, 5893, 6304, 6759, 6761, 6762, 6763}, p4):
		known = true
	}
	if !known {
		return false
	}
	sum := 0
	for k, c := range d {
		v := int(c - '0')
		if (n-k)%2 == 0 {
			if v *= 2; v > 9 {
				v -= 9
			}
		}
		sum += v
	}
	return sum%10 == 0
}

// ibanLen is the length of an account number by country (ISO 13616 registry).
var ibanLen = map[string]int{"AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22,
	"BI": 27, "BR": 29, "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28,
	"EE": 20, "EG": 29, "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18,
	"GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30,
	"KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22,
	"MK": 19, "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28,
	"PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19,
	"SK": 24, "SM": 27, "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24,
	"XK": 20}

// findIBAN finds international account numbers: country, length of that country, checksum mod 97; blanks or hyphens
// may stand between the characters.
func findIBAN(s string, i int, final bool) (int, says) {
	if !isLetter(s[i]) || inWord(s, i) {
		return 0, saysNo
	}
	want, n, rem := 34, 0, 0
	var head [4]byte
	for j := i; ; {
		if cutShort(s, j, final) {
			return 0, saysMore
		}
		if n == want {
			if word, _ := wordAt(s, j, final); word || rem != ibanCheck(head) {
				return 0, saysNo
			}
			return j, saysYes
		}
		if j < len(s) && n > 2 {
			if sep := sepLen(s, j); sep > 0 {
				if cutShort(s, j+sep, final) {
					return 0, saysMore
				}
				j += sep
			}
		}
		if j >= len(s) || !isAlnum(s[j]) || (n < 2 && !isLetter(s[j])) || ((n == 2 || n == 3) && !isDigit(s[j])) {
			return 0, saysNo
		}
		c := s[j]
		if isLetter(c) {
			c &^= 0x20
		}
		if n < 4 {
			head[n] = c
		} else {
			rem = mod97(rem, c)
		}
		n, j = n+1, j+1
		if n == 2 {
			var ok bool
			if want, ok = ibanLen[string(head[:2])]; !ok {
				return 0, saysNo
			}
		}
	}
}

// ibanCheck is the remainder that the rest of the number must have for the whole to give 1.
func ibanCheck(head [4]byte) int {
	for rem := range 97 {
		r := rem
		for _, c := range head {
			r = mod97(r, c)
		}
		if r == 1 {
			return rem
		}
	}
	return -1
}

func mod97(rem int, c byte) int {
	if isDigit(c) {
		return (rem*10 + int(c-'0')) % 97
	}
	return (rem*100 + int(c-'A') + 10) % 97
}

// findIP finds IPv4 and IPv6 addresses. The text alone decides: nothing is looked up in the network.
func findIP(s string, i int, final bool) (int, says) {
	c := s[i]
	within := i > 0 && (s[i-1] == '.' || s[i-1] == ':' && c == ':')
	if c != ':' && !isHex(c) || inWord(s, i) || within {
		return 0, saysNo
	}
	j, colons, dots, digits := i, 0, 0, 0
	for ; j < len(s) && j-i <= 46; j++ {
		switch b := s[j]; {
		case b == ':':
			colons++
			continue
		case b == '.':
			dots++
			continue
		case isDigit(b):
			digits++
			continue
		case isHex(b):
			continue
		}
		break
	}
	if j-i > 46 {
		return 0, saysNo
	}
	if cutShort(s, j, final) {
		return 0, saysMore
	}
	if word, _ := wordAt(s, j, final); word {
		return 0, saysNo
	}
	run := s[i:j]
	if colons < 2 {
		if dots < 3 || !isDigit(c) {
			return 0, saysNo
		}
		run, _, _ = strings.Cut(run, ":") // a port
		run = strings.TrimRight(run, ".")
	} else if digits == 0 || isSlice(s, i) {
		return 0, saysNo
	}
	for range 3 {
		if a, err := netip.ParseAddr(run); err == nil {
			if look := textBefore(s, i); a.Is4() && (saysVersion(look) || pinned(look) || small(a) && product(look)) {
				return 0, saysNo
			}
			return i + len(run), saysYes
		}
		if run == "" || run[len(run)-1] != '.' && run[len(run)-1] != ':' {
			break
		}
		run = run[:len(run)-1]
	}
	return 0, saysNo
}

// isSlice reports whether s[i:] stands in an index expression such as x[1::2].
func isSlice(s string, i int) bool {
	return i >= 2 && s[i-1] == '[' && (isAlnum(s[i-2]) || s[i-2] == ']' || s[i-2] == ')' || s[i-2] == '_')
}
