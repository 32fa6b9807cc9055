// Package rawjson reads and edits JSON as bytes: an edit touches one field and leaves every other byte as it was, so
// that a caller's body travels on verbatim. It imports no other package of this module.
package rawjson

import (
	"bytes"
	"strconv"

	"github.com/tidwall/gjson"
)

// The functions of this file edit JSON as bytes: only the field that is named changes, everything else keeps its order,
// its number text and its escapes. Input is valid JSON; bytes that are handed in are never changed. If a key is
// repeated, the last one counts, as in most JSON readers.

// blanks are what may stand between the values of JSON.
const blanks = " \t\r\n"

// Field returns the raw value of a key of an object, and whether it is there.
func Field(obj []byte, key string) (raw []byte, ok bool) {
	from, to, _, ok := locate(obj, key)
	if !ok {
		return nil, false
	}
	return obj[from:to:to], true
}

// FieldString returns a field that is a JSON string.
func FieldString(obj []byte, key string) (string, bool) {
	raw, _ := Field(obj, key)
	return IsString(raw)
}

// Text is FieldString for those to whom a field that is missing, or is not a string, is an empty text.
func Text(obj []byte, key string) string { s, _ := FieldString(obj, key); return s }

// At returns the raw value at a path of keys; nil if it is not there.
func At(obj []byte, path ...string) []byte {
	for _, key := range path {
		obj, _ = Field(obj, key)
	}
	return obj
}

// SetField returns the object with the key set to the raw value: in place if it is there, else at the end. A value that
// is not an object comes back unchanged.
func SetField(obj []byte, key string, raw []byte) []byte {
	from, to, _, ok := locate(obj, key)
	if ok {
		return splice(obj, from, to, raw)
	}
	end := bytes.LastIndexByte(obj, '}')
	if end < 0 || bytes.TrimLeft(obj, blanks)[0] != '{' {
		return obj // an array or a string may hold a brace too
	}
	add := make([]byte, 0, len(key)+len(raw)+4)
	if !bytes.HasSuffix(bytes.TrimRight(obj[:end], blanks), []byte{'{'}) {
		add = append(add, ',')
	}
	add = append(add, Encode(key)...)
	add = append(add, ':')
	add = append(add, raw...)
	return splice(obj, end, end, add)
}

// SetFieldString is SetField with a string value.
func SetFieldString(obj []byte, key, value string) []byte { return SetField(obj, key, Encode(value)) }

// DropField returns the object without the key, however often it comes.
func DropField(obj []byte, key string) []byte {
	for {
		_, to, from, ok := locate(obj, key)
		if !ok {
			return obj
		}
		if next := skipSpace(obj, to); next < len(obj) && obj[next] == ',' {
			to = next + 1
		} else if before := bytes.TrimRight(obj[:from], blanks); bytes.HasSuffix(before, []byte{','}) {
			from = len(before) - 1
		}
		obj = splice(obj, from, to, nil)
	}
}

// Elements returns the raw elements of an array; nil if raw is not an array.
func Elements(raw []byte) [][]byte {
	var out [][]byte
	if !eachElement(raw, func(from, to int) { out = append(out, raw[from:to:to]) }) {
		return nil
	}
	if out == nil {
		return [][]byte{}
	}
	return out
}

// EachField calls f for each pair of an object, in order; it does nothing if obj is not an object.
func EachField(obj []byte, f func(key string, raw []byte)) {
	eachPair(obj, func(key []byte, _, from, to int) bool {
		f(keyText(key), obj[from:to:to])
		return true
	})
}

// Array joins raw elements to an array.
func Array(elems [][]byte) []byte {
	n := 2
	for _, e := range elems {
		n += len(e) + 1
	}
	out := make([]byte, 0, n)
	out = append(out, '[')
	for i, e := range elems {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, e...)
	}
	return append(out, ']')
}

// IsString returns the value of a JSON string, and whether raw is one.
func IsString(raw []byte) (string, bool) {
	switch {
	case len(raw) == 0 || raw[0] != '"':
		return "", false
	case len(raw) > 1 && raw[len(raw)-1] == '"' && bytes.IndexByte(raw, '\\') < 0:
		return string(raw[1 : len(raw)-1]), true
	}
	return gjson.ParseBytes(raw).Str, true
}

// IsNull reports whether raw is absent or JSON null.
func IsNull(raw []byte) bool { return len(raw) == 0 || string(raw) == "null" }

// Int returns raw as an integer, and whether it is one that fits 64 bits.
func Int(raw []byte) (int64, bool) {
	if len(raw) == 0 || raw[0] != '-' && raw[0]-'0' > 9 {
		return 0, false // many fields are not there or null, and an error costs more than a number
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	return n, err == nil
}

// locate finds the last pair of the key: value from..to, and where the pair begins.
func locate(obj []byte, key string) (from, to, pair int, ok bool) {
	eachPair(obj, func(quoted []byte, at, begin, end int) bool {
		if isKey(quoted, key) {
			from, to, pair, ok = begin, end, at, true
		}
		return true
	})
	return from, to, pair, ok
}

func splice(b []byte, from, to int, with []byte) []byte {
	out := make([]byte, 0, len(b)-(to-from)+len(with))
	out = append(out, b[:from]...)
	out = append(out, with...)
	return append(out, b[to:]...)
}
