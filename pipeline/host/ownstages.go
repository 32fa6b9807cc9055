package host

import (
	"context"
	"errors"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

func own(d *tool.Definition) pipeline.ToolStages {
	return pipeline.ToolStages{Mandatory: d.Stages.Mandatory, Optional: d.Stages.Optional}
}

// ownStages are the stages that the call's tool names for itself, and the approval where a policy is about
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
