package chat

import "github.com/shallot-nats/shallot/messages/rawjson"

// Usage is what a provider says that an answer cost, in tokens. A provider that says nothing gives the zero value;
// nothing is guessed.
type Usage struct {
	Input     int64 `json:"input,omitempty"`
	Output    int64 `json:"output,omitempty"`
	CacheRead int64 `json:"cacheRead,omitempty"` // of the input, read from the provider's cache
	Reasoning int64 `json:"reasoning,omitempty"` // of the output
}

// Answered reads who a reply says that answered, and what it cost, by the names of any of the APIs.
func Answered(reply []byte) (model string, u Usage) {
	rawjson.EachField(reply, func(key string, raw []byte) {
		switch key {
		case "model":
			model, _ = rawjson.IsString(raw)
		case "usage":
			u = usageOf(raw)
		}
	})
	return model, u
}

func usageOf(raw []byte) (u Usage) {
	rawjson.EachField(raw, func(key string, v []byte) {
		switch key {
		case "prompt_tokens", "input_tokens":
			u.Input = count(v)
		case "completion_tokens", "output_tokens":
			u.Output = count(v)
		case "cache_read_input_tokens":
			u.CacheRead = count(v)
		case "prompt_tokens_details", "input_tokens_details":
			if cached, ok := rawjson.Field(v, "cached_tokens"); ok {
				u.CacheRead = count(cached)
			}
		case "completion_tokens_details", "output_tokens_details":
			if thought, ok := rawjson.Field(v, "reasoning_tokens"); ok {
				u.Reasoning = count(thought)
			}
		}
	})
	return u
}

func count(raw []byte) int64 {
	n, ok := rawjson.Int(raw)
	if !ok || n < 0 {
		return 0
	}
	return n
}
