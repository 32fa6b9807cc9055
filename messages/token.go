package messages

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxToken is the longest subject or key token; longer ones are hashed.
const maxToken = 64

// Token makes one subject or key token of any string: [A-Za-z0-9_-] stay, every other byte becomes =HH, the empty
// string becomes "=", and a result of more than 64 bytes becomes =h and the base32 SHA-256 of the input. Two inputs
// never give the same token, except by a collision of SHA-256. Every token made from user input must pass here, so that
// no input can reach into another subject or key.
func Token(s string) string {
	if s == "" {
		return "="
	}
	if len(s) <= maxToken && strings.IndexFunc(s, odd) < 0 {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if plain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02X", c)
		}
		if b.Len() > maxToken {
			sum := sha256.Sum256([]byte(s))
			return "=h" + base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])
		}
	}
	return b.String()
}

func odd(r rune) bool { return r >= utf8.RuneSelf || !plain(byte(r)) }

// Untoken reads a token back. ok is false for a hashed token and for one that Token never makes.
func Untoken(t string) (s string, ok bool) {
	if t == "=" {
		return "", true
	}
	if t == "" || len(t) > maxToken || strings.HasPrefix(t, "=h") {
		return "", false
	}
	var b strings.Builder
	for i := 0; i < len(t); i++ {
		c := t[i]
		if plain(c) {
			b.WriteByte(c)
			continue
		}
		if c != '=' || i+2 >= len(t) {
			return "", false
		}
		hi, lo := unhex(t[i+1]), unhex(t[i+2])
		if hi < 0 || lo < 0 || plain(byte(hi<<4|lo)) {
			return "", false
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	return b.String(), true
}

// Key joins tokens to a KV key: each part is encoded, so no part can reach into another.
func Key(parts ...string) string {
	t := make([]string, len(parts))
	for i, p := range parts {
		t[i] = Token(p)
	}
	return strings.Join(t, ".")
}

func plain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
