package view

import (
	"bytes"
	"encoding/json"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// echoed are the texts of a request that a Response repeats.
var echoed = []string{"instructions", "metadata", "user", "safety_identifier", "prompt_cache_key"}

// Echo returns a Response that repeats the caller's own request: the provider repeats what stages have made of it, such
// as a system prompt with more in it. A Response that repeats it right keeps every byte.
func Echo(request, response []byte) []byte {
	for _, key := range echoed {
		had, ok := rawjson.Field(response, key)
		if !ok {
			continue
		}
		own, ok := rawjson.Field(request, key)
		switch {
		case !ok && (rawjson.IsNull(had) || key == "metadata"):
			continue
		case !ok:
			own = []byte("null")
		}
		var b bytes.Buffer
		if json.Compact(&b, own) == nil {
			response = set(response, key, b.Bytes())
		}
	}
	return response
}
