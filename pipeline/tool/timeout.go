package tool

import (
	"fmt"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// Timeouts are the defaults for tools without a timeout of their own: by prefix of the name, and a general one.
type Timeouts struct {
	Default  time.Duration
	Prefixes map[string]time.Duration
}

// DefaultTimeouts are the defaults of the configuration.
func DefaultTimeouts() Timeouts {
	return Timeouts{
		Default:  15 * time.Second,
		Prefixes: map[string]time.Duration{"search_": 10 * time.Second, "create_": 30 * time.Second},
	}
}

// For returns the time limit of one attempt: the tool's own, else that of the longest matching prefix, else the
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

// TimeoutText is the message of a result that came too late.
func TimeoutText(tool string, limit time.Duration) string {
	return fmt.Sprintf("Tool '%s' timed out after %dms", tool, limit.Milliseconds())
}

// TimeoutFault is the fault of an attempt that took too long. For a tool that may not run twice and had started, use
// [UnknownOutcome] instead.
func TimeoutFault(tool string, limit time.Duration) *messages.Fault {
	return messages.NewFault(messages.ToolTimeout, "%s", TimeoutText(tool, limit)).From(messages.TargetOrigin)
}

// DoNotRepeat is in every text of [UnknownOutcome].
const DoNotRepeat = "Do not repeat it"

// UnknownOutcome is the fault of a tool that may or may not have done its work. check names a read tool; may be empty.
func UnknownOutcome(tool, why, check string) *messages.Fault {
	look := "look up what it was to change before doing anything else"
	if check != "" {
		look = "check with the tool '" + check + "'"
	}
	return messages.NewFault(messages.OutcomeUnknown,
		"%s. The outcome is unknown: '%s' may have been carried out. "+DoNotRepeat+"; %s.",
		strings.TrimSuffix(why, "."), tool, look).
		From(messages.TargetOrigin)
}

// AfterStart is the fault of a call that failed for another reason after its tool, which may not run twice, had
// started. A fault that invites another attempt becomes outcome_unknown; any other stays as it is.
func AfterStart(tool string, f *messages.Fault, check string) *messages.Fault {
	if f.OfTarget() && !NotExecuted(f) || !f.Retryable() && ErrorClassOf(f) == "" {
		return f
	}
	return UnknownOutcome(tool, fmt.Sprintf("'%s' was started, and then: %s", tool, f.Message), check)
}
