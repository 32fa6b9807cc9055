package tool

import (
	"fmt"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// Timeouts are the defaults for tools without a timeout of their own (S2-TIME-3).
type Timeouts struct {
	Default  time.Duration
	Prefixes map[string]time.Duration
}

// DefaultTimeouts are those of contracts T4.
func DefaultTimeouts() Timeouts {
	return Timeouts{
		Default:  15 * time.Second,
		Prefixes: map[string]time.Duration{"search_": 10 * time.Second, "create_": 30 * time.Second},
	}
}

// For resolves the time limit of one attempt: the tool's own, else that of the longest matching prefix, else the
// default.
func (t Timeouts) For(tool string, own time.Duration) time.Duration {
	if own > 0 {
		return own
	}
	best, d := -1, t.Default
	for p, v := range t.Prefixes {
		if v > 0 && strings.HasPrefix(tool, p) && len(p) > best {
			best, d = len(p), v
		}
	}
	if d <= 0 {
		return 15 * time.Second
	}
	return d
}

// TimeoutText is the text of S2-TIME-2.
func TimeoutText(tool string, limit time.Duration) string {
	return fmt.Sprintf("Tool '%s' timed out after %dms", tool, limit.Milliseconds())
}

// TimeoutFault is the fault of an attempt that took too long. A tool that may not run twice and had started gives
// outcome_unknown instead (contracts 10): see UnknownOutcome.
func TimeoutFault(tool string, limit time.Duration) *messages.Fault {
	return messages.NewFault(messages.ToolTimeout, "%s", TimeoutText(tool, limit)).From(messages.TargetOrigin)
}

// DoNotRepeat is in every text of [UnknownOutcome].
const DoNotRepeat = "Do not repeat it"

// UnknownOutcome is the fault of a tool that may or may not have done its work. check names a read tool; may be empty.
func UnknownOutcome(tool, why, check string) *messages.Fault {
	look := "look up what it was to change before anything else is done"
	if check != "" {
		look = "check with the tool '" + check + "'"
	}
	return messages.NewFault(messages.OutcomeUnknown,
		"%s. The outcome is unknown: '%s' may have been carried out. "+DoNotRepeat+"; %s.", strings.TrimSuffix(why, "."), tool, look).
		From(messages.TargetOrigin)
}

// AfterStart is the fault of a call whose tool may not run twice and had started, when something else than the tool
// went wrong with the call: a fault that invites to another try becomes outcome_unknown. Any other stays as it is.
func AfterStart(tool string, f *messages.Fault, check string) *messages.Fault {
	if f.OfTarget() && !NotExecuted(f) || !f.Retryable() && ErrorClassOf(f) == "" {
		return f
	}
	return UnknownOutcome(tool, fmt.Sprintf("'%s' was started, and then: %s", tool, f.Message), check)
}
