package pipeline

import (
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// Bounds on one call, so that a stage that always says Again cannot loop for ever. A call that exceeds one ends with
// the fault internal.
const (
	MaxAttempts = 100  // of one frame
	MaxHops     = 2000 // phases over all attempts
)

// Where is the place that a call goes to next.
type Where int

// The places.
const (
	ToStage  Where = iota // the phase that the slip names
	ToTarget              // the target
	ToReply               // the caller
	ToHold                // parked until it is answered
)

// Next is the decision of Advance.
type Next struct {
	Where Where
	// Delay is how long the call waits before it goes there.
	Delay time.Duration
	// Passed lists the stops that the call passed inward in this step and that keep the request.
	Passed []string
	// Question is what a Hold asks, Expires how long it may wait for an answer.
	Question []byte
	Expires  time.Duration
	// Loop says that a bound was hit; the caller of Advance makes it the fault internal.
	Loop bool
}

// Enter puts a fresh slip at its first before, or at the target if there is none.
func Enter(s messages.Slip) (messages.Slip, Next) {
	s.At, s.Back = -1, false
	return forward(s, 0)
}

// Advance makes every routing decision: given where the call is and what the phase there decided, it returns the new
// slip and the next place. It is pure: it does not change its arguments, and it knows neither stages nor bodies.
//
// At the target the verdict is Continue, whatever the target's outcome: replies and faults take the same way back.
func Advance(s messages.Slip, v Verdict) (messages.Slip, Next) { return advance(s.Clone(), v) }

// advance is Advance for a slip that nobody else has: it changes what s refers to.
func advance(s messages.Slip, v Verdict) (messages.Slip, Next) {
	s.Hops++
	switch {
	case s.Done():
		return s, Next{Where: ToReply}
	case s.AtTarget():
		return backward(s)
	case s.Back:
		return advanceAfter(s, v)
	default:
		return advanceBefore(s, v)
	}
}

func advanceBefore(s messages.Slip, v Verdict) (messages.Slip, Next) {
	if s.At < 0 {
		return forward(s, 0)
	}
	switch v.kind {
	case hold:
		return s, Next{Where: ToHold}
	case goOn:
		o := s.TakeOpening()
		s.Frames = append(s.Frames, messages.Frame{Stop: s.At, Attempt: 1, State: s.Scratch, Nanos: o.Nanos,
			Err: o.Err})
		s.Scratch = nil
		passed := s.At
		out, next := forward(s, s.At+1)
		if s.Stops[passed].Keep {
			next.Passed = append([]string{s.Stops[passed].Name}, next.Passed...)
		}
		return out, next
	default: // answer, stop, error: turn round; this stage's own after does not run
		o := s.TakeOpening()
		tally(&s.Stops[s.At], messages.Frame{Nanos: o.Nanos, Err: o.Err})
		s.Scratch = nil
		return backward(s)
	}
}

func advanceAfter(s messages.Slip, v Verdict) (messages.Slip, Next) {
	i := len(s.Frames) - 1
	if i < 0 || s.Frames[i].Stop != s.At {
		return backward(s) // this stage has no frame to close
	}
	switch v.kind {
	case hold:
		return s, Next{Where: ToHold}
	case again:
		if s.Frames[i].Attempt >= MaxAttempts || s.Hops >= MaxHops {
			tally(&s.Stops[s.At], s.Frames[i])
			s.Frames = s.Frames[:i]
			out, next := backward(s)
			next.Loop = true
			return out, next
		}
		f := s.Frames[i]
		tally(&s.Stops[s.At], f) // Again closes this invocation and opens the next
		s.Frames[i] = messages.Frame{Stop: f.Stop, Attempt: f.Attempt + 1, State: f.State}
		s.Back = false
		out, next := forward(s, s.At+1)
		next.Delay = v.delay
		return out, next
	default:
		tally(&s.Stops[s.At], s.Frames[i])
		s.Frames = s.Frames[:i]
		return backward(s)
	}
}

// forward finds the next before from stop i on; stages without one are passed and get their frame here.
func forward(s messages.Slip, i int) (messages.Slip, Next) {
	var passed []string
	s.Back = false
	for ; i < len(s.Stops); i++ {
		if s.Stops[i].Before {
			s.At = i
			return s, Next{Where: ToStage, Passed: passed}
		}
		s.Frames = append(s.Frames, messages.Frame{Stop: i, Attempt: 1})
		if s.Stops[i].Keep {
			passed = append(passed, s.Stops[i].Name)
		}
	}
	s.At = len(s.Stops)
	return s, Next{Where: ToTarget, Passed: passed}
}

// backward finds the next after among the open frames, innermost first, and closes the frames that have none.
func backward(s messages.Slip) (messages.Slip, Next) {
	s.Back = true
	for i := len(s.Frames) - 1; i >= 0; i-- {
		f := s.Frames[i]
		if s.Stops[f.Stop].After {
			s.Frames = s.Frames[:i+1]
			s.At = f.Stop
			return s, Next{Where: ToStage}
		}
		tally(&s.Stops[f.Stop], f)
		s.Frames = s.Frames[:i]
	}
	s.At = -1
	return s, Next{Where: ToReply}
}

func tally(stop *messages.Stop, f messages.Frame) {
	stop.Tally.Count++
	stop.Tally.Nanos += f.Nanos
	if f.Err != "" {
		stop.Tally.Errors++
		stop.Tally.Err = f.Err
	}
}
