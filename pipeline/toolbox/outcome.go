package toolbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// Once reports whether the call's tool may not run twice. Of a tool that cannot be looked up that is taken for granted.
func (t *Target) Once(ctx context.Context, c *messages.Call) bool {
	d, err := t.Tools.Get(ctx, t.name(c))
	return err != nil || !t.Rules.Effective(d).Unguarded
}

// OutcomeOf is asked wherever a call ends in a fault. If its tool may not run twice and has started, a fault that
// invites to another try - a stage was absent, a store did not answer - becomes outcome_unknown. A cancelled call stays
// one, with words to that effect, and outcome_unknown gets the words that say what to do. Any other fault comes back as
// it is.
func (t *Target) OutcomeOf(ctx context.Context, c *messages.Call, f *messages.Fault) *messages.Fault {
	unknown := f.Code == messages.OutcomeUnknown && !strings.Contains(f.Message, tool.DoNotRepeat)
	if !unknown && !c.Flag(messages.NoteToolStarted) {
		return f
	}
	d, err := t.Tools.Get(ctx, t.name(c))
	if err != nil {
		return f
	}
	e := t.Rules.Effective(d)
	switch {
	case unknown:
		return tool.UnknownOutcome(d.Name, f.Message, e.Check)
	case e.Unguarded:
		return f
	case f.Code == messages.Cancelled && !strings.Contains(f.Message, mayHaveRun):
		g := *f
		g.Message = fmt.Sprintf("%s; '%s' was started and %s", f.Message, d.Name, mayHaveRun)
		return &g
	}
	return tool.AfterStart(d.Name, f, e.Check)
}

const mayHaveRun = "may have been carried out"
