package pipeline

import (
	"encoding/json"
	"time"
)

// Verdict is what a phase decides. The constructors below are all there are. The zero value is not a verdict: a phase
// that returns it fails with stage_error.
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

// String returns the name of the verdict's constructor.
func (v Verdict) String() string { return verdictNames[v.kind] }

// Continue passes the call on: inward from before, outward from after.
func Continue() Verdict { return Verdict{kind: goOn} }

// Answer turns the call round with the reply that the stage has set. Only a before may return it. The afters of the
// stages already passed run; the stage's own after does not.
func Answer() Verdict { return Verdict{kind: answer} }

// Stop turns the call round without a reply; the call gets the fault stopped. Only a before may return it.
func Stop() Verdict { return Verdict{kind: stop} }

// Again runs the inner stages and the target again after delay, with the request as it was when the call passed this
// stage. Only the after of a stage that declares Keep may return it. The NATS server keeps the delayed call, so no
// process waits for it.
func Again(delay time.Duration) Verdict { return Verdict{kind: again, delay: delay} }

// AgainWith is Again with another request for this one attempt. The kept request does not change.
func AgainWith(delay time.Duration, request []byte) Verdict {
	return Verdict{kind: again, delay: delay, request: request}
}

// Hold parks the call durably until a person answers the question, at most for [HoldTime].
func Hold(question json.RawMessage) Verdict { return Verdict{kind: hold, question: question} }

// HoldFor is Hold with its own time limit, after which the call ends with the fault blocked. 0 means [HoldTime].
//
// The deadline of a held call is suspended: after the answer the call has as much time as it had left before. The phase
// that held it then runs again and finds the answer in the note [messages.NoteAnswer], which is removed when the phase
// has decided.
func HoldFor(question json.RawMessage, expires time.Duration) Verdict {
	return Verdict{kind: hold, question: question, delay: expires}
}

// HoldTime is how long a question may wait if its stage does not say.
const HoldTime = 72 * time.Hour

// Jump goes to model, tool or end; the stage must declare the target. Outside the agent loop, end acts as Answer if a
// reply is set and as Stop if not; the other targets are a stage_error.
func Jump(target string) Verdict { return Verdict{kind: jump, target: target} }

// Question is what a Hold asks.
func (v Verdict) Question() json.RawMessage { return v.question }

// Target is where a Jump goes.
func (v Verdict) Target() string { return v.target }

// Delay is how long an Again waits.
func (v Verdict) Delay() time.Duration { return v.delay }

// Request is the request of an AgainWith; nil otherwise.
func (v Verdict) Request() []byte { return v.request }
