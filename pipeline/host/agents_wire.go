package host

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/agent"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/stages"
)

// makeAgents makes the agents of the configuration.
func (h *Host) makeAgents(o Options, stores map[string]pipeline.Store) (err error) {
	limits, _ := o.Config.Sections["tool-limit"].(*config.ToolLimit)
	a := &agents{log: agent.Log{Store: stores["runs"]}, limits: limits, first: h.Models.first(), bucket: h.control,
		times: map[string]time.Duration{}, tools: h.Tools, audit: h.audit, out: h.log}
	h.agents, h.Models.agents = a, a
	a.budget, _ = o.Config.Sections["budget"].(*stages.BudgetConfig)
	for i, s := range h.Config.Agent.Agents {
		if err := a.priced(s); err != nil {
			return fmt.Errorf("agent.agents[%d]: %w", i, err)
		}
		a.times[s.Name] = s.Limits.Timeout
	}
	a.specs, err = agentSpecs(&h.Config, limits, a.first)
	return err
}

// loop is what runs agents in a process that owns calls.
func (a *agents) loop(entry *lateEntry, show func(tenant, run string, e agent.Event)) *agent.Loop {
	a.show = show
	options := a.options()
	options.Entry = entry
	return agent.New(options)
}

// lateEntry is the node for stages and the agent loop, which are made before it.
type lateEntry struct{ node atomic.Pointer[bus.Node] }

func (l *lateEntry) get() (*bus.Node, error) {
	if n := l.node.Load(); n != nil {
		return n, nil
	}
	return nil, messages.NewFault(messages.Overloaded, "the process is still starting")
}

// Call implements pipeline.Caller.
func (l *lateEntry) Call(ctx context.Context, c *messages.Call) (*messages.Call, error) {
	n, err := l.get()
	if err != nil {
		return nil, err
	}
	return n.Call(ctx, c)
}

// Accept implements pipeline.Entry.
func (l *lateEntry) Accept(ctx context.Context, r pipeline.Request) (pipeline.Pending, error) {
	n, err := l.get()
	if err != nil {
		return nil, err
	}
	return n.Accept(ctx, r)
}

// Result implements pipeline.Entry.
func (l *lateEntry) Result(ctx context.Context, tenant, id string) (*messages.Call, error) {
	n, err := l.get()
	if err != nil {
		return nil, err
	}
	return n.Result(ctx, tenant, id)
}
