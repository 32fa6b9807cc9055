package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

func own(d *tool.Definition) pipeline.ToolStages {
	return pipeline.ToolStages{Mandatory: d.Stages.Mandatory, Optional: d.Stages.Optional}
}

// ownStages are the stages that the call's tool names for itself (S2-CHAIN-4), and the approval where a policy is about
// the tool. A tool that is not known has none: the
// chain says what is wrong with it.
func (h *Host) ownStages(c *messages.Call) (pipeline.ToolStages, error) {
	if c.Kind != messages.Tool {
		return pipeline.ToolStages{}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
	defer cancel()
	d, err := h.tools.find.Get(ctx, c.Tool)
	if err != nil {
		if f, ok := errors.AsType[*messages.Fault](err); ok && f.Code == messages.ToolNotFound {
			return pipeline.ToolStages{}, nil
		}
		return pipeline.ToolStages{}, err // a mandatory stage must not be left out because the registry cannot be read
	}
	o := own(d)
	if h.tools.desk.Concern(d) {
		o.Demand = append(o.Demand, tool.ApprovalStage)
	}
	return o, nil
}

// checkOwnStages refuses to start with a tool of the configuration whose own stages could not stand where they would.
// Tools that other processes have registered are judged when they are called.
func (h *Host) checkOwnStages(ctx context.Context) error {
	var faults []error
	for _, t := range h.Config.Tool.Tools {
		d, err := h.tools.registry.Get(ctx, tool.Pin(t.Name, cmp.Or(t.Version, "1")))
		if err != nil {
			return err
		}
		if err := h.Manager.CheckToolStages(messages.Tool, own(d)); err != nil {
			faults = append(faults, fmt.Errorf("tool.tools (%s): %w", t.Name, err))
		}
		if !h.tools.desk.Known(t.Approval) {
			faults = append(faults, fmt.Errorf("tool.tools (%s).approval: %q is no policy of agent.interceptor.approval; write always, none, or the name of one", t.Name, t.Approval))
		}
	}
	return errors.Join(faults...)
}
