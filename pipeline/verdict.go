package pipeline

import (
	"encoding/json"
	"time"
)

// Verdict is what a phase decides. The constructors below are the whole vocabulary; the zero value is no verdict and
// becomes a stage_error (CH-21).
type Verdict struct {
	kind     verdictKind
	delay    time.Duration
	request  []byte
	question json.RawMessage
	target   string
}

type verdictKind int

const (
	unknown verdictKind = iota
	goOn
	answer
	stop
	again
	hold
	jump
	failed // made by Step, never by a stage
)

var verdictNames = [...]string{"unknown", "Continue", "Answer", "Stop", "Again", "Hold", "Jump", "error"}

// String returns the verdict's name as design.md writes it.
func (v Verdict) String() string { return verdictNames[v.kind] }

// Continue passes the call on: inward from before, outward from after.
func Continue() Verdict { return Verdict{kind: goOn} }

// Answer turns the call round; the stage has set a reply. Only from before. The afters of the stages already passed
// run, its own does not.
func Answer() Verdict { return Verdict{kind: answer} }

// Stop is the documents' null (S0-CHAIN-6): the call turns round with no reply and the fault stopped.
func Stop() Verdict { return Verdict{kind: stop} }

// Again re-enters the inner stages after delay with the request as it was when this stage passed it (only from an
// after whose stage declares Keep). The delay is held by the server, never slept.
func Again(delay time.Duration) Verdict { return Verdict{kind: again, delay: delay} }

// AgainWith is Again with another request for this one attempt. What was kept stays as it is.
func AgainWith(delay time.Duration, request []byte) Verdict {
	return Verdict{kind: again, delay: delay, request: request}
}

// Hold parks the call durably until somebody answers the question, at most for [HoldTime].
func Hold(question json.RawMessage) Verdict { return Verdict{kind: hold, question: question} }

// HoldFor is Hold with a time of its own, after which the call ends with the fault blocked. 0 means [HoldTime].
//
// A held call's own clock stands still: once it is answered it has the time that it had left. The phase that held it
// runs again then and finds the answer in the note [messages.NoteAnswer], which is gone when the phase has decided.
func HoldFor(question json.RawMessage, expires time.Duration) Verdict {
	return Verdict{kind: hold, question: question, delay: expires}
}

// HoldTime is how long a question may wait whose stage names no time.
const HoldTime = 72 * time.Hour

// Jump goes to model, tool or end; only to targets that the stage declared (HK-9). Outside the agent loop end acts
// as Answer if a reply is set and as Stop if not; the others are a stage_error (contracts 15).
func Jump(target string) Verdict { return Verdict{kind: jump, target: target} }

// Question is what a Hold asks.
func (v Verdict) Question() json.RawMessage { return v.question }

// Target is where a Jump goes.
func (v Verdict) Target() string { return v.target }

// Delay is how long an Again waits.
func (v Verdict) Delay() time.Duration { return v.delay }

// Request is the request of an AgainWith; nil otherwise.
func (v Verdict) Request() []byte { return v.request }
