package tool

import (
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// The marks of degraded results: metadata "fallback" (S2-FALL-2 to S2-FALL-4).
const (
	MarkFallback  = "fallback"
	StaleCache    = "stale_cache"
	StubDataMark  = "stub_data"
	GracefulError = "graceful_error"
)

// The limits of the stale cache (S2-FALL-2).
const (
	StaleTTL = 30 * time.Minute
	StaleMax = 5000
)

// ErrorClassOf is the documents' class of a fault (S2-FALL-5); where the ladder does not act it is empty.
func ErrorClassOf(f *messages.Fault) messages.ErrorClass {
	if f == nil {
		return ""
	}
	if f.Code == messages.RetriesExhausted && f.Last != "" {
		return f.Last.Info().ErrorClass
	}
	return f.Code.Info().ErrorClass
}

// Graceful is the last rung of the ladder: {error, tool, message, suggestion} (S2-FALL-4, S2-FALL-7). A fault
// without a message gives "".
func Graceful(tool string, class messages.ErrorClass, message, suggestion string) []byte {
	return rawjson.Encode(struct {
		Error      messages.ErrorClass `json:"error"`
		Tool       string              `json:"tool"`
		Message    string              `json:"message"`
		Suggestion string              `json:"suggestion"`
	}{class, tool, message, suggestion})
}

// StaleAllowed, StubAllowed say which rungs a call may use: bad arguments skip to the graceful error, a stale
// result stands in only for a cacheable tool (contracts 11), and a stub only for one that declares it.
func StaleAllowed(class messages.ErrorClass, e Effective) bool {
	return class != "" && class != messages.ClassArguments && class != messages.ClassNotFound && e.Cacheable
}

// StubAllowed: see StaleAllowed.
func StubAllowed(class messages.ErrorClass, d *Definition) bool {
	return class != "" && class != messages.ClassArguments && d != nil && len(d.StubData) > 0
}
