package rawjson_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

var samples = []string{
	``, ` `, `{}`, `[]`, ` { } `, `{"a":1}`, `{"a":1,}`, `{"a"}`, `{"a":}`, `{a:1}`, `[1,2]`, `[1,]`, `[1 2]`, `{]`,
	`{"a":[{"b":null}],"c":true,"d":false}`, `true`, `-1.5e3`, `"`, `"a\"b"`, `{"a\"}":"\\"}`,
	`{"\u0061":"]"}`, `[[[[]]]]`,
	`{"":{}}`, `{"a" : "b" , "c":[ ]}`, `{"a":1}{"b":2}`, `["a\\",{"b":"[{"}]`, "{\"a\":\n1\t}",
	`{"a":1,"a":2}`, `[`, `{"a":"`,
}

// FuzzWalk holds the walkers to what the library reads, and to an end where it reads nothing.
func FuzzWalk(f *testing.F) {
	for _, s := range samples {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if !utf8.Valid(in) {
			in = []byte(strings.ToValidUTF8(string(in), "?")) // the library reads bytes that are no text as others
		}
		var object map[string]json.RawMessage
		var array []json.RawMessage
		isObject := json.Valid(in) && json.Unmarshal(in, &object) == nil && object != nil
		isArray := json.Valid(in) && json.Unmarshal(in, &array) == nil && array != nil
		seen := map[string]string{}
		rawjson.EachField(in, func(key string, raw []byte) { seen[key] = string(raw) })
		elements := rawjson.Elements(in)
		switch {
		case isObject:
			require.Len(t, seen, len(object))
			for k, v := range object {
				require.Equal(t, string(v), seen[k], "%q in %q", k, in)
				raw, ok := rawjson.Field(in, k)
				require.True(t, ok)
				require.Equal(t, string(v), string(raw))
			}
		case isArray:
			require.Len(t, elements, len(array))
			for i := range array {
				require.Equal(t, string(array[i]), string(elements[i]))
			}
		}
	})
}
