package toolbox

import (
	"context"

	"github.com/shallot-nats/shallot/messages"
)

// GoFuncs runs tools that are Go functions of this process, by the name in the definition's executor, else by the
// tool's name. The map must not change once it is in use.
type GoFuncs map[string]ExecutorFunc

var _ Executor = GoFuncs{}

// Execute calls the function. A function that this process does not have is target_absent: it did not run.
func (g GoFuncs) Execute(ctx context.Context, inv Invocation) (Result, error) {
	name := inv.Tool.Executor.Name
	if name == "" {
		name = inv.Tool.Name
	}
	f := g[name]
	if f == nil {
		return Result{}, messages.NewFault(messages.TargetAbsent,
			"tool '%s': this process has no Go function '%s'", inv.Tool.Name, name)
	}
	return f(ctx, inv)
}
