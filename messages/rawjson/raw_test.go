package rawjson_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// text draws strings with everything that JSON escapes.
func text() *rapid.Generator[string] {
	return rapid.OneOf(rapid.StringN(0, 8, 24), rapid.SampledFrom([]string{"a", "b", "", "a.b", "*", "#", "@this",
		"a\\b", "\"", "\n", "<&>",
		"\u2028", "😀", "messages", "0", "-1", "}", "{", "]", ",", ":", "\\u0041"}))
}

// value draws a compact JSON value, with numbers that no float holds.
func value(depth int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		kind := rapid.IntRange(0, 5).Draw(t, "kind")
		if depth == 0 && kind > 3 {
			kind -= 3
		}
		switch kind {
		case 0:
			return rapid.SampledFrom([]string{"null", "true", "false"}).Draw(t, "word")
		case 1:
			return rapid.SampledFrom([]string{"0", "-0", "1.0", "1e3", "9007199254740993", "18446744073709551617",
				"0.10", "-1E-2"}).Draw(t, "number")
		case 2, 3:
			return quote(t, text().Draw(t, "string"))
		case 4:
			var b strings.Builder
			for i := range rapid.IntRange(0, 4).Draw(t, "n") {
				if i > 0 {
					b.WriteByte(',')
				}
				b.WriteString(value(depth-1).Draw(t, "element"))
			}
			return "[" + b.String() + "]"
		}
		return string(object(depth-1).Draw(t, "object").raw())
	})
}

// quote writes a string as JSON in one of the ways that writers have: plain, HTML-safe, or all escaped.
func quote(t *rapid.T, s string) string {
	switch rapid.IntRange(0, 2).Draw(t, "escapes") {
	case 0:
		return string(rawjson.Encode(s))
	case 1:
		b, err := json.Marshal(s)
		require.NoError(t, err)
		return string(b)
	}
	var b strings.Builder
	for _, r := range s {
		if r < 0x10000 {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return `"` + b.String() + `"`
}

type pair struct{ key, keyRaw, raw string }

type pairs []pair

func (p pairs) raw() []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, kv := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(kv.keyRaw + ":" + kv.raw)
	}
	b.WriteByte('}')
	return b.Bytes()
}

func object(depth int) *rapid.Generator[pairs] {
	return rapid.Custom(func(t *rapid.T) pairs {
		out := make(pairs, rapid.IntRange(0, 5).Draw(t, "pairs"))
		for i := range out {
			key := text().Draw(t, "key")
			out[i] = pair{key, quote(t, key), value(depth).Draw(t, "value")}
		}
		return out
	})
}

// The edits against a list of pairs and encoding/json: the field that is named changes, nothing else does.
func TestRawEditsOnAnyObject(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		obj := object(3).Draw(t, "object")
		raw := obj.raw()
		was := string(raw)
		require.True(t, json.Valid(raw), "the generator")
		key := text().Draw(t, "other key")
		if len(obj) > 0 && rapid.Bool().Draw(t, "a key that is there") {
			key = obj[rapid.IntRange(0, len(obj)-1).Draw(t, "which")].key
		}
		last := -1
		for i, kv := range obj {
			if kv.key == key {
				last = i
			}
		}

		got, ok := rawjson.Field(raw, key)
		require.Equal(t, last >= 0, ok)
		if ok {
			require.Equal(t, obj[last].raw, string(got), "Field")
			var m map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(raw, &m))
			require.Equal(t, string(m[key]), string(got), "the same as encoding/json reads")
			var s *string
			want := json.Unmarshal(m[key], &s) == nil && s != nil
			str, isString := rawjson.FieldString(raw, key)
			require.Equal(t, want, isString)
			if want {
				require.Equal(t, *s, str)
			}
		}

		put := value(1).Draw(t, "new value")
		want := append(pairs(nil), obj...)
		if last >= 0 {
			want[last].raw = put
		} else {
			want = append(want, pair{key, string(rawjson.Encode(key)), put})
		}
		require.Equal(t, string(want.raw()), string(rawjson.SetField(raw, key, []byte(put))), "SetField")

		want = nil
		for _, kv := range obj {
			if kv.key != key {
				want = append(want, kv)
			}
		}
		require.Equal(t, string(want.raw()), string(rawjson.DropField(raw, key)), "DropField")
		require.Equal(t, was, string(raw), "input is never changed")
	})
}

func TestElementsOfAnyArray(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(value(2), 0, 6).Draw(t, "elements")
		raw := []byte("[" + strings.Join(want, ",") + "]")
		got := rawjson.Elements(raw)
		require.Len(t, got, len(want))
		for i := range want {
			require.Equal(t, want[i], string(got[i]))
		}
		require.Equal(t, string(raw), string(rawjson.Array(got)))
		if len(got) > 0 {
			_ = append(got[0], "xxxx"...)
			require.Equal(t, "["+strings.Join(want, ",")+"]", string(raw), "an element cannot grow into the next")
		}
	})
}

// Whatever a body is, the edits and views neither panic nor touch what they do not understand.
func TestEditsLeaveOtherValuesAlone(t *testing.T) {
	t.Parallel()
	for _, body := range []string{``, `null`, `1`, `true`, `"a}b"`, `[{}]`, `[{"k":1}]`, `}`, `{`, `"`, `[`} {
		require.Equal(t, body, string(rawjson.SetField([]byte(body), "k", []byte("2"))), "SetField on %q", body)
		require.Equal(t, body, string(rawjson.DropField([]byte(body), "k")), "DropField on %q", body)
		_, ok := rawjson.Field([]byte(body), "k")
		require.False(t, ok, body)
	}
	require.Nil(t, rawjson.Elements([]byte(`{"a":[1]}`)))
	require.Nil(t, rawjson.Elements(nil))
}

func TestRawEdits(t *testing.T) {
	t.Parallel()
	obj := []byte(`{"a":1,"b":[1,"x",{"c":2.50}],"a":3}`)
	raw, ok := rawjson.Field(obj, "a")
	require.True(t, ok)
	require.Equal(t, "3", string(raw), "the last of two counts")
	require.Equal(t, `{"a":1,"b":[1,"x",{"c":2.50}],"a":"n"}`, string(rawjson.SetFieldString(obj, "a", "n")))
	require.Equal(t, `{"b":[1,"x",{"c":2.50}]}`, string(rawjson.DropField(obj, "a")))
	require.Equal(t, `{"k":1}`, string(rawjson.SetField([]byte(`{}`), "k", []byte("1"))))
	raw, _ = rawjson.Field(obj, "b")
	elems := rawjson.Elements(raw)
	require.Len(t, elems, 3)
	require.Equal(t, `{"c":2.50}`, string(elems[2]))
	require.Equal(t, string(raw), string(rawjson.Array(elems)))
	require.Equal(t, `{}`, string(rawjson.DropField([]byte(`{"x":1}`), "x")))
}

// TestEditsKeepJSONThatHasBlanks: callers write JSON as their libraries do, many of them with blanks and line ends.
func TestEditsKeepJSONThatHasBlanks(t *testing.T) {
	t.Parallel()
	drop := func(obj, key string) string { return string(rawjson.DropField([]byte(obj), key)) }
	require.Equal(t, `{ "b": 2}`, drop(`{"a": 1, "b": 2}`, "a"))
	require.Equal(t, `{"a": 1}`, drop(`{"a": 1, "b": 2}`, "b"))
	require.JSONEq(t, `{"a":1}`, drop("{\n \"a\": 1 ,\n \"b\" : 2\n}", "b"))
	require.JSONEq(t, `{"b":2}`, drop("{\n \"a\": 1 ,\n \"b\" : 2\n}", "a"))
	require.JSONEq(t, `{"a":1,"c":3}`, drop(`{ "a": 1, "b": 2 , "c": 3 }`, "b"))
	require.JSONEq(t, `{"a":1}`, drop(`{ "b": 2 , "a": 1 , "b": 3 }`, "b"))
	require.JSONEq(t, `{}`, drop(`{ "a": 1 }`, "a"))
	require.JSONEq(t, `{"k":1}`, string(rawjson.SetField([]byte("{ \n}"), "k", []byte("1"))))
	require.JSONEq(t, `{"a":1,"k":1}`, string(rawjson.SetField([]byte(`{ "a": 1 }`), "k", []byte("1"))))
}

func TestTextsAndPaths(t *testing.T) {
	t.Parallel()
	obj := []byte(`{"a":{"b":{"c":" x "}},"n":1,"a2":null}`)
	require.Equal(t, " x ", rawjson.Text(rawjson.At(obj, "a", "b"), "c"))
	require.Equal(t, `{"b":{"c":" x "}}`, string(rawjson.At(obj, "a")))
	require.Equal(t, string(obj), string(rawjson.At(obj)))
	for _, path := range [][]string{{"x"}, {"a", "x"}, {"n", "b"}, {"a2", "b"}, {"a", "b", "c", "d"}} {
		require.Nil(t, rawjson.At(obj, path...), path)
	}
	require.Empty(t, rawjson.Text(obj, "n")+rawjson.Text(obj, "x")+rawjson.Text(nil, "a"))
}
