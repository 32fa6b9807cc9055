package host

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/agent"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// policy answers what the node asks about a call: which class it has, which stages, how long it may take, and whether
// its target may run twice. The node knows calls; what tools, agents and models are, is known here.
type policy struct {
	manager *pipeline.Manager
	models  *Models
	tools   *Tools
	agents  *agents
	log     *slog.Logger
}

// lookupTime bounds the look-up of one tool definition.
const lookupTime = 5 * time.Second

// classify names the class of a call: the provider of its model, or the class of its tool.
func (p *policy) classify(c *messages.Call) (string, error) {
	switch c.Kind {
	case messages.Model:
		return p.models.Table.Class(chat.ModelName(c.Request()))
	case messages.Tool:
		ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
		defer cancel()
		d, err := p.tools.find.Get(ctx, c.Tool)
		if err != nil {
			return "", err
		}
		return p.tools.queue(d)
	default:
		return "", messages.NewFault(messages.TargetAbsent, "no target for %s calls is configured", c.Kind)
	}
}

// prepare is what the entry does to a new call: a model call of an agent run gets the tools of the stages on its
// route, and a tool that belongs to a stage is there for agent runs alone.
func (p *policy) prepare(c *messages.Call) error {
	switch {
	case c.Kind == messages.Agent:
		return p.prepareRun(c)
	case c.Kind == messages.Tool && c.Run == "":
		base, _, _ := strings.Cut(c.Tool, "@") // a version does not get round it
		if stage := p.tools.find.owners[base]; stage != "" {
			return messages.NewFault(messages.ToolNotFound,
				"the tool '%s' belongs to stage %s and is there for agent runs alone", c.Tool, stage).At("tool").From("entry")
		}
	case c.Kind == messages.Model && c.Run != "":
		var route []pipeline.Stage
		for _, stop := range c.Slip.Stops {
			if m, ok := p.manager.Get(messages.Model, stop.Name); ok && len(m.Tools) > 0 {
				route = append(route, m.Stage)
			}
		}
		if len(route) == 0 {
			return nil
		}
		clashes, err := pipeline.AddTools(c, route, p.tools.find.serves)
		if len(clashes) > 0 {
			p.log.Warn("a request has tools of its own under the names of stages' tools; its own are kept",
				"call", c.ID, "tools", clashes)
		}
		return err
	}
	return nil
}

// prepareRun checks the agent of a new run, gives the run its id, which is that of its call, and its time.
func (p *policy) prepareRun(c *messages.Call) error {
	if p.agents.find(context.Background(), c.Agent) == nil {
		return noAgent(c.Agent)
	}
	c.Run = c.ID
	if limit := p.agents.time(c.Agent); limit > 0 && c.Deadline.After(c.Accepted.Add(limit)) {
		c.Deadline = c.Accepted.Add(limit)
	}
	return nil
}

// takeDecisions takes decisions about the calls that a run waits for.
func (p *policy) takeDecisions(ctx context.Context, held bus.Parked, answer json.RawMessage, by string) (
	json.RawMessage, error) {
	ruling, partly, open, unknown, err := agent.TakeAnswer(ctx, held.Question, answer, by, p.tools.desk.Decide)
	if err != nil {
		return nil, err
	}
	if len(unknown) > 0 {
		p.log.Warn("a decision was sent about calls that the run does not ask about; it is ignored",
			"run", held.Call, "ids", unknown, "by", by)
	}
	if ruling == nil {
		return nil, &bus.Partly{Question: partly, Open: agent.StillOpen(open)}
	}
	return ruling, nil
}

// longest is how long a call may take because its tool may.
func (p *policy) longest(r pipeline.Request) time.Duration {
	if r.Kind == messages.Agent {
		return p.agents.time(r.Agent)
	}
	if r.Kind != messages.Tool {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
	defer cancel()
	d, err := p.tools.find.Get(ctx, r.Tool)
	if err != nil || d.Timeout.D() <= toolTime {
		return 0 // an unknown tool is judged by the chain
	}
	return min(d.Timeout.D()+toolTime, maxToolTime)
}

// reviseFault says of a tool call's fault whether its tool may have run.
func (p *policy) reviseFault(ctx context.Context, c *messages.Call, f *messages.Fault) *messages.Fault {
	if c.Kind != messages.Tool {
		return f
	}
	return p.tools.target.OutcomeOf(ctx, c, f)
}

// once reports whether a call's target must not run twice; a model may.
func (p *policy) once(c *messages.Call) bool {
	if c.Kind != messages.Tool {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
	defer cancel()
	return p.tools.target.Once(ctx, c)
}

// toolStages are the stages that the call's tool names for itself, and the approval where a policy is about the tool. A
// tool that is not known has none: the chain says what is wrong with it.
func (p *policy) toolStages(c *messages.Call) (pipeline.ToolStages, error) {
	if c.Kind != messages.Tool {
		return pipeline.ToolStages{}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
	defer cancel()
	d, err := p.tools.find.Get(ctx, c.Tool)
	if err != nil {
		if f, ok := errors.AsType[*messages.Fault](err); ok && f.Code == messages.ToolNotFound {
			return pipeline.ToolStages{}, nil
		}
		return pipeline.ToolStages{}, err // a mandatory stage must not be left out because the registry cannot be read
	}
	o := ownStages(d)
	if p.tools.desk.Concern(d) {
		o.Demand = append(o.Demand, tool.ApprovalStage)
	}
	return o, nil
}

// checkAnswer holds an answer to what was asked. Questions of other stages than the approval take any answer.
func (p *policy) checkAnswer(ctx context.Context, held bus.Parked, answer json.RawMessage, by string) (
	json.RawMessage, error) {
	if held.Kind == messages.Agent && held.Stage == string(messages.Agent) {
		return p.takeDecisions(ctx, held, answer, by)
	}
	_, ours := rawjson.Field(held.Question, "hash")
	if held.Kind != messages.Tool || held.Stage != tool.ApprovalStage || !ours {
		return answer, nil
	}
	return p.tools.desk.Decide(ctx, held.Question, answer, by)
}
