// Package stages holds the interceptors, one a file. A stage is made by its constructor from its configuration and
// the things it depends on; [All] is the one list of them. Adding an interceptor means one file, its test, and one
// line in All.
package stages

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// Spec is one line of the registry: the stage's place in the default chain and how it is made.
type Spec struct {
	Name  string // the stage, and the key under agent.interceptor; kinds may share one (audit)
	Alias string // the class name that the specification gives it, or empty
	Kind  messages.Kind
	Order int
	Tier  pipeline.Tier
	// Config returns a pointer to a fresh configuration with the defaults in it.
	Config func() any
	// New makes the stage from such a pointer. Make fills in what the line says: name, alias, kind, order and tier.
	New func(config any, d Deps) (pipeline.Stage, error)
	// On reports whether the stage is on by default; nil means that it is.
	On func(config any) bool
}

// Common holds the keys that every stage's section has. It is embedded inline in each configuration.
type Common struct {
	Enabled  *bool    `yaml:"enabled" doc:"Whether calls that enter pass it; not written: as the table of stages says."`
	Order    *int     `yaml:"order" doc:"Place in the chain; low is outermost."`
	OnAbsent string   `yaml:"on-absent" doc:"If nobody serves it, wait (default) or skip (if optional)." enum:"wait,skip,"`
	ApplyTo  []string `yaml:"apply-to" doc:"Calls that pass: agent, session, bare; empty: all." enum:"agent,session,bare"`
}

// CommonKeys returns the embedded keys, for whoever holds a configuration as any.
func (c *Common) CommonKeys() *Common { return c }

// Configured is what every stage configuration is.
type Configured interface{ CommonKeys() *Common }

// stage is one line of [All]: a typed constructor and the defaults of its configuration. The orders below 10 are those
// of mandatory stages.
func stage[C any](
	name string, kind messages.Kind, order int, make func(*C, Deps) (pipeline.Stage, error), c C,
) Spec {
	tier := pipeline.Optional
	if order < 10 {
		tier = pipeline.Mandatory
	}
	return Spec{
		Name: name, Kind: kind, Order: order, Tier: tier,
		Config: func() any { d := c; return &d },
		New: func(config any, d Deps) (pipeline.Stage, error) {
			c, ok := config.(*C)
			if !ok {
				return pipeline.Stage{}, fmt.Errorf("configuration is %T, want %T", config, c)
			}
			return make(c, d)
		},
	}
}

// alias gives the stage the class name that the specification has for it.
func (s Spec) alias(name string) Spec { s.Alias = name; return s }

// fixed keeps the stage on every route, though it is not among the outermost.
func (s Spec) fixed() Spec { s.Tier = pipeline.Fixed; return s }

// when says what of its configuration switches the stage on.
func (s Spec) when(on func(config any) bool) Spec { s.On = on; return s }

// off makes the stage one that is off until somebody asks for it.
func (s Spec) off() Spec { return s.when(func(any) bool { return false }) }

// Make builds the stage of a spec and reports whether it is enabled.
func (s Spec) Make(config any, d Deps) (stage pipeline.Stage, enabled bool, err error) {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	d.Log = d.Log.With("stage", s.Name, "kind", s.Kind)
	if d.Parser == nil {
		d.Parser = &args.Parser{}
	}
	common := &Common{}
	if c, ok := config.(Configured); ok {
		common = c.CommonKeys()
	}
	enabled = s.On == nil || s.On(config)
	if common.Enabled != nil {
		enabled = *common.Enabled
	}
	if c, ok := config.(interface{ Validate() error }); ok {
		err = c.Validate()
	}
	if err == nil {
		stage, err = s.New(config, d)
	}
	if err != nil {
		section := s.Name
		if shared, ok := errors.AsType[inSection](err); ok {
			section, err = shared.section, shared.error
		}
		return stage, enabled, under("agent.interceptor."+section, err)
	}
	stage.Name, stage.Alias, stage.Kind, stage.Order, stage.Tier = s.Name, s.Alias, s.Kind, s.Order, s.Tier
	err = common.apply(&stage)
	return stage, enabled, err
}

// apply gives the stage what its section says of every stage.
func (c *Common) apply(stage *pipeline.Stage) error {
	if c.Order != nil {
		stage.Order = *c.Order
	}
	if len(c.ApplyTo) > 0 {
		stage.ApplyTo = c.ApplyTo
	}
	for _, a := range stage.ApplyTo {
		if a != pipeline.ApplyAgent && a != pipeline.ApplySession && a != pipeline.ApplyBare {
			return fmt.Errorf("agent.interceptor.%s.apply-to: %q; known: agent, session, bare", stage.Name, a)
		}
	}
	switch c.OnAbsent {
	case "", "wait":
	case "skip":
		if stage.Tier != pipeline.Optional {
			return fmt.Errorf("agent.interceptor.%s.on-absent: %s stages wait; skip is for optional ones",
				stage.Name, stage.Tier)
		}
		stage.SkipAbsent = true
	default:
		return fmt.Errorf("agent.interceptor.%s.on-absent: %q; known: wait, skip", stage.Name, c.OnAbsent)
	}
	return nil
}

// Short names, so that a stage is one line of [All].
const modelCall, toolCall, agentRun = messages.Model, messages.Tool, messages.Agent

// All is the default chain: one line an interceptor, in registration order.
func All() []Spec {
	return []Spec{
		stage("audit", modelCall, 0, newAudit, AuditConfig{}),
		stage("call-limit", modelCall, 3, newCallLimit, defaultCallLimit()).alias("ModelCallLimitHook").when(callLimitOn),
		stage("budget", modelCall, 4, newBudget, BudgetConfig{}).when(budgetOn),
		stage("pii", modelCall, 6, newPII, defaultPII()).alias("PIIDetectionHook").off(),
		stage("model-fallback", modelCall, 10, newModelFallback, defaultModelFallback()).alias("ModelFallbackInterceptor"),
		stage("pair-repair", modelCall, 25, newPairRepair, defaultPairRepair()),
		stage("context-editing", modelCall, 30, newContextEditing, defaultEditing()).alias("ContextEditingInterceptor"),
		stage("sub-agent", modelCall, 60, newSubAgent, defaultSubAgent()).alias("SubAgentInterceptor"),
		stage("tool-selection", modelCall, 70, newToolSelection, defaultToolSelection()).alias("ToolSelectionInterceptor"),
		stage("todo-list", modelCall, 80, newTodo, defaultTodo()).alias("TodoListInterceptor"),
		stage("model-cache", modelCall, 90, newModelCache, defaultModelCache()).off(),
		stage("model-retry", modelCall, 95, newModelRetry, defaultModelRetry()).off(),
		stage("logging", modelCall, 100, newLogging, LoggingConfig{Sample: 1}).alias("LoggingModelInterceptor"),
		stage("audit", toolCall, 0, newAudit, AuditConfig{}),
		stage("tool-fallback", toolCall, 10, newToolFallback, ToolFallbackConfig{}).alias("FallbackManager"),
		stage("tool-arguments", toolCall, 14, newToolArguments, ToolArgumentsConfig{}).alias("ArgParser").fixed(),
		stage("approval", toolCall, 16, newApproval, ApprovalConfig{}).fixed(),
		stage("tool-cache", toolCall, 20, newToolCache, defaultToolCache()).alias("CachingToolInterceptor"),
		// The specification gives it the order of the cache. Registered later it is inner, so what is cached is small.
		stage("large-result-eviction", toolCall, 20, newEviction, defaultEviction()).alias("LargeResultEvictionInterceptor"),
		stage("tool-retry", toolCall, 30, newToolRetry, defaultToolRetry()).alias("RetryToolInterceptor"),
		stage("tool-error", toolCall, 35, newToolError, ToolErrorConfig{}).alias("ToolErrorInterceptor"),
		stage("rate-limit", toolCall, 40, newRateLimit, RateLimitConfig{}).when(rateLimitOn),
		stage("concurrency", toolCall, 45, newConcurrency, defaultConcurrency()).when(concurrencyOn),
		stage("tool-pii", toolCall, 48, newToolPII, ToolPIIConfig{}).off(),
		stage("timeout", toolCall, 50, newTimeout, TimeoutConfig{}).alias("TimeoutExecutor").fixed(),
		stage("audit", agentRun, 0, newAudit, AuditConfig{}),
	}
}
