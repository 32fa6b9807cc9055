package host

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/agent"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/stages"
)

// agentPrefix stands before the name of an agent where a model or a tool is named.
const agentPrefix = "agent/"

// agentSpecs are the agents of a configuration, with the limits of all runs. first is the model of those that name
// none.
func agentSpecs(c *config.Config, limits *config.ToolLimit, first string) ([]*agent.Spec, error) {
	var out []*agent.Spec
	for i, a := range c.Agent.Agents {
		s, err := specOf(a, limits, first)
		if err != nil {
			return nil, fmt.Errorf("agent.agents[%d]: %w", i, err)
		}
		out = append(out, s)
	}
	for i, s := range out {
		for _, t := range s.Tools {
			name, is := strings.CutPrefix(t, agentPrefix)
			if is && !slices.ContainsFunc(out, func(o *agent.Spec) bool { return o.Name == name }) {
				return nil, fmt.Errorf("agent.agents[%d].tools: there is no agent %q", i, name)
			}
		}
	}
	return out, nil
}

// specOf is one agent as a definition has it.
func specOf(a config.AgentSpec, limits *config.ToolLimit, first string) (*agent.Spec, error) {
	s := &agent.Spec{
		Name: a.Name, Description: a.Description, Instructions: a.Instructions, Model: cmp.Or(a.Model, first), Tools: a.Tools,
		Stages: a.Stages, OutputSchema: json.RawMessage(a.OutputSchema), Limits: agentLimits(a.Limits, limits),
		Todo: a.TodoList,
	}
	for key, rule := range a.State {
		if s.Rules == nil {
			s.Rules = map[string]agent.Rule{}
		}
		s.Rules[key] = agent.Rule(rule)
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if s.Model == "" {
		return nil, fmt.Errorf("agent %s: name a model; no provider names one", a.Name)
	}
	return s, nil
}

func agentLimits(l config.AgentLimits, all *config.ToolLimit) agent.Limits {
	out := agent.Limits{ModelCalls: agent.DefaultModelCalls, Tokens: l.Tokens, Exit: l.ExitBehavior}
	if l.USD != nil {
		micros := int64(*l.USD * 1e6)
		out.Micros = &micros
	}
	if l.ModelCalls != nil {
		out.ModelCalls = *l.ModelCalls
	}
	if all != nil {
		out.Tools = agent.ToolLimits{Limit: agent.Limit{Run: all.RunLimit, Thread: all.ThreadLimit}, Exit: all.ExitBehavior}
		for name, t := range all.Tools {
			if out.Tools.ByTool == nil {
				out.Tools.ByTool = map[string]agent.Limit{}
			}
			out.Tools.ByTool[name] = agent.Limit{Run: t.RunLimit, Thread: t.ThreadLimit}
		}
	}
	if l.ToolCalls != nil {
		out.Tools.Run = l.ToolCalls
	}
	if out.Tools.Run == nil {
		most := agent.DefaultToolCalls
		out.Tools.Run = &most
	}
	return out
}

// agents is what this process knows of agents.
type agents struct {
	specs  []*agent.Spec            // of the configuration
	times  map[string]time.Duration // how long runs of these may take
	stored shelf
	bucket pipeline.Store // where operators put agents
	tools  *Tools
	audit  *audit
	out    *slog.Logger
	limits *config.ToolLimit    // of all runs
	budget *stages.BudgetConfig // knows prices; may be nil
	first  string               // the model of agents that name none
	log    agent.Log
	// show publishes what a model says in a run.
	show func(tenant, run string, e agent.Event)
}

// get is an agent by name; nil: none that is known here.
func (a *agents) get(name string) *agent.Spec {
	if s := a.configured(name); s != nil {
		return s
	}
	if s := a.stored.get(name); s != nil {
		return s.spec
	}
	return nil
}

func (a *agents) configured(name string) *agent.Spec {
	if i := slices.IndexFunc(a.specs, func(s *agent.Spec) bool { return s.Name == name }); i >= 0 {
		return a.specs[i]
	}
	return nil
}

// options are those of the loop.
func (a *agents) options() agent.Options {
	return agent.Options{
		Log: a.log, Judge: a.tools.desk, Show: a.show, Out: a.out, Tools: a.toolsOf,
		Money: func(c *messages.Call) int64 { return stages.Money(a.budget, c) },
		Agent: func(ctx context.Context, name string) (*agent.Spec, error) {
			if s := a.find(ctx, name); s != nil {
				return s, nil
			}
			return nil, noAgent(name)
		},
		Fits: func(schema json.RawMessage, text string) string {
			if !json.Valid([]byte(text)) {
				return "it is not JSON"
			}
			return a.tools.parser.Check(schema, []byte(text))
		},
	}
}

func noAgent(name string) *messages.Fault {
	return messages.NewFault(messages.NotFound,
		"no agent %q; GET /v1/agents lists all agents", name).At("model").From("entry")
}

// toolsOf are those that an agent's patterns name, in their order and then by name: of the registry without those that
// are held, and other agents. The same definitions give the same list, which the prompt caches of models need.
func (a *agents) toolsOf(ctx context.Context, _ string, s *agent.Spec) (out []agent.Tool, err error) {
	all, err := a.tools.Registry.List(ctx)
	if err != nil {
		return nil, messages.AsFault(err, "registry")
	}
	taken := map[string]bool{}
	for _, pattern := range s.Tools {
		if name, is := strings.CutPrefix(pattern, agentPrefix); is {
			sub := a.find(ctx, name)
			if sub == nil {
				return nil, noAgent(name)
			}
			if !taken[pattern] {
				out = append(out, agent.NewTool(pattern, sub.Description, nil))
			}
			taken[pattern] = true
			continue
		}
		for _, d := range all {
			if d.Quarantined == "" && !taken[d.Name] && messages.AnyGlob([]string{pattern}, d.Name) {
				taken[d.Name] = true
				out = append(out, agent.NewTool(d.Name, d.Description, json.RawMessage(d.InputSchema)))
			}
		}
	}
	return out, nil
}

// time is how long a run of the agent may take; 0: as long as any.
func (a *agents) time(name string) time.Duration {
	if t, ok := a.times[name]; ok {
		return t
	}
	if s := a.stored.get(name); s != nil {
		return s.timeout
	}
	return 0
}

// priced refuses a limit of money that nothing could be held against.
func (a *agents) priced(c config.AgentSpec) error {
	if c.Limits.USD != nil && (a.budget == nil || len(a.budget.Prices) == 0) {
		return fmt.Errorf("agent %s: limits.usd needs prices of models, at agent.interceptor.budget.prices", c.Name)
	}
	return nil
}
