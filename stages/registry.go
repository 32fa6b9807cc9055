// Package stages holds the interceptors, one a file. A stage is made by its constructor from its configuration and
// the things it depends on; [All] is the one list of them. Adding an interceptor means one file, its test, and one
// line in All.
package stages

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/toolbox/toolspec"
)

// Deps is what stages depend on. Host fills it; tests fill what the stage at hand needs.
type Deps struct {
	Log *slog.Logger
	// Store returns the named store: cache, retry, todo, limits. Never nil.
	Store func(name string) pipeline.Store
	// Caller makes whole model calls for stages that need one (the summary). It may be nil until the bus is up.
	Caller pipeline.Caller
	// Publish sends an audit record or an event, asynchronously; nil where nobody listens.
	Publish func(ctx context.Context, what string, record any) error
	// Record is Publish that returns only when the record is stored; nil where nothing can confirm it (audit.sync).
	Record func(ctx context.Context, what string, record any) error
	// Serves reports whether a provider serves the model name; nil means that it is not known here.
	Serves func(model string) bool
	// Lists reports whether a provider names the model in its list, not only by a pattern; nil means that it is not known.
	Lists func(model string) bool
	// Section returns the decoded configuration of another section under agent.interceptor (a pointer), or nil; for
	// stages that share settings (tool-pii uses the rules of pii). It may be nil.
	Section func(name string) any
	// Provider names the provider of a model, empty if unknown; nil means that it is not known here (FB-11).
	Provider func(model string) string
	// Tools finds tool definitions, Parser reads arguments against them, and Rules (key `tool` of the configuration)
	// fill in what a tool does not declare. Only the tool stages need them; Parser and Rules have defaults.
	Tools  toolspec.Tools
	Parser *toolspec.Parser
	Rules  *toolspec.Rules
	// Arguments are the settings of `tool.arguments`.
	Arguments toolspec.Options
	// Fallback are the settings of `tool.fallback`; nil means the defaults.
	Fallback *FallbackRules
	// Objects keeps evicted results where eviction-store is object; nil means that none are kept here.
	Objects Objects
	// Explicit reports whether a key of the configuration was written by the operator (FB-12).
	Explicit func(path string) bool
}

// Spec is one line of the registry: the stage's place in the default chain (contracts T1) and how it is made.
type Spec struct {
	Name  string // the stage, and with Section its configuration
	Class string // the documents' class name, or empty
	Kind  messages.Kind
	Order int
	Tier  pipeline.Tier
	// Section is the key under agent.interceptor; stages may share one (audit of model and tool calls).
	Section string
	// Config returns a pointer to a fresh configuration with the defaults in it.
	Config func() any
	// New makes the stage from such a pointer. Name, class, kind, order and tier are filled in by Make.
	New func(config any, d Deps) (pipeline.Stage, error)
	// On reports whether the stage is on by default.
	On func(config any) bool
}

// Common holds the keys that every stage's section has. It is embedded inline in each configuration.
type Common struct {
	Enabled  *bool    `yaml:"enabled" json:"enabled,omitempty" doc:"Whether calls that enter pass it; not written: as the table of stages says."`
	Order    *int     `yaml:"order" json:"order,omitempty" doc:"Place in the chain; low is outermost."`
	OnAbsent string   `yaml:"on-absent" json:"on-absent,omitempty" doc:"When no process serves it: wait until the deadline (default), or skip (optional stages only)."` // wait | skip
	Durable  bool     `yaml:"durable" json:"durable,omitempty" doc:"Its hop is stored, not only sent: survives the server, costs a write."`
	ApplyTo  []string `yaml:"apply-to" json:"apply-to,omitempty" doc:"Classes of model calls that pass it: agent, session, bare; empty: all."` // agent, session, bare; empty: all
}

// CommonKeys returns the embedded keys, for whoever holds a configuration as any.
func (c *Common) CommonKeys() *Common { return c }

// Configured is what every stage configuration is.
type Configured interface{ CommonKeys() *Common }

// build adapts a typed constructor to Spec.New.
func build[C any](make func(*C, Deps) (pipeline.Stage, error)) func(any, Deps) (pipeline.Stage, error) {
	return func(config any, d Deps) (pipeline.Stage, error) {
		c, ok := config.(*C)
		if !ok {
			return pipeline.Stage{}, fmt.Errorf("configuration is %T, want %T", config, c)
		}
		return make(c, d)
	}
}

// defaults adapts a default configuration to Spec.Config.
func defaults[C any](c C) func() any {
	return func() any { d := c; return &d }
}

// off is the On of stages that are off until somebody asks for them.
func off(any) bool { return false }

// roles are what stages are to the route checker (contracts 24), by name.
var roles = map[string]pipeline.Role{
	"pii": pipeline.RoleRedact, "tool-pii": pipeline.RoleRedact,
	"model-cache": pipeline.RoleCache, "tool-cache": pipeline.RoleCache,
	"large-result-eviction": pipeline.RoleEvict,
	"approval":              pipeline.RoleApprove, "tool-arguments": pipeline.RoleArguments,
	"model-retry": pipeline.RoleRetry, "tool-retry": pipeline.RoleRetry,
	"model-fallback": pipeline.RoleFallback, "tool-fallback": pipeline.RoleFallback,
}

// Make builds the stage of a spec and reports whether it is enabled.
func (s Spec) Make(config any, d Deps) (stage pipeline.Stage, enabled bool, err error) {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	d.Log = d.Log.With("stage", s.Name, "kind", s.Kind)
	common := &Common{}
	if c, ok := config.(Configured); ok {
		common = c.CommonKeys()
	}
	enabled = s.On == nil || s.On(config)
	if common.Enabled != nil {
		enabled = *common.Enabled
	}
	stage, err = s.New(config, d)
	if err != nil {
		return stage, enabled, fmt.Errorf("agent.interceptor.%s: %w", s.Section, err)
	}
	stage.Name, stage.Class, stage.Kind, stage.Order, stage.Tier = s.Name, s.Class, s.Kind, s.Order, s.Tier
	if stage.Role == "" {
		stage.Role = roles[s.Name]
	}
	// Every stage of the registry may run again for a later attempt: the suite of stages holds each of them to it.
	stage.Idempotent = true
	if common.Order != nil {
		stage.Order = *common.Order
	}
	if len(common.ApplyTo) > 0 {
		stage.ApplyTo = common.ApplyTo
	}
	for _, a := range stage.ApplyTo {
		if a != pipeline.ApplyAgent && a != pipeline.ApplySession && a != pipeline.ApplyBare {
			return stage, enabled, fmt.Errorf("agent.interceptor.%s.apply-to: %q; known: agent, session, bare", s.Section, a)
		}
	}
	switch common.OnAbsent {
	case "", "wait":
	case "skip":
		if s.Tier != pipeline.Optional {
			return stage, enabled, fmt.Errorf("agent.interceptor.%s.on-absent: %s stages wait; skip is for optional ones", s.Section, s.Tier)
		}
		stage.SkipAbsent = true
	default:
		return stage, enabled, fmt.Errorf("agent.interceptor.%s.on-absent: %q; known: wait, skip", s.Section, common.OnAbsent)
	}
	stage.Durable = stage.Durable || common.Durable
	return stage, enabled, nil
}

// All is the default chain of contracts T1: one line an interceptor, in registration order.
func All() []Spec {
	return []Spec{
		{Name: "audit", Kind: messages.Model, Order: 0, Tier: pipeline.Mandatory, Section: "audit", Config: defaults(AuditConfig{}), New: build(newAudit)},
		{Name: "call-limit", Class: "ModelCallLimitHook", Kind: messages.Model, Order: 3, Tier: pipeline.Mandatory, Section: "call-limit", Config: defaults(CallLimitConfig{ExitBehavior: exitEnd}), New: build(newCallLimit), On: callLimitOn},
		{Name: "budget", Kind: messages.Model, Order: 4, Tier: pipeline.Mandatory, Section: "budget", Config: defaults(BudgetConfig{}), New: build(newBudget), On: budgetOn},
		{Name: "pii", Class: "PIIDetectionHook", Kind: messages.Model, Order: 6, Tier: pipeline.Mandatory, Section: "pii",
			Config: defaults(PIIConfig{ApplyToInput: true, HashKeyEnv: "SHALLOT_PII_KEY"}), New: build(newPII), On: off},
		{Name: "model-fallback", Class: "ModelFallbackInterceptor", Kind: messages.Model, Order: 10, Tier: pipeline.Optional, Section: "model-fallback", Config: defaults(modelFallbackDefaults()), New: build(newModelFallback)},
		{Name: "pair-repair", Kind: messages.Model, Order: 25, Tier: pipeline.Optional, Section: "pair-repair", Config: defaults(PairRepairConfig{Common: Common{ApplyTo: []string{pipeline.ApplyAgent}}}), New: build(newPairRepair)},
		{Name: "context-editing", Class: "ContextEditingInterceptor", Kind: messages.Model, Order: 30, Tier: pipeline.Optional, Section: "context-editing", Config: defaults(defaultContextEditing()), New: build(newContextEditing)},
		{Name: "sub-agent", Class: "SubAgentInterceptor", Kind: messages.Model, Order: 60, Tier: pipeline.Optional, Section: "sub-agent", Config: defaults(defaultSubAgent()), New: build(newSubAgent)},
		{Name: "tool-selection", Class: "ToolSelectionInterceptor", Kind: messages.Model, Order: 70, Tier: pipeline.Optional, Section: "tool-selection", Config: defaults(defaultToolSelection()), New: build(newToolSelection)},
		{Name: "todo-list", Class: "TodoListInterceptor", Kind: messages.Model, Order: 80, Tier: pipeline.Optional, Section: "todo-list",
			Config: defaults(TodoConfig{Common: Common{ApplyTo: []string{pipeline.ApplyAgent, pipeline.ApplySession}}}), New: build(newTodo)},
		{Name: "model-cache", Kind: messages.Model, Order: 90, Tier: pipeline.Optional, Section: "model-cache", Config: defaults(ModelCacheConfig{TTL: 5 * time.Minute, MaxEntries: 10000}), New: build(newModelCache), On: off},
		{Name: "model-retry", Kind: messages.Model, Order: 95, Tier: pipeline.Optional, Section: "model-retry", Config: defaults(ModelRetryConfig{MaxRetries: 2, BaseDelay: 500 * time.Millisecond, MaxDelay: 30 * time.Second, Jitter: 0.25}), New: build(newModelRetry), On: off},
		{Name: "logging", Class: "LoggingModelInterceptor", Kind: messages.Model, Order: 100, Tier: pipeline.Optional, Section: "logging", Config: defaults(LoggingConfig{Sample: 1}), New: build(newLogging)},
		{Name: "audit", Kind: messages.Tool, Order: 0, Tier: pipeline.Mandatory, Section: "audit", Config: defaults(AuditConfig{}), New: build(newAudit)},
		{Name: "tool-fallback", Class: "FallbackManager", Kind: messages.Tool, Order: 10, Tier: pipeline.Optional, Section: "tool-fallback", Config: defaults(ToolFallbackConfig{}), New: build(newToolFallback)},
		{Name: "tool-arguments", Class: "ArgParser", Kind: messages.Tool, Order: 14, Tier: pipeline.Fixed, Section: "tool-arguments", Config: defaults(ToolArgumentsConfig{}), New: build(newToolArguments)},
		{Name: "approval", Kind: messages.Tool, Order: 16, Tier: pipeline.Fixed, Section: "approval", Config: defaults(ApprovalConfig{}), New: build(newApproval)},
		{Name: "tool-cache", Class: "CachingToolInterceptor", Kind: messages.Tool, Order: 20, Tier: pipeline.Optional, Section: "tool-cache",
			Config: defaults(ToolCacheConfig{TTL: 5 * time.Minute, MaxEntries: 1000, Sweep: time.Minute}), New: build(newToolCache)},
		// The same order as the cache, as the documents have it; registered after it, so inner to it.
		{Name: "large-result-eviction", Class: "LargeResultEvictionInterceptor", Kind: messages.Tool, Order: 20, Tier: pipeline.Optional, Section: "large-result-eviction",
			Config: defaults(largeResultEvictionDefaults()), New: build(newLargeResultEviction)},
		{Name: "tool-retry", Class: "RetryToolInterceptor", Kind: messages.Tool, Order: 30, Tier: pipeline.Optional, Section: "tool-retry",
			Config: defaults(ToolRetryConfig{MaxRetries: 2, BaseDelay: 500 * time.Millisecond, Multiplier: 2, MaxDelay: 30 * time.Second, ExecutedBy: retryByPipeline}), New: build(newToolRetry)},
		{Name: "tool-error", Class: "ToolErrorInterceptor", Kind: messages.Tool, Order: 35, Tier: pipeline.Optional, Section: "tool-error", Config: defaults(ToolErrorConfig{}), New: build(newToolError)},
		{Name: "rate-limit", Kind: messages.Tool, Order: 40, Tier: pipeline.Optional, Section: "rate-limit", Config: defaults(RateLimitConfig{}), New: build(newRateLimit), On: rateLimitOn},
		{Name: "concurrency", Kind: messages.Tool, Order: 45, Tier: pipeline.Optional, Section: "concurrency", Config: defaults(ConcurrencyConfig{Wait: 5 * time.Second}), New: build(newConcurrency), On: concurrencyOn},
		{Name: "tool-pii", Kind: messages.Tool, Order: 48, Tier: pipeline.Optional, Section: "tool-pii",
			Config: defaults(ToolPIIConfig{}), New: build(newToolPII), On: off},
		{Name: "timeout", Class: "TimeoutExecutor", Kind: messages.Tool, Order: 50, Tier: pipeline.Fixed, Section: "timeout", Config: defaults(TimeoutConfig{}), New: build(newTimeout)},
		{Name: "audit", Kind: messages.Agent, Order: 0, Tier: pipeline.Mandatory, Section: "audit", Config: defaults(AuditConfig{}), New: build(newAudit)},
	}
}
