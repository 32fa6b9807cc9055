package host

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/agent"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/stages"
)

// makeAgents makes the agents of the configuration.
func (h *Host) makeAgents(o Options, stores map[string]pipeline.Store) error {
	limits, _ := o.Config.Sections["tool-limit"].(*config.ToolLimit)
	h.agents = &agents{h: h, log: agent.Log{Store: stores["runs"]}, limits: limits, first: h.firstModel()}
	h.agents.budget, _ = o.Config.Sections["budget"].(*stages.BudgetConfig)
	for i, a := range h.Config.Agent.Agents {
		if err := h.agents.priced(a); err != nil {
			return fmt.Errorf("agent.agents[%d]: %w", i, err)
		}
	}
	var err error
	h.agents.specs, err = agentSpecs(&h.Config, limits, h.firstModel())
	return err
}

// firstModel is the first model that a provider names; the demonstration models come last.
func (h *Host) firstModel() string {
	for _, p := range h.Table.Providers() {
		for _, m := range p.Models {
			if !strings.Contains(m, "*") {
				return m
			}
		}
	}
	return ""
}

// wireAgents has the node run agents, if it owns calls.
func (h *Host) wireAgents(n *bus.Options, o Options, stores map[string]pipeline.Store) error {
	subjects := messages.Subjects{Root: h.Config.Bus.Root}
	bucket, ok := stores["runs"].(*jet.Bucket)
	if !ok {
		return nil
	}
	h.runs = &runs{agents: h.agents, bucket: bucket, conn: h.Conn, subjects: subjects,
		peek: func(ctx context.Context, tenant, id string) (*messages.Call, time.Time, error) {
			return h.Node.Peek(ctx, tenant, id)
		},
		cancel: func(id string) { h.Node.Cancel(id) }}
	if o.Roles.Entry {
		h.agents.show = publishText(h.Conn, subjects)
		options := h.agents.options()
		options.Entry = lateEntry{h.caller}
		n.Agents = agent.New(options)
	}
	return nil
}

// Agents is what the faces ask about agents and their runs; nil if this process has none.
func (h *Host) Agents() api.AgentService {
	if h.runs == nil {
		return nil
	}
	return h.runs
}

// prepareRun checks the agent of a new run, gives the run its id, which is that of its call, and its time.
func (h *Host) prepareRun(c *messages.Call) error {
	if h.agents.find(context.Background(), c.Agent) == nil {
		return noAgent(c.Agent)
	}
	c.Run = c.ID
	if limit := h.agents.time(c.Agent); limit > 0 && c.Deadline.After(c.Accepted.Add(limit)) {
		c.Deadline = c.Accepted.Add(limit)
	}
	return nil
}

// takeDecisions takes decisions about the calls that a run waits for.
func (h *Host) takeDecisions(ctx context.Context, p bus.Parked, answer json.RawMessage, by string) (
	json.RawMessage, error) {
	ruling, partly, open, unknown, err := agent.TakeAnswer(ctx, p.Question, answer, by, h.tools.desk.Decide)
	if err != nil {
		return nil, err
	}
	if len(unknown) > 0 {
		h.log.Warn("a decision was sent about calls that the run does not ask about; it is ignored",
			"run", p.Call, "ids", unknown, "by", by)
	}
	if ruling == nil {
		return nil, &bus.Partly{Question: partly, Open: agent.StillOpen(open)}
	}
	return ruling, nil
}

// lateEntry is the node for the agent loop, which is made before it.
type lateEntry struct{ *lateCaller }

// Accept implements pipeline.Entry.
func (l lateEntry) Accept(ctx context.Context, r pipeline.Request) (pipeline.Pending, error) {
	n := l.node.Load()
	if n == nil {
		return nil, messages.NewFault(messages.Overloaded, "the process is still starting")
	}
	return n.Accept(ctx, r)
}

// Result implements pipeline.Entry.
func (l lateEntry) Result(ctx context.Context, tenant, id string) (*messages.Call, error) {
	n := l.node.Load()
	if n == nil {
		return nil, messages.NewFault(messages.Overloaded, "the process is still starting")
	}
	return n.Result(ctx, tenant, id)
}
