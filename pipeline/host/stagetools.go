package host

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// stageTools serves the tools that stages contribute. Such a tool is added to the model calls of agent runs
// when they enter, and its own calls pass the tool chain like any other: resolved here, its arguments read against its
// schema, run in the pool with a time limit. A stage that is switched off adds its tools no longer; calls of runs that
// have them already are still served.
type stageTools struct {
	registry tool.Tools
	defs     map[string]*tool.Definition
	owners   map[string]string
}

var _ tool.Tools = (*stageTools)(nil)

// Get implements tool.Tools: a stage's own tool, else the registry's.
func (s *stageTools) Get(ctx context.Context, name string) (*tool.Definition, error) {
	base, _, _ := strings.Cut(name, "@")
	if d, ok := s.defs[base]; ok {
		return d, nil
	}
	return s.registry.Get(ctx, name)
}

// serves reports whether somebody executes the tool. A registry that cannot be asked counts as yes: the call itself
// will say what is wrong.
func (s *stageTools) serves(tool string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
	defer cancel()
	_, err := s.Get(ctx, tool)
	f, ok := errors.AsType[*messages.Fault](err)
	return err == nil || !ok || f.Code != messages.ToolNotFound
}

// addStageTools makes definitions of the tools of all stages, on or off, and puts their functions among the Go
// functions. It refuses a tool that could not be called, and one whose name the operator has given to another.
func (t *Tools) addStageTools(ctx context.Context) error {
	for _, m := range t.manager.Stages("") {
		for _, given := range m.Tools {
			if given.Do == nil {
				continue // served by the registry, or found missing when it is added: not when a model calls it
			}
			if m.Kind != messages.Model {
				return fmt.Errorf("stage %s: only model stages contribute tools, and it is of kind %s", m.Name, m.Kind)
			}
			if old, err := t.Registry.Get(ctx, given.Name); err == nil && old.Source == tool.Operator {
				return fmt.Errorf("stage %s: it contributes the tool %q, which the configuration defines too; rename one of them",
					m.Name, given.Name)
			}
			d := &tool.Definition{
				Name: given.Name, Description: given.Description, Version: "1", InputSchema: tool.JSON(given.Parameters),
				Executor: tool.Executor{Kind: tool.ExecGo, Name: stageFunc + m.Name + ":" + given.Name}, Source: tool.Operator,
			}
			if err := d.Validate(t.parser); err != nil {
				return fmt.Errorf("stage %s: %w", m.Name, err)
			}
			t.find.defs[given.Name], t.find.owners[given.Name] = d, m.Name
			t.funcs[d.Executor.Name] = runStageTool(given)
		}
	}
	return nil
}

// ownStages are the stages that a tool names for itself.
func ownStages(d *tool.Definition) pipeline.ToolStages {
	return pipeline.ToolStages{Mandatory: d.Stages.Mandatory, Optional: d.Stages.Optional}
}

// stageFunc begins the names of functions of stages among the Go functions.
const stageFunc = "stage:"

type callKey struct{}

// withCall is a target that shows the call to the functions of stages' tools: they get the call itself, as any
// function of a stage does.
func withCall(t pipeline.Target) pipeline.Target {
	return pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
		return t.Do(context.WithValue(ctx, callKey{}, c), c, emit)
	})
}

func runStageTool(tool pipeline.Tool) toolbox.ExecutorFunc {
	return func(ctx context.Context, inv toolbox.Invocation) (toolbox.Result, error) {
		c, ok := ctx.Value(callKey{}).(*messages.Call)
		if !ok {
			return toolbox.Result{}, messages.NewFault(messages.Internal, "tool '%s' was run without its call", tool.Name)
		}
		out, err := tool.Do(ctx, c, inv.Arguments)
		return toolbox.Result{Content: out}, err
	}
}
