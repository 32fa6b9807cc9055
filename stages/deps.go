package stages

import (
	"context"
	"log/slog"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/evicted"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// Deps is what stages depend on. Host fills it; tests fill what the stage at hand needs. [Spec.Make] sets Log and
// Parser where they are nil.
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
	// Provider names the provider of a model, empty if unknown; nil means that it is not known here.
	Provider func(model string) string
	// Tools finds tool definitions, Parser reads arguments against them, and Rules (key `tool` of the configuration)
	// fill in what a tool does not declare. Only the tool stages need them; Parser and Rules have defaults.
	Tools  tool.Tools
	Parser *args.Parser
	Rules  *tool.Rules
	// Arguments are the settings of `tool.arguments`.
	Arguments args.Options
	// Fallback are the settings of `tool.fallback`; nil means the defaults.
	Fallback *FallbackRules
	// Objects keeps evicted results where eviction-store is object; nil means that none are kept here.
	Objects evicted.Objects
	// Texts is the language of what stages say to models and callers: en (also if empty) or zh.
	Texts string
	// Explicit reports whether a key of the configuration was written by the operator; nil means that it is not known
	// here.
	Explicit func(path string) bool
}

// rules are what fills in for tools that do not declare something.
func (d Deps) rules() tool.Rules {
	if d.Rules != nil {
		return *d.Rules
	}
	return tool.DefaultRules()
}
