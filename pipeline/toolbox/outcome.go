package toolbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// OutcomeOf is asked wherever a call ends, or goes on, with a fault that says nothing of its tool: its time was over, a stage
// was absent, a store did not answer. If the tool may not run twice and has started, the fault becomes outcome_unknown,
// because such a fault would let people and programs try again (contracts 10); the record that was written before the
// start is what tells. A cancelled call stays one, with words to that effect. Any other fault comes back as it is.
func (t *Target) OutcomeOf(ctx context.Context, c *messages.Call, f *messages.Fault) *messages.Fault {
	left := f.Code == messages.Cancelled
	if f.OfTarget() && !tool.NotExecuted(f) || !left && !f.Retryable() && tool.ErrorClassOf(f) == "" {
		return f
	}
	d, err := t.Tools.Get(ctx, t.name(c))
	if err != nil {
		return f
	}
	e := t.Rules.Effective(d)
	if e.Unguarded || t.Runs == nil || t.Runs.Store == nil {
		return f
	}
	if left { // he left, that stays so; but whoever reads the end later must know what may have been done
		if old, err := t.Runs.read(ctx, runKey(c)); err == nil && !strings.Contains(f.Message, mayHaveRun) {
			g := *f
			g.Message = fmt.Sprintf("%s; '%s' was started at %s and %s", f.Message, d.Name, old.Started.Format(time.RFC3339), mayHaveRun)
			return &g
		}
		return f
	}
	if c.Flag(messages.NoteToolStarted) {
		return tool.AfterStart(d.Name, f, e.Check)
	}
	old, err := t.Runs.read(ctx, runKey(c))
	switch {
	case errors.Is(err, pipeline.ErrNotFound):
		return f
	case err != nil:
		return tool.UnknownOutcome(d.Name, fmt.Sprintf("%s, and whether '%s' was started cannot be read: %v", f.Message, d.Name, err), e.Check)
	case old.State == "done" && old.Fault != nil:
		return old.Fault
	case old.State == "done":
		return tool.UnknownOutcome(d.Name, fmt.Sprintf("'%s' has run to its end, but its result was not handed on: %s", d.Name, f.Message), e.Check)
	}
	return tool.UnknownOutcome(d.Name, fmt.Sprintf("'%s' was started at %s, and then: %s", d.Name, old.Started.Format(time.RFC3339), f.Message), e.Check)
}

const mayHaveRun = "may have been carried out"

// intentKey is where the record of a call's tool is.
func runKey(c *messages.Call) string { return messages.Key(c.Tenant, c.ID) }

func (i *RunRecords) read(ctx context.Context, key string) (*runRecord, error) {
	e, err := i.Store.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	old := &runRecord{}
	return old, json.Unmarshal(e.Value, old)
}
