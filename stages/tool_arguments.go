package stages

import (
	"context"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// ToolArgumentsConfig has no keys of its own: `tool.arguments` holds the global settings, each tool its own.
type ToolArgumentsConfig struct {
	Common `yaml:",inline"`
}

// newToolArguments makes the stage that finds the tool, whose schema it needs, and reads the call's arguments by it.
// Everything inside it, the cache key and an approval too, sees the arguments as the tool will get them. Bad arguments
// end the call here with invalid_arguments and are never retried. It may run twice: good arguments come out as they
// went in.
func newToolArguments(_ *ToolArgumentsConfig, d Deps) (pipeline.Stage, error) {
	tools, err := newToolPolicies(d)
	if err != nil {
		return pipeline.Stage{}, err
	}
	before := func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
		def, err := d.Tools.Get(ctx, c.Tool)
		if err != nil {
			return pipeline.Verdict{}, err
		}
		if f := def.Refuse(); f != nil {
			return pipeline.Verdict{}, f
		}
		args, faults := def.ParseArguments(d.Parser, c.Request(), d.Arguments, tools.rules.Effective(def))
		if faults != nil {
			c.Note(messages.NoteArgumentIssues, faults.Issues)
			return pipeline.Verdict{}, faults.Fault()
		}
		c.Note(messages.NoteToolVersion, def.Version)
		if len(args.Changes) > 0 {
			c.Note(messages.NoteArgumentChanges, args.Changes)
		}
		c.SetRequest(args.Raw())
		return pipeline.Continue(), nil
	}
	return pipeline.Stage{
		Role: pipeline.RoleArguments, Before: before, FailClosed: true,
		Reads: []string{"tool", "request"}, Writes: []string{"request"},
	}, nil
}
