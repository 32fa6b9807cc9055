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

// UsageOf reads the usage of a reply, by the names of any of the APIs.
func UsageOf(reply []byte) Usage {
	u, ok := rawjson.Field(reply, "usage")
	if !ok {
		return Usage{}
	}
	details := func(names ...string) []byte {
		for _, name := range names {
			if raw, ok := rawjson.Field(u, name); ok {
				return raw
			}
		}
		return nil
	}
	return Usage{
		Input: firstInt(u, "prompt_tokens", "input_tokens"), Output: firstInt(u, "completion_tokens", "output_tokens"),
		CacheRead: max(firstInt(details("prompt_tokens_details", "input_tokens_details"), "cached_tokens"),
			firstInt(u, "cache_read_input_tokens")),
		Reasoning: firstInt(details("completion_tokens_details", "output_tokens_details"), "reasoning_tokens"),
	}
}

func firstInt(obj []byte, names ...string) int64 {
	for _, name := range names {
		if raw, ok := rawjson.Field(obj, name); ok {
			if n, ok := rawjson.Int(raw); ok && n > 0 {
				return n
			}
		}
	}
	return 0
}
