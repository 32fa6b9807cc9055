package tool

import (
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// The values of the metadata key "fallback", which mark a degraded result.
const (
	MarkFallback  = "fallback"
	StaleCache    = "stale_cache"
	StubDataMark  = "stub_data"
	GracefulError = "graceful_error"
)

// The limits of the cache of old results.
const (
	StaleTTL = 30 * time.Minute
	StaleMax = 5000
)

// ErrorClassOf is the class of a fault for retries and stand-ins; empty for a fault that gets no stand-in.
func ErrorClassOf(f *messages.Fault) messages.ErrorClass {
	if f == nil {
		return ""
	}
	if f.Code == messages.RetriesExhausted && f.Last != "" {
		return f.Last.Info().ErrorClass
	}
	return f.Code.Info().ErrorClass
}

// Graceful is the last stand-in, a result that tells the model what failed: {error, tool, message, suggestion}. A fault
// without a message gives "".
func Graceful(tool string, class messages.ErrorClass, message, suggestion string) []byte {
	return rawjson.Encode(struct {
		Error      messages.ErrorClass `json:"error"`
		Tool       string              `json:"tool"`
		Message    string              `json:"message"`
		Suggestion string              `json:"suggestion"`
	}{class, tool, message, suggestion})
}

// StaleAllowed reports whether an old result may take the place of a failed one. The tool must be cacheable, and the
// arguments must have been good: bad ones would get the data of a call that nobody made.
func StaleAllowed(class messages.ErrorClass, e Effective) bool {
	return class != "" && class != messages.ClassArguments && class != messages.ClassNotFound && e.Cacheable
}

// StubAllowed reports whether the tool's stub data may take the place of a failed result. The tool must declare some,
// and the arguments must have been good.
func StubAllowed(class messages.ErrorClass, d *Definition) bool {
	return class != "" && class != messages.ClassArguments && d != nil && len(d.StubData) > 0
}
