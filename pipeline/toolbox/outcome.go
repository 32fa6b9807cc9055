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

// OutcomeOf returns the fault that a call ends or goes on with. It is asked about faults that say nothing of the tool:
// the call's time was over, a stage was absent, a store did not answer. If the tool may not run twice and has started,
// as the record that was written before tells, the fault becomes outcome_unknown, because the original would let people
// and programs try again. A cancelled call stays cancelled, with words to that effect. Any other fault is returned as
// it is.
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
	if left { // the caller left, and that stays so; but whoever reads the end must know what may have been done
		if old, err := t.Runs.read(ctx, runKey(c)); err == nil && !strings.Contains(f.Message, mayHaveRun) {
			g := *f
			g.Message = fmt.Sprintf("%s; '%s' was started at %s and %s", f.Message, d.Name, old.since(), mayHaveRun)
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
		why := fmt.Sprintf("%s, and whether '%s' was started cannot be read: %v", f.Message, d.Name, err)
		return tool.UnknownOutcome(d.Name, why, e.Check)
	case old.State == "done" && old.Fault != nil:
		return old.Fault
	case old.State == "done":
		why := fmt.Sprintf("'%s' has run to its end, but its result was not handed on: %s", d.Name, f.Message)
		return tool.UnknownOutcome(d.Name, why, e.Check)
	}
	why := fmt.Sprintf("'%s' was started at %s, and then: %s", d.Name, old.since(), f.Message)
	return tool.UnknownOutcome(d.Name, why, e.Check)
}

const mayHaveRun = "may have been carried out"

// since is when the run began, for a message.
func (n runRecord) since() string { return n.Started.Format(time.RFC3339) }

// runKey is the key of the record of a call's tool.
func runKey(c *messages.Call) string { return messages.Key(c.Tenant, c.ID) }

func (i *RunRecords) read(ctx context.Context, key string) (*runRecord, error) {
	e, err := i.Store.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	old := &runRecord{}
	return old, json.Unmarshal(e.Value, old)
}
