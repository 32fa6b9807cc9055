package rawjson

import (
	"bytes"
	"encoding/json"
)

// The walkers of this file pass over JSON without a copy. They take anything and read no further than its end; what
// they say about bytes that are not valid JSON means nothing.

// eachPair calls f for each pair of an object, in order, until f returns false: key is the key with its quotes, pair is
// where it begins, and from..to is the value. It does nothing if obj is not an object.
func eachPair(obj []byte, f func(key []byte, pair, from, to int) bool) {
	i := skipSpace(obj, 0)
	if i >= len(obj) || obj[i] != '{' {
		return
	}
	for i++; ; i++ {
		pair := skipSpace(obj, i)
		if pair >= len(obj) || obj[pair] != '"' {
			return
		}
		end := skipText(obj, pair)
		colon := skipSpace(obj, end)
		from := skipSpace(obj, colon+1)
		to := skipValue(obj, from)
		if to <= from || !f(obj[pair:end], pair, from, to) {
			return
		}
		if i = skipSpace(obj, to); i >= len(obj) || obj[i] != ',' {
			return
		}
	}
}

// eachElement calls f for each element of an array, in order; it reports whether raw is an array.
func eachElement(raw []byte, f func(from, to int)) bool {
	i := skipSpace(raw, 0)
	if i >= len(raw) || raw[i] != '[' {
		return false
	}
	for i++; ; i++ {
		from := skipSpace(raw, i)
		to := skipValue(raw, from)
		if to <= from {
			return true
		}
		f(from, to)
		if i = skipSpace(raw, to); i >= len(raw) || raw[i] != ',' {
			return true
		}
	}
}

// keyText is what a key with its quotes says.
func keyText(quoted []byte) string {
	if len(quoted) < 2 {
		return ""
	}
	if bytes.IndexByte(quoted, '\\') >= 0 {
		var s string
		if json.Unmarshal(quoted, &s) == nil {
			return s
		}
	}
	key := quoted[1 : len(quoted)-1]
	if s := known(key); s != "" {
		return s
	}
	return string(key)
}

// known returns a key that nearly every body has without a copy; empty for others.
func known(key []byte) string {
	switch string(key) {
	case "id":
		return "id"
	case "object":
		return "object"
	case "created":
		return "created"
	case "model":
		return "model"
	case "choices":
		return "choices"
	case "index":
		return "index"
	case "delta":
		return "delta"
	case "message":
		return "message"
	case "messages":
		return "messages"
	case "role":
		return "role"
	case "content":
		return "content"
	case "finish_reason":
		return "finish_reason"
	case "usage":
		return "usage"
	case "type":
		return "type"
	}
	return ""
}

// isKey reports whether a key with its quotes says name.
func isKey(quoted []byte, name string) bool {
	if len(quoted) == len(name)+2 && string(quoted[1:len(quoted)-1]) == name {
		return true // a name has no escapes
	}
	return bytes.IndexByte(quoted, '\\') >= 0 && keyText(quoted) == name
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// skipText returns where the text ends that begins with the quote at i.
func skipText(b []byte, i int) int {
	for i++; i < len(b); {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return len(b)
		}
		escapes := 0
		for escapes < n && b[i+n-1-escapes] == '\\' {
			escapes++
		}
		if i += n + 1; escapes%2 == 0 {
			return i
		}
	}
	return len(b)
}

// skipValue returns where the value ends that begins at i; i itself if none does.
func skipValue(b []byte, i int) int {
	for open := 0; i < len(b); {
		switch b[i] {
		case '"':
			i = skipText(b, i)
		case '{', '[':
			open++
			i++
			continue
		case '}', ']':
			if open--; open < 0 {
				return i
			}
			i++
		case ',', ':', ' ', '\t', '\n', '\r':
			if open == 0 {
				return i
			}
			i++
			continue
		default:
			for i < len(b) && !endsWord[b[i]] {
				i++
			}
		}
		if open == 0 {
			return i
		}
	}
	return len(b)
}

// endsWord holds what ends a number or a literal.
var endsWord = [256]bool{',': true, ':': true, ' ': true, '\t': true, '\n': true, '\r': true, '}': true, ']': true,
	'{': true, '[': true, '"': true}
