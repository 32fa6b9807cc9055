package pipelinetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// Script says what each phase does at its n-th run in one call: the keys are marks ("A.b", "A.a", "T"), the values the
// acts in order. A phase beyond the end of its list, or without one, does [ActContinue].
type Script map[string][]Act

// Act is what a scripted phase does.
type Act string

// The acts. In a phase that may not return their verdict, ActAnswer, ActStop and ActAgain are tests of invalid
// verdicts.
const (
	ActContinue Act = "continue"
	// before: appends its letter to the request's list "edits"; after: to the reply's text
	ActEdit        Act = "edit"
	ActAnswer      Act = "answer"       // sets the reply "by <letter>" and answers
	ActAnswerEmpty Act = "answer-empty" // answers without a reply
	ActStop        Act = "stop"
	ActAgain       Act = "again"
	ActAgainLater  Act = "again-later"  // after 60 ms
	ActAgainNever  Act = "again-never"  // after an hour
	ActAgainWith   Act = "again-with"   // with model m2 for this one attempt
	ActError       Act = "error"        // an error that is not a fault
	ActFault       Act = "fault"        // the fault blocked; at the target provider_limited
	ActRethrow     Act = "rethrow"      // after: the call's fault as an error of its own
	ActHalf        Act = "half"         // after: edits the reply, then fails
	ActDrop        Act = "drop"         // after: removes the reply and continues
	ActPanic       Act = "panic"        //
	ActZero        Act = "zero"         // the zero verdict
	ActJumpEnd     Act = "jump-end"     // declared
	ActJumpNowhere Act = "jump-nowhere" // not declared
	ActNothing     Act = "nothing"      // target: neither a reply nor a fault
	ActOwnFault    Act = "own-fault"    // target: sets a fault without an origin itself
	ActWait        Act = "wait"         // until the context ends
)

// Shape says which phases a scripted stage has and what it declares.
type Shape struct {
	Name                            string // its first letter, in upper case, is its letter in marks
	Order                           int
	Before, After, Keep, FailClosed bool
}

// Letter is the stage's letter in marks.
func (s Shape) Letter() string { return strings.ToUpper(s.Name[:1]) }

// Stage makes the stage of a shape.
func (s Shape) Stage(kind messages.Kind) pipeline.Stage {
	st := pipeline.Stage{Name: s.Name, Kind: kind, Order: s.Order, Keep: s.Keep, FailClosed: s.FailClosed,
		Jumps: []string{"end"}, Rewrites: s.After, Reads: []string{"request", "reply"}}
	if s.Before {
		st.Before = func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
			return before(ctx, c, s.Letter(), play(c, s.Letter()+".b"))
		}
	}
	if s.After {
		st.After = func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
			return after(ctx, c, s.Letter(), play(c, s.Letter()+".a"))
		}
	}
	return st
}

// Stages makes the stages of shapes.
func Stages(kind messages.Kind, shapes ...Shape) []pipeline.Stage {
	out := make([]pipeline.Stage, len(shapes))
	for i, s := range shapes {
		out[i] = s.Stage(kind)
	}
	return out
}

const traceNote = "test.trace"

// Mark appends to the trace that travels in the call's notes.
func Mark(c *messages.Call, mark string) { c.Note(traceNote, append(Trace(c), mark)) }

// Trace returns the marks in the order in which they were made.
func Trace(c *messages.Call) []string {
	var t []string
	c.Noted(traceNote, &t)
	return t
}

// play marks the phase and returns its act. The n-th mark gets the n-th act, so that the process need not count.
func play(c *messages.Call, mark string) Act {
	n := 0
	for _, m := range Trace(c) {
		if m == mark {
			n++
		}
	}
	Mark(c, mark)
	raw, _ := rawjson.Field(c.Request(), "script")
	var s Script
	if json.Unmarshal(raw, &s) != nil || n >= len(s[mark]) {
		return ActContinue
	}
	return s[mark][n]
}

func before(ctx context.Context, c *messages.Call, letter string, act Act) (pipeline.Verdict, error) {
	switch act {
	case ActEdit:
		raw, _ := rawjson.Field(c.Request(), "edits")
		edits := append(rawjson.Elements(raw), rawjson.Encode(letter))
		c.SetRequest(rawjson.SetField(c.Request(), "edits", rawjson.Array(edits)))
	case ActAnswer:
		c.SetReply(rawjson.SetFieldString([]byte(`{}`), "text", "by "+letter))
	}
	return verdict(ctx, letter, act)
}

func after(ctx context.Context, c *messages.Call, letter string, act Act) (pipeline.Verdict, error) {
	text, _ := rawjson.FieldString(c.Reply(), "text")
	switch {
	case act == ActEdit && c.HasReply():
		c.SetReply(rawjson.SetFieldString(c.Reply(), "text", text+"+"+letter))
	case act == ActHalf:
		c.SetReply([]byte(`{"text":"half made"}`))
		return pipeline.Verdict{}, errors.New("broke half way")
	case act == ActDrop:
		c.DropReply()
	case act == ActRethrow && c.Fault != nil:
		return pipeline.Verdict{}, fmt.Errorf("stage %s: %w", letter, c.Fault)
	case act == ActAgainWith:
		return pipeline.AgainWith(0, rawjson.SetFieldString(c.Request(), "model", "m2")), nil
	}
	return verdict(ctx, letter, act)
}

func verdict(ctx context.Context, letter string, act Act) (pipeline.Verdict, error) {
	switch act {
	case ActAnswer, ActAnswerEmpty:
		return pipeline.Answer(), nil
	case ActStop:
		return pipeline.Stop(), nil
	case ActAgain:
		return pipeline.Again(0), nil
	case ActAgainLater:
		return pipeline.Again(60 * time.Millisecond), nil
	case ActAgainNever:
		return pipeline.Again(time.Hour), nil
	case ActError:
		return pipeline.Verdict{}, errors.New("broke")
	case ActFault:
		return pipeline.Verdict{}, messages.NewFault(messages.Blocked, "not allowed").At("messages")
	case ActPanic:
		panic("scripted panic of " + letter)
	case ActZero:
		return pipeline.Verdict{}, nil
	case ActJumpEnd:
		return pipeline.Jump("end"), nil
	case ActJumpNowhere:
		return pipeline.Jump("nowhere"), nil
	case ActWait:
		<-ctx.Done()
		return pipeline.Verdict{}, fmt.Errorf("waited: %w", ctx.Err())
	}
	return pipeline.Continue(), nil
}

// ScriptedTarget replies {"text":"T","model":<the request's>,"edits":<the request's>}, or does what the script says.
func ScriptedTarget() pipeline.Target {
	return pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, _ pipeline.Emit) error {
		switch play(c, "T") {
		case ActError:
			return errors.New("target broke")
		case ActFault:
			f := messages.NewFault(messages.ProviderLimited, "slow down")
			f.Status, f.RetryAfter, f.Headers = 429, 2*time.Second, map[string]string{"x-ratelimit-remaining": "0"}
			return fmt.Errorf("upstream: %w", f)
		case ActPanic:
			panic("scripted panic of the target")
		case ActNothing:
			return nil
		case ActOwnFault:
			c.Fail(messages.NewFault(messages.ProviderError, "upstream broke"))
			return nil
		case ActWait:
			<-ctx.Done()
			return fmt.Errorf("read: %w", ctx.Err())
		}
		reply := []byte(`{"text":"T"}`)
		for _, key := range []string{"model", "edits"} {
			if raw, ok := rawjson.Field(c.Request(), key); ok {
				reply = rawjson.SetField(reply, key, raw)
			}
		}
		c.SetReply(reply)
		return nil
	})
}
