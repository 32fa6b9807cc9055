package tool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// Policy is what a tool declares about itself. The tool knows whether it may be repeated or cached; the pipeline only
// acts on what it says. [Rules.Effective] fills in everything left out.
type Policy struct {
	// Effect is read, write, external (it reaches people or money), destructive or unknown.
	Effect string `yaml:"effect" json:"effect,omitempty"`
	// Idempotent says that running it twice with the same arguments does the same as running it once.
	Idempotent *bool `yaml:"idempotent" json:"idempotent,omitempty"`
	// IdempotencyKey says that the tool itself honours an idempotency key: "native" or empty.
	IdempotencyKey string       `yaml:"idempotency-key" json:"idempotency-key,omitempty"`
	Cache          *Cache       `yaml:"cache" json:"cache,omitempty"`
	Retry          *RetryPolicy `yaml:"retry" json:"retry,omitempty"`
	// Timeout limits one attempt; 0: the default of the name's prefix, else the general one.
	Timeout Duration `yaml:"timeout" json:"timeout,omitempty"`
	// Approval is none, always, or the name of a policy of the approval stage.
	Approval string `yaml:"approval" json:"approval,omitempty"`
	// MaxResult is the number of tokens above which a result is evicted; 0: the stage's threshold, -1: never.
	MaxResult        int    `yaml:"max-result" json:"max-result,omitempty"`
	ConcurrencyGroup string `yaml:"concurrency-group" json:"concurrency-group,omitempty"`
	// NotExecuted lists the statuses (HTTP, NATS service error) and codes (JSON-RPC) with which the tool says that it
	// did nothing. Without it, no answer of a tool that may not run twice proves that.
	NotExecuted []int `yaml:"not-executed" json:"not-executed,omitempty"`
	// Check names a reading tool that shows whether a call with an unknown outcome was carried out.
	Check string `yaml:"check" json:"check,omitempty"`
	// Coercion overrides tool.arguments.coercion: documents, extended or off.
	Coercion string `yaml:"coercion" json:"coercion,omitempty"`
	// UndeclaredArguments overrides tool.arguments.undeclared: auto, refuse, drop or pass.
	UndeclaredArguments string `yaml:"undeclared-arguments" json:"undeclared-arguments,omitempty"`
	// AllowBlank lists required text parameters that may be blank, beside those with minLength 0.
	AllowBlank []string `yaml:"allow-blank" json:"allow-blank,omitempty"`
	// Task says when an MCP caller that knows the Tasks extension gets a handle instead of the result; see [TaskAuto].
	Task string `yaml:"task" json:"task,omitempty"`
	// Clearable says whether context editing may clear results of this tool; nil: yes.
	Clearable *bool `yaml:"clearable" json:"clearable,omitempty"`
}

// The effects.
const (
	EffectRead     = "read"
	EffectWrite    = "write"
	EffectExternal = "external"
	// EffectDestructive counts as writing. Besides, arguments are never guessed for such a tool.
	EffectDestructive = "destructive"
	EffectUnknown     = "unknown"
)

// The values of Policy.Task. Empty is TaskAuto.
const (
	TaskAuto     = "auto"     // when the call has not ended after a short while
	TaskAlways   = "always"   // at once
	TaskRequired = "required" // at once, and callers without the extension are refused
	TaskNever    = "never"
)

// Cache is a tool's cache policy. In configuration it may be one word: "off" or a time to live.
type Cache struct {
	TTL   Duration `yaml:"ttl" json:"ttl,omitempty"`
	Scope string   `yaml:"scope" json:"scope,omitempty"` // tenant | session | shared | off
}

// The cache scopes. Entries never cross tenants unless the tool is declared shared.
const (
	ScopeTenant  = "tenant"
	ScopeSession = "session"
	ScopeShared  = "shared"
	ScopeOff     = "off"
)

// UnmarshalYAML takes "off", a time to live, true or false, or a record.
func (c *Cache) UnmarshalYAML(decode func(any) error) error {
	var on bool
	if decode(&on) == nil {
		return c.word(fmt.Sprint(on))
	}
	var s string
	if decode(&s) == nil {
		return c.word(s)
	}
	type plain Cache
	return decode((*plain)(c))
}

// UnmarshalJSON takes "off", a time to live, true or false, or a record.
func (c *Cache) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		return c.word(s)
	}
	if t := string(b); t == "true" || t == "false" {
		return c.word(t)
	}
	type plain Cache
	return strictJSON(b, (*plain)(c))
}

func (c *Cache) word(s string) error {
	switch s {
	case "off", "false":
		*c = Cache{Scope: ScopeOff}
		return nil
	case "on", "true":
		*c = Cache{}
		return nil
	}
	*c = Cache{}
	return c.TTL.UnmarshalText([]byte(s))
}

func (p Policy) check() (at string, err error) {
	oneOf := func(at, got string, known ...string) (string, error) {
		for _, k := range known {
			if got == k {
				return "", nil
			}
		}
		return at, fmt.Errorf("%q; known: %s", args.Clip(got), strings.Join(known[1:], ", "))
	}
	effects := []string{"", EffectRead, EffectWrite, EffectExternal, EffectDestructive, EffectUnknown}
	if at, err := oneOf("/effect", p.Effect, effects...); err != nil {
		return at, err
	}
	if at, err := oneOf("/idempotency-key", p.IdempotencyKey, "", "native"); err != nil {
		return at, err
	}
	if at, err := oneOf("/coercion", p.Coercion, "", args.Documents, args.Extended, args.Off); err != nil {
		return at, err
	}
	undeclared := []string{"", args.Auto, args.Refuse, args.Drop, args.Pass}
	if at, err := oneOf("/undeclared-arguments", p.UndeclaredArguments, undeclared...); err != nil {
		return at, err
	}
	if at, err := oneOf("/task", p.Task, "", TaskAuto, TaskAlways, TaskRequired, TaskNever); err != nil {
		return at, err
	}
	if p.Cache != nil {
		if at, err := oneOf("/cache/scope", p.Cache.Scope, "", ScopeTenant, ScopeSession, ScopeShared, ScopeOff); err != nil {
			return at, err
		}
	}
	if p.Retry != nil {
		if err := p.Retry.check(); err != nil {
			return "/retry", err
		}
	}
	for _, status := range p.NotExecuted {
		if status >= 0 && status < 300 {
			return "/not-executed", fmt.Errorf("%d; statuses of refusals are 300 and above, JSON-RPC codes are negative", status)
		}
	}
	if p.MaxResult < -1 {
		return "/max-result", fmt.Errorf("%d; -1 (never), 0 (the stage's threshold) or a number of tokens", p.MaxResult)
	}
	return "", nil
}

// Rules are the global settings that fill in what a tool leaves open.
type Rules struct {
	// Undeclared says what a tool of the operator or the API is taken for if it declares no effect: careful (it writes,
	// unless its name says that it reads), documents (by the name prefixes of the specification) or strict.
	Undeclared string
	// Discovered is strict, or annotations: then the hints of a discovered tool are believed, readOnly first.
	Discovered string
	Timeouts   Timeouts
}

// The values of Rules.Undeclared and Rules.Discovered.
const (
	PolicyCareful     = "careful"
	PolicyDocuments   = "documents"
	PolicyStrict      = "strict"
	PolicyAnnotations = "annotations"
)

// DefaultRules are the defaults of the configuration.
func DefaultRules() Rules {
	return Rules{Undeclared: PolicyCareful, Discovered: PolicyStrict, Timeouts: DefaultTimeouts()}
}

// Effective is a tool's policy with nothing left open.
type Effective struct {
	Effect string
	// Idempotent says that the tool may run twice. It is true for every reading tool: most read-only tools in the field
	// carry idempotentHint false.
	Idempotent bool
	// Cacheable says that results may be stored, and that an old one may take the place of a failed call.
	Cacheable  bool
	CacheTTL   time.Duration // 0: the cache stage's
	CacheScope string
	// Retry is the tool's own policy, or nil where the retry stage's default holds.
	Retry   *RetryPolicy
	Timeout time.Duration
	// Unguarded says that no begun record is needed: the tool reads, is idempotent, or honours the key itself.
	Unguarded bool
	Check     string
}

// mutating are the name prefixes of tools that write, reading those of tools that read.
var (
	mutating = []string{"create_", "delete_", "update_"}
	reading  = []string{"get_", "search_", "query_", "list_", "find_", "read_"}
)

// Effective fills in a tool's policy. What the tool declares wins; a name prefix is only a default.
func (r Rules) Effective(d *Definition) Effective {
	e := Effective{Effect: d.Effect, CacheScope: ScopeTenant, Check: d.Check}
	e.Timeout = r.Timeouts.For(d.Name, d.Timeout.D())
	mode := r.Undeclared
	if d.Source == Discovered {
		mode = r.Discovered
	}
	effect, idempotent, cache := r.guess(d, mode)
	if e.Effect == "" || e.Effect == EffectUnknown {
		e.Effect = effect
	}
	switch {
	case e.Effect == EffectRead:
		e.Idempotent = true
	case d.Idempotent != nil:
		e.Idempotent = *d.Idempotent
	case Effective{Effect: d.Effect}.writes():
		e.Idempotent = false
	default:
		e.Idempotent = idempotent
	}
	e.Cacheable = cache && e.Idempotent && !e.writes()
	if c := d.Cache; c != nil {
		e.CacheTTL = c.TTL.D()
		e.Cacheable = c.Scope != ScopeOff
		if c.Scope != "" {
			e.CacheScope = c.Scope
		}
	}
	if !e.Cacheable {
		e.CacheScope = ScopeOff
	}
	e.Retry = d.Retry
	if e.Retry == nil && mode == PolicyStrict && d.Effect == "" && d.Idempotent == nil {
		none := NoRetry()
		e.Retry = &none
	}
	e.Unguarded = e.Idempotent || d.IdempotencyKey == "native"
	return e
}

// guess is the policy of a tool that declares none.
func (r Rules) guess(d *Definition, mode string) (effect string, idempotent, cache bool) {
	switch mode {
	case PolicyAnnotations:
		a := d.Annotations
		if a != nil && is(a.ReadOnly) {
			return EffectRead, true, false // a read-only tool may give new results: cached only with a ttl of its own
		}
		return EffectUnknown, a != nil && is(a.Idempotent), false
	case PolicyStrict:
		return EffectUnknown, false, d.Effect == EffectRead && d.Source != Discovered
	}
	reads := d.Effect == EffectRead || hasPrefix(d.Name, reading) && (d.Idempotent == nil || *d.Idempotent)
	switch {
	case mode == PolicyCareful && reads && !hasPrefix(d.Name, mutating):
		return EffectRead, true, true
	case mode == PolicyCareful || hasPrefix(d.Name, mutating):
		return EffectWrite, false, false
	}
	return EffectUnknown, true, true
}

func hasPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// writes reports whether the tool changes something.
func (e Effective) writes() bool {
	return e.Effect == EffectWrite || e.Effect == EffectExternal || e.Effect == EffectDestructive
}

// Assumed reports whether the tool is taken for one that writes only because it declares nothing.
func (r Rules) Assumed(d *Definition) bool {
	silent := (d.Effect == "" || d.Effect == EffectUnknown) && d.Idempotent == nil
	return silent && d.Source != Discovered && r.Undeclared == PolicyCareful && r.Effective(d).writes()
}

func is(b *bool) bool { return b != nil && *b }

// strictJSON refuses unknown keys.
func strictJSON(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}
