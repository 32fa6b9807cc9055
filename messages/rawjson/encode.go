package rawjson

import (
	"bytes"
	"encoding/json"
)

// Encode is json.Marshal without HTML escapes, for values that cannot fail. An [Appender] writes itself.
func Encode(v any) []byte {
	if a, ok := v.(Appender); ok {
		return a.AppendJSON(nil)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return []byte("null")
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
}
