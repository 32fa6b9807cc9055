package pipelinetest

import "github.com/shallot-nats/shallot/messages"

// Want is the expected result of a scripted call.
type Want struct {
	Trace  []string
	Text   string        // of the reply, if there is one
	Code   messages.Code // of the fault, if there is one
	Origin string
	// Stopper is the stage whose before ended the last attempt; empty if the target ran.
	Stopper string
	Tries   int // runs of the target
	Tally   map[string]Count
}

// Count is what one stage's counters must grow by: frames closed, and those of them with an error.
type Count struct{ Closed, Errors int64 }

// Expect works out the expected result of a script by recursion: each stage surrounds the rest, as middleware does. It
// shares no code with Advance and Step, so the two can be compared.
func Expect(shapes []Shape, script Script) Want {
	o := &oracle{shapes: shapes, script: script, want: Want{Tally: map[string]Count{}}}
	out := o.inward(0)
	o.want.Text, o.want.Code, o.want.Origin = out.text, out.code, out.origin
	return o.want
}

type oracle struct {
	shapes []Shape
	script Script
	want   Want
}

type ending struct {
	text   string
	code   messages.Code
	origin string
}

func (e ending) reply() bool { return e.code == "" }

func (o *oracle) play(mark string) Act {
	n := 0
	for _, m := range o.want.Trace {
		if m == mark {
			n++
		}
	}
	o.want.Trace = append(o.want.Trace, mark)
	if n < len(o.script[mark]) {
		return o.script[mark][n]
	}
	return ActContinue
}

func (o *oracle) closeFrame(s Shape, failed bool) {
	c := o.want.Tally[s.Name]
	c.Closed++
	if failed {
		c.Errors++
	}
	o.want.Tally[s.Name] = c
}

func (o *oracle) target() ending {
	o.want.Tries++
	switch o.play("T") {
	case ActError, ActPanic, ActNothing:
		return ending{code: messages.Internal, origin: messages.TargetOrigin}
	case ActFault:
		return ending{code: messages.ProviderLimited, origin: messages.TargetOrigin}
	case ActOwnFault:
		return ending{code: messages.ProviderError, origin: messages.TargetOrigin}
	}
	return ending{text: "T"}
}

func (o *oracle) inward(i int) ending {
	if i == len(o.shapes) {
		return o.target()
	}
	s := o.shapes[i]
	if s.Before {
		out, failed := ending{origin: s.Name}, true
		switch o.play(s.Letter() + ".b") {
		case ActAnswer:
			out, failed = ending{text: "by " + s.Letter()}, false
		case ActStop, ActJumpEnd:
			out.code, failed = messages.Stopped, false
		case ActFault:
			out.code = messages.Blocked
		case ActError, ActPanic, ActZero, ActJumpNowhere, ActAnswerEmpty, ActAgain, ActAgainLater:
			out.code = messages.StageError
		default:
			out.origin = ""
		}
		if out != (ending{}) {
			o.closeFrame(s, failed)
			o.want.Stopper = s.Name
			return out
		}
	}
	for {
		out := o.inward(i + 1)
		if !s.After {
			o.closeFrame(s, false)
			return out
		}
		act := o.play(s.Letter() + ".a")
		if s.Keep && (act == ActAgain || act == ActAgainLater || act == ActAgainWith) {
			o.closeFrame(s, false)
			o.want.Stopper = ""
			continue
		}
		return o.outward(s, act, out)
	}
}

func (o *oracle) outward(s Shape, act Act, out ending) ending {
	failed, refused, code := false, false, messages.StageError
	switch act {
	case ActEdit:
		if out.reply() {
			out.text += "+" + s.Letter()
		}
	case ActError, ActPanic, ActHalf:
		failed = true
	case ActFault:
		failed, code = true, messages.Blocked
	case ActRethrow:
		failed = !out.reply()
	case ActDrop:
		refused = out.reply()
	case ActZero, ActJumpNowhere, ActAnswer, ActAnswerEmpty, ActStop, ActAgain, ActAgainLater, ActAgainWith:
		refused = true
	}
	if out.reply() && (refused || failed && s.FailClosed) {
		out = ending{code: code, origin: s.Name}
	}
	o.closeFrame(s, failed || refused)
	return out
}
