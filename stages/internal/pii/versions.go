package pii

import (
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"
)

// netWords are words before an address; a capital letter makes no product of them.
var netWords = set("ip", "ipv4", "host", "server", "client", "address", "addr", "gateway", "router", "node", "peer",
	"resolver", "nameserver", "proxy", "dns", "vpn", "source", "target", "destination", "remote", "local", "from", "to",
	"at", "on", "via", "use", "try", "set", "ping", "block", "allow", "ban", "visit", "open", "connect", "curl", "trace",
	"reach", "is", "the", "and", "with", "by", "for", "see", "my", "your", "our", "von", "nach", "zu", "an", "adresse",
	"rechner", "serveur", "hôte", "servidor", "dirección")

// pinned reports whether the text before says that a package is held to what follows: numpy==1.26.4.1.
func pinned(look string) bool {
	name := strings.TrimRight(look, "=<>~!^")
	op := look[len(name):]
	if len(op) < 2 && op != "^" || len(op) > 3 {
		return false
	}
	word := lastWord(name)
	return word != "" && !netWords[strings.ToLower(word)]
}

// product reports whether the word before, with one blank between, is a name that four small numbers are a version of:
// Excel 16.0.1.2.
func product(look string) bool {
	if !strings.HasSuffix(look, " ") {
		return false
	}
	word := lastWord(look[:len(look)-1])
	capital := len(word) > 1 && word[0] >= 'A' && word[0] <= 'Z' && strings.ToUpper(word) != word
	return capital && !netWords[strings.ToLower(word)]
}

func lastWord(s string) string {
	i := len(s)
	for i > 0 {
		r, w := utf8.DecodeLastRuneInString(s[:i])
		if !isWordRune(r) && r != '-' {
			break
		}
		i -= w
	}
	return s[i:]
}

// small reports whether an address could as well be a version: no number of three digits, and of no network of one's
// own.
func small(a netip.Addr) bool {
	for _, b := range a.As4() {
		if b >= 100 {
			return false
		}
	}
	return !a.IsPrivate() && !a.IsLoopback()
}

var versionWords = []string{
	"version", "ver", "ver.", "release", "build", "firmware", "driver", "版本", "版本号", "section", "chapter", "§",
}

// saysVersion reports whether what stands before four numbers says that they are a version: Chrome/120.0.0.0.
func saysVersion(look string) bool {
	if n := len(look); n >= 2 && look[n-1] == '/' && isAlnum(look[n-2]) {
		return true
	}
	look = strings.ToLower(strings.TrimRight(look, " :=\t"))
	return slices.ContainsFunc(versionWords, func(w string) bool { // ver, but not server
		return strings.HasSuffix(look, w) && (w[0] >= utf8.RuneSelf || !inWord(look, len(look)-len(w)))
	})
}
