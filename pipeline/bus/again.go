package bus

import (
	"context"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/protocol"
)

// cameOnce goes on with what came of a target that may not run twice, and remembers it for another attempt.
func (t *targets) cameOnce(ctx context.Context, o *owned, first *result) pipeline.Next {
	with := requestSum(o.call)
	next := pipeline.RunTarget(context.WithoutCancel(ctx), first, o.call, nil)
	if o.run.ran = first; !o.run.proved {
		o.call.Note(messages.NoteRanWith, with)
	}
	return next
}

// again is what another attempt gets of a target that has noted that it ran for the call and may not run twice: with
// the same request what came of that run, with another one that the outcome is unknown. ran is false where the target
// may run.
func (t *targets) again(ctx context.Context, o *owned) (next pipeline.Next, ran bool) {
	if o.run.last == 0 || o.run.proved || !o.call.Flag(messages.NoteToolStarted) {
		return next, false
	}
	first, ran := o.run.ran, true
	if first == nil { // it ran before the call was parked
		first, ran = t.recorded(ctx, o)
	}
	if !ran {
		return next, false
	}
	var with string
	var given pipeline.Target = pipeline.TargetFunc(unknownAgain)
	if o.call.Noted(messages.NoteRanWith, &with) && with == requestSum(o.call) {
		given = pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
			return first.repeat(c)
		})
	}
	return pipeline.RunTarget(context.WithoutCancel(ctx), given, o.call, nil), true
}

// recorded reads what came of the last work from its record. What cannot be read is a result that says so; ran is false
// where the record says that the work did nothing.
func (t *targets) recorded(ctx context.Context, o *owned) (first *result, ran bool) {
	unknown := &result{call: &messages.Call{Fault: unknownFault(o.call)}}
	ctx = context.WithoutCancel(ctx)
	st, payload := t.n.begun.do(ctx, o.tenant, protocol.Effect{Kind: protocol.GetBegun, Call: o.id, N: o.run.last}, nil)
	switch {
	case st.Result != protocol.OK:
		return unknown, true
	case st.Record.State == protocol.NotRun || st.Record.State == protocol.Void:
		return nil, false
	case st.Record.State != protocol.Done:
		return unknown, true
	}
	ctx, cancel := context.WithTimeout(ctx, objectTime)
	defer cancel()
	first, err := t.n.codec.decodeResult(ctx, payload)
	if err != nil {
		t.n.log.Warn("what came of a target cannot be read again", "call", o.id, "err", err)
		return unknown, true
	}
	return first, true
}

func unknownAgain(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
	return messages.NewFault(messages.OutcomeUnknown, "the %s has run for this call already, with other arguments, and "+
		"may not run twice, so it did not run again", c.Kind)
}

// ofTarget are the notes that belong to a result.
var ofTarget = []string{messages.NoteToolStarted, messages.NoteIsError, messages.NoteStructured, messages.NoteMetadata,
	messages.NoteStreamShown}

// repeat gives the result to a call that had it before: what stages have noted since stays.
func (r *result) repeat(c *messages.Call) error {
	for _, key := range ofTarget {
		c.Unnote(key)
		if v, ok := r.call.Notes[key]; ok {
			c.Note(key, v)
		}
	}
	if r.call.Fault != nil {
		return r.call.Fault
	}
	c.ReplyFrom(r.call)
	return nil
}

// requestSum is the same for requests that say the same.
func requestSum(c *messages.Call) string {
	raw, err := rawjson.Canonical(c.Request())
	if err != nil {
		raw = c.Request()
	}
	return digest(c.Tenant, raw)
}
