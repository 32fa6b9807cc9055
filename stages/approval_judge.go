package stages

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/tool/approval"
)

// Judge returns the arguments of a tool call as the tool would get them, and what is to be asked before it runs; nil:
// nothing. shown, if not nil, are the arguments that a person has seen before they were edited: then only what the edit
// has made of the call is asked. A call that its tool chain will refuse, because there is no such tool or its arguments
// are wrong, is not asked about: it does not run. The error is that of the registry.
func (a *ApprovalDesk) Judge(
	ctx context.Context, c *messages.Call, shown []byte,
) (json.RawMessage, *approval.Question, error) {
	def, err := a.tools.Get(ctx, c.Tool)
	if f, ok := errors.AsType[*messages.Fault](err); ok && f.Code == messages.ToolNotFound {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	parsed, faults := def.ParseArguments(a.parser, c.Request(), a.args, a.rules.Effective(def))
	if faults != nil {
		return nil, nil, nil
	}
	c = c.Clone()
	c.SetRequest(parsed.Raw())
	if shown == nil {
		return parsed.Raw(), a.Question(def, c), nil
	}
	before := c.Clone()
	before.SetRequest(shown)
	if parsed, faults = def.ParseArguments(a.parser, shown, a.args, a.rules.Effective(def)); faults == nil {
		before.SetRequest(parsed.Raw())
	}
	return c.Request(), a.EditedQuestion(def, before, c), nil
}
