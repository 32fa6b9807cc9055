package tool

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// RetryPolicy says how often and when a tool is tried again. MaxAttempts counts all attempts, the first one too. In
// configuration it may be the name of a preset.
type RetryPolicy struct {
	Name        string   `yaml:"-" json:"name,omitempty"`
	MaxAttempts int      `yaml:"max-attempts" json:"max-attempts,omitempty"`
	BaseDelay   Duration `yaml:"base-delay" json:"base-delay,omitempty"`
	Multiplier  float64  `yaml:"multiplier" json:"multiplier,omitempty"`
	MaxDelay    Duration `yaml:"max-delay" json:"max-delay,omitempty"` // 0: 30s
	Jitter      float64  `yaml:"jitter" json:"jitter,omitempty"`       // 0.25: each delay within +-25 %
	// On lists the faults worth another attempt: fault codes, error classes, or "any". Empty means any: an operator who
	// writes max-attempts wants attempts.
	On []string `yaml:"on" json:"on,omitempty"`
}

// AnyFault in RetryPolicy.On stands for every fault of the tool itself.
const AnyFault = "any"

const maxDelay = 30 * time.Second

// NetworkRetry is the preset for network trouble, which a tool's timeout counts as: 3 attempts, 500 ms, doubled.
func NetworkRetry() RetryPolicy {
	return RetryPolicy{
		Name: "networkRetry", MaxAttempts: 3, BaseDelay: Duration(500 * time.Millisecond), Multiplier: 2,
		On: []string{string(messages.ToolTimeout), string(messages.ToolNetwork), string(messages.TargetAbsent)},
	}
}

// IdempotentSafeRetry is the preset for any fault: 2 attempts, 200 ms, times 1.5.
func IdempotentSafeRetry() RetryPolicy {
	return RetryPolicy{
		Name: "idempotentSafeRetry", MaxAttempts: 2, BaseDelay: Duration(200 * time.Millisecond), Multiplier: 1.5,
		On: []string{AnyFault},
	}
}

// NoRetry is the preset of one attempt.
func NoRetry() RetryPolicy { return RetryPolicy{Name: "noRetry", MaxAttempts: 1} }

// Preset returns the policy of that name.
func Preset(name string) (RetryPolicy, error) {
	for _, p := range []RetryPolicy{NetworkRetry(), IdempotentSafeRetry(), NoRetry()} {
		if p.Name == name {
			return p, nil
		}
	}
	return RetryPolicy{}, fmt.Errorf("retry preset %q; known: networkRetry, idempotentSafeRetry, noRetry", args.Clip(name))
}

// UnmarshalYAML takes the name of a preset or a record.
func (p *RetryPolicy) UnmarshalYAML(decode func(any) error) error {
	var s string
	if decode(&s) == nil {
		x, err := Preset(s)
		*p = x
		return err
	}
	type plain RetryPolicy
	return decode((*plain)(p))
}

// UnmarshalJSON takes the name of a preset or a record.
func (p *RetryPolicy) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		x, err := Preset(s)
		*p = x
		return err
	}
	type plain RetryPolicy
	return strictJSON(b, (*plain)(p))
}

func (p RetryPolicy) check() error {
	switch {
	case p.MaxAttempts < 1 || p.MaxAttempts > 100:
		return fmt.Errorf("max-attempts is %d; 1 (no retry) to 100", p.MaxAttempts)
	case p.Multiplier < 0 || math.IsNaN(p.Multiplier) || p.Multiplier > 100:
		return fmt.Errorf("multiplier is %v; 0 (the same delay) to 100", p.Multiplier)
	case p.Jitter < 0 || p.Jitter > 1 || math.IsNaN(p.Jitter):
		return fmt.Errorf("jitter is %v; 0 to 1", p.Jitter)
	}
	for _, on := range p.On {
		if on != AnyFault && !messages.Code(on).Known() && !slices.Contains(classes, messages.ErrorClass(on)) {
			return fmt.Errorf("on: %q is neither a fault code, nor a class, nor any", args.Clip(on))
		}
	}
	return nil
}

var classes = []messages.ErrorClass{
	messages.ClassTimeout, messages.ClassArguments, messages.ClassNotFound, messages.ClassNetwork, messages.ClassInternal,
}

// NextDelay is base * multiplier^n, at most MaxDelay. Before the second attempt n is 0 for the policy of the retry
// stage and 1 for a tool's own. The exponent is bounded before the power is taken.
func (p RetryPolicy) NextDelay(n int) time.Duration {
	top := p.MaxDelay.D()
	if top <= 0 {
		top = maxDelay
	}
	m := p.Multiplier
	if m <= 0 {
		m = 1
	}
	d := float64(p.BaseDelay) * math.Pow(m, float64(max(0, min(n, 64))))
	if !(d < float64(top)) {
		return top
	}
	return time.Duration(d)
}

// ShouldRetry reports whether another attempt is worth it after the given number of attempts. Only faults of the tool
// itself count. Bad arguments, unknown tools, unknown outcomes and cancelled calls never do: the next attempt would end
// the same, or do the work twice.
func (p RetryPolicy) ShouldRetry(attempts int, f *messages.Fault) bool {
	if f == nil || attempts >= p.MaxAttempts || !f.OfTarget() {
		return false
	}
	switch f.Code {
	case messages.InvalidArguments, messages.InvalidRequest, messages.ToolNotFound, messages.OutcomeUnknown,
		messages.Cancelled, messages.Blocked, messages.DeadlineExceeded, messages.Misconfigured,
		messages.RetriesExhausted:
		return false
	}
	if len(p.On) == 0 {
		return true
	}
	class := f.Code.Info().ErrorClass
	for _, on := range p.On {
		if on == AnyFault || on == string(f.Code) || class != "" && on == string(class) {
			return true
		}
	}
	return false
}

// NotExecuted reports whether the fault proves that the tool did not run. Without such a proof, a tool that is not
// idempotent is not tried again. A timeout proves nothing.
func NotExecuted(f *messages.Fault) bool {
	return f != nil && (f.Unsent || f.Code == messages.TargetAbsent || f.Code == messages.Overloaded)
}

// MayRetry combines the policy with what is known about the tool: it is what the retry stage asks. fallback is the
// stage's own policy, for tools that declare none.
func (e Effective) MayRetry(fallback RetryPolicy, attempts int, f *messages.Fault) bool {
	p := fallback
	if e.Retry != nil {
		p = *e.Retry
	}
	return p.ShouldRetry(attempts, f) && (e.Unguarded || NotExecuted(f))
}
