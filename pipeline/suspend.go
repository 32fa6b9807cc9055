package pipeline

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// suspension is the note of a target that waits for somebody.
type suspension struct {
	Question json.RawMessage `json:"question"`
	Expires  time.Duration   `json:"expires,omitempty"`
}

// Suspend says that the call's target cannot go on until somebody answers the question. The target then returns nil and
// leaves reply and fault alone. The call is parked as by [HoldFor], and no process holds it meanwhile. Then the target
// runs again from its beginning and finds the answer with [Answered]; what it has done so far it must know itself. If
// nobody answered in time it runs again too, and [UnansweredBy] says so.
func Suspend(c *messages.Call, question json.RawMessage, expires time.Duration) {
	c.Note(messages.NoteSuspended, suspension{question, expires})
}

// Answered returns the answer to the question of a suspended target; nil if there is none.
func Answered(c *messages.Call) json.RawMessage { return c.Notes[messages.NoteAnswer] }

// Unanswered says of a suspended target that runs again without an answer to which question there will be none, and
// why.
type Unanswered struct {
	Question json.RawMessage `json:"question"`
	Fault    *messages.Fault `json:"fault"`
}

// UnansweredBy returns it; false if the target was not suspended, or was answered.
func UnansweredBy(c *messages.Call) (u Unanswered, ok bool) {
	ok = c.Noted(messages.NoteUnanswered, &u)
	return u, ok
}

// suspended reports whether the target that has just run waits for an answer: then the call stays where it is.
func suspended(c *messages.Call) (next Next, ok bool) {
	var s suspension
	if c.HasReply() || c.Fault != nil || !c.Noted(messages.NoteSuspended, &s) {
		return Next{}, false
	}
	c.Slip.Tries-- // it has not come to its end
	return Next{Where: ToHold, Question: s.Question, Expires: cmp.Or(max(s.Expires, 0), HoldTime)}, true
}

// unsuspend removes what an earlier suspension has left, once the target has come to its end.
func unsuspend(c *messages.Call) {
	for _, key := range []string{messages.NoteSuspended, messages.NoteAnswer, messages.NoteUnanswered} {
		c.Unnote(key)
	}
}
