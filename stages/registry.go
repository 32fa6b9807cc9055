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
)

// Spec is one line of the registry: the stage's place in the default chain (contracts T1) and how it is made.
type Spec struct {
	Name  string // the stage, and the key under agent.interceptor; kinds may share one (audit)
	Alias string // the documents' class name, or empty
	Kind  messages.Kind
	Order int
	Tier  pipeline.Tier
	Role  pipeline.Role // what the stage is to the route checker, if one of its rules is about it
	// Config returns a pointer to a fresh configuration with the defaults in it.
	Config func() any
	// New makes the stage from such a pointer. Name, alias, kind, order, tier and role are filled in by Make.
	New func(config any, d Deps) (pipeline.Stage, error)
	// On reports whether the stage is on by default; nil means that it is.
	On func(config any) bool
}

// Common holds the keys that every stage's section has. It is embedded inline in each configuration.
type Common struct {
	Enabled  *bool    `yaml:"enabled" json:"enabled,omitempty" doc:"Whether calls that enter pass it; not written: as the table of stages says."`
	Order    *int     `yaml:"order" json:"order,omitempty" doc:"Place in the chain; low is outermost."`
	OnAbsent string   `yaml:"on-absent" json:"on-absent,omitempty" doc:"When no process serves it: wait until the deadline (default), or skip (optional stages only)." enum:"wait,skip,"`
	ApplyTo  []string `yaml:"apply-to" json:"apply-to,omitempty" doc:"Classes of model calls that pass it: agent, session, bare; empty: all." enum:"agent,session,bare"`
}

// CommonKeys returns the embedded keys, for whoever holds a configuration as any.
func (c *Common) CommonKeys() *Common { return c }

// Configured is what every stage configuration is.
type Configured interface{ CommonKeys() *Common }

// stage is one line of [All]: a typed constructor and the defaults of its configuration.
func stage[C any](
	name string, kind messages.Kind, order int, tier pipeline.Tier, make func(*C, Deps) (pipeline.Stage, error), c C,
) Spec {
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

// alias gives the stage the documents' class name.
func (s Spec) alias(name string) Spec { s.Alias = name; return s }

// is says what the stage is to the route checker.
func (s Spec) is(role pipeline.Role) Spec { s.Role = role; return s }

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
	if stage.Role == "" {
		stage.Role = s.Role
	}
	if common.Order != nil {
		stage.Order = *common.Order
	}
	if len(common.ApplyTo) > 0 {
		stage.ApplyTo = common.ApplyTo
	}
	for _, a := range stage.ApplyTo {
		if a != pipeline.ApplyAgent && a != pipeline.ApplySession && a != pipeline.ApplyBare {
			return stage, enabled, fmt.Errorf("agent.interceptor.%s.apply-to: %q; known: agent, session, bare", s.Name, a)
		}
	}
	switch common.OnAbsent {
	case "", "wait":
	case "skip":
		if s.Tier != pipeline.Optional {
			return stage, enabled, fmt.Errorf("agent.interceptor.%s.on-absent: %s stages wait; skip is for optional ones", s.Name, s.Tier)
		}
		stage.SkipAbsent = true
	default:
		return stage, enabled, fmt.Errorf("agent.interceptor.%s.on-absent: %q; known: wait, skip", s.Name, common.OnAbsent)
	}
	return stage, enabled, nil
}

// Short names, so that a stage is one line of [All].
const (
	modelCall, toolCall, agentRun = messages.Model, messages.Tool, messages.Agent
	mandatory, fixed, optional    = pipeline.Mandatory, pipeline.Fixed, pipeline.Optional
)

// All is the default chain of contracts T1: one line an interceptor, in registration order.
func All() []Spec {
	return []Spec{
		stage("audit", modelCall, 0, mandatory, newAudit, AuditConfig{}),
		stage("call-limit", modelCall, 3, mandatory, newCallLimit, defaultCallLimit()).
			alias("ModelCallLimitHook").when(callLimitOn),
		stage("budget", modelCall, 4, mandatory, newBudget, BudgetConfig{}).when(budgetOn),
		stage("pii", modelCall, 6, mandatory, newPII, defaultPII()).alias("PIIDetectionHook").is(pipeline.RoleRedact).off(),
		stage("model-fallback", modelCall, 10, optional, newModelFallback, modelFallbackDefaults()).
			alias("ModelFallbackInterceptor").is(pipeline.RoleFallback),
		stage("pair-repair", modelCall, 25, optional, newPairRepair, defaultPairRepair()),
		stage("context-editing", modelCall, 30, optional, newContextEditing, defaultContextEditing()).
			alias("ContextEditingInterceptor"),
		stage("sub-agent", modelCall, 60, optional, newSubAgent, defaultSubAgent()).alias("SubAgentInterceptor"),
		stage("tool-selection", modelCall, 70, optional, newToolSelection, defaultToolSelection()).
			alias("ToolSelectionInterceptor"),
		stage("todo-list", modelCall, 80, optional, newTodo, defaultTodo()).alias("TodoListInterceptor"),
		stage("model-cache", modelCall, 90, optional, newModelCache, defaultModelCache()).is(pipeline.RoleCache).off(),
		stage("model-retry", modelCall, 95, optional, newModelRetry, defaultModelRetry()).is(pipeline.RoleRetry).off(),
		stage("logging", modelCall, 100, optional, newLogging, LoggingConfig{Sample: 1}).alias("LoggingModelInterceptor"),
		stage("audit", toolCall, 0, mandatory, newAudit, AuditConfig{}),
		stage("tool-fallback", toolCall, 10, optional, newToolFallback, ToolFallbackConfig{}).
			alias("FallbackManager").is(pipeline.RoleFallback),
		stage("tool-arguments", toolCall, 14, fixed, newToolArguments, ToolArgumentsConfig{}).
			alias("ArgParser").is(pipeline.RoleArguments),
		stage("approval", toolCall, 16, fixed, newApproval, ApprovalConfig{}).is(pipeline.RoleApprove),
		stage("tool-cache", toolCall, 20, optional, newToolCache, defaultToolCache()).
			alias("CachingToolInterceptor").is(pipeline.RoleCache),
		// The same order as the cache, as the documents have it; registered after it, so inner to it.
		stage("large-result-eviction", toolCall, 20, optional, newLargeResultEviction, largeResultEvictionDefaults()).
			alias("LargeResultEvictionInterceptor").is(pipeline.RoleEvict),
		stage("tool-retry", toolCall, 30, optional, newToolRetry, defaultToolRetry()).
			alias("RetryToolInterceptor").is(pipeline.RoleRetry),
		stage("tool-error", toolCall, 35, optional, newToolError, ToolErrorConfig{}).alias("ToolErrorInterceptor"),
		stage("rate-limit", toolCall, 40, optional, newRateLimit, RateLimitConfig{}).when(rateLimitOn),
		stage("concurrency", toolCall, 45, optional, newConcurrency, defaultConcurrency()).when(concurrencyOn),
		stage("tool-pii", toolCall, 48, optional, newToolPII, ToolPIIConfig{}).is(pipeline.RoleRedact).off(),
		stage("timeout", toolCall, 50, fixed, newTimeout, TimeoutConfig{}).alias("TimeoutExecutor"),
		stage("audit", agentRun, 0, mandatory, newAudit, AuditConfig{}),
	}
}
