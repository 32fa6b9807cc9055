package rawjson_test

import (
	"fmt"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// One field is edited; numbers, order and white space of all others stay as they were.
func ExampleSetField() {
	body := []byte(`{"b": 9007199254740993, "a": [1.50]}`)
	body = rawjson.SetFieldString(body, "model", "m")
	body = rawjson.SetField(body, "a", []byte(`[]`))
	fmt.Println(string(body))
	fmt.Println(string(rawjson.DropField(body, "b")))
	// Output:
	// {"b": 9007199254740993, "a": [],"model":"m"}
	// { "a": [],"model":"m"}
}

// Two spellings of one value are the same as canonical JSON.
func ExampleCanonical() {
	for _, s := range []string{`{"b":1.0,"a":"\u0041"}`, `{ "a": "A", "b": 1 }`} {
		out, err := rawjson.Canonical([]byte(s))
		fmt.Println(string(out), err)
	}
	// Output:
	// {"a":"A","b":1} <nil>
	// {"a":"A","b":1} <nil>
}
