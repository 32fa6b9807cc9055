package rawjson

import (
	"encoding/binary"
)

// maxNesting is how deep json.Valid reads.
const maxNesting = 10_000

// Valid is json.Valid, several times as fast: a body is mostly text, and text is read eight bytes at a time.
func Valid(b []byte) bool {
	var room [64]byte
	open := room[:0] // the brackets of the open objects and arrays
	for i := 0; ; {
		// A value is to come.
		if i = skipSpace(b, i); i >= len(b) {
			return false
		}
		switch b[i] {
		case '{', '[':
			if open = append(open, b[i]); len(open) > maxNesting {
				return false
			}
			inner := skipSpace(b, i+1)
			switch {
			case inner < len(b) && b[inner] == b[i]+2: // the closing bracket is two after the opening one
				open = open[:len(open)-1]
				i = inner + 1
			case b[i] == '[':
				i = inner
				continue
			default:
				if i = validKey(b, inner); i < 0 {
					return false
				}
				continue
			}
		case '"':
			i = validText(b, i)
		case 't':
			i = validWord(b, i, "true")
		case 'f':
			i = validWord(b, i, "false")
		case 'n':
			i = validWord(b, i, "null")
		default:
			i = validNumber(b, i)
		}
		if i < 0 {
			return false
		}
		// A value has ended.
		var more bool
		if i, open, more = validAfter(b, i, open); !more {
			return i == len(b)
		}
	}
}

// validAfter reads what follows a value at i: the ends of what is open, and a comma with the key of the next value. It
// reports whether a value is to come; if none is, i is the end of the bytes, or -1.
func validAfter(b []byte, i int, open []byte) (int, []byte, bool) {
	for {
		i = skipSpace(b, i)
		n := len(open)
		switch {
		case n == 0 && i == len(b):
			return i, open, false
		case n == 0 || i == len(b):
			return -1, open, false
		case b[i] == ',' && open[n-1] == '[':
			return i + 1, open, true
		case b[i] == ',':
			i = validKey(b, skipSpace(b, i+1))
			return i, open, i >= 0
		case b[i] != open[n-1]+2:
			return -1, open, false
		}
		open = open[:n-1]
		i++
	}
}

// validKey reads a key and its colon; -1 if there is none.
func validKey(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	if i = validText(b, i); i < 0 {
		return -1
	}
	if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
		return -1
	}
	return i + 1
}

// validText reads a text from its quote at i; -1 if it is none.
func validText(b []byte, i int) int {
	const each, high = 0x0101010101010101, 0x8080808080808080
	for i++; i < len(b); i++ {
		for i+8 <= len(b) { // as long as none of eight bytes is a quote, a backslash or a control character
			w := binary.LittleEndian.Uint64(b[i:])
			quote, slash := w^(each*'"'), w^(each*'\\')
			if ((quote-each)&^quote|(slash-each)&^slash|(w-each*0x20)&^w)&high != 0 {
				break
			}
			i += 8
		}
		if i >= len(b) {
			return -1
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c < 0x20:
			return -1
		case c == '\\':
			if i++; i >= len(b) {
				return -1
			}
			switch b[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				if i+4 >= len(b) || !isHex(b[i+1]) || !isHex(b[i+2]) || !isHex(b[i+3]) || !isHex(b[i+4]) {
					return -1
				}
				i += 4
			default:
				return -1
			}
		}
	}
	return -1
}

func isHex(c byte) bool { return isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'f' }

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func validWord(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

// validNumber reads a number; -1 if it is none.
func validNumber(b []byte, i int) int {
	if i < len(b) && b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if i = digits(b, i); i < 0 {
		return -1
	}
	if i < len(b) && b[i] == '.' {
		if i = digits(b, i+1); i < 0 {
			return -1
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return digits(b, i)
	}
	return i
}

// digits reads at least one digit; -1 if there is none.
func digits(b []byte, i int) int {
	from := i
	for i < len(b) && isDigit(b[i]) {
		i++
	}
	if i == from {
		return -1
	}
	return i
}
