package calls

import (
	"slices"

	"github.com/shallot-nats/shallot/messages"
)

// redactorNames are the stages that take personal data out of a call.
var redactorNames = []string{"pii", "tool-pii"}

// redactorOf is the place on the call's way of the stage that takes personal data out; -1 if there is none.
func redactorOf(c *messages.Call) int {
	return slices.IndexFunc(c.Slip.Stops, func(s messages.Stop) bool { return slices.Contains(redactorNames, s.Name) })
}

// changes is what a phase changed of the call's bodies.
func (w *watch) changes(c *messages.Call, stage string, phase messages.Phase) (out []Change) {
	request, reply := c.Request(), c.Reply()
	if w.explain {
		out = append(w.diff(nil, messages.RequestBody, w.request, request, c, stage, phase),
			w.diff(nil, messages.ReplyBody, w.reply, reply, c, stage, phase)...)
	}
	w.request, w.reply = request, reply
	return out
}

func (w *watch) diff(out []Change, body string, was, now []byte, c *messages.Call, stage string,
	phase messages.Phase) []Change {
	if same(was, now) {
		return out
	}
	if len(was)+len(now) > mostDiff && !c.Explain {
		return append(out, Change{Body: body, Op: "set", Was: len(was), Now: len(now)})
	}
	for _, ch := range messages.Changes(was, now) {
		one := Change{Body: body, Op: ch.Op, At: ch.At, Was: len(ch.Was), Now: len(ch.Now)}
		if w.texts && w.redacted(c, stage, phase) && w.values+len(ch.Now) <= mostValues {
			w.values += len(ch.Now)
			one.Value = ch.Now
		}
		out = append(out, one)
	}
	return out
}

// same reports whether two bodies are the same bytes in memory: bodies are never changed, only replaced.
func same(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// redacted reports whether what the phase left behind has passed the stage that takes personal data out, where that is
// on the call's way. Stages outside of it see the call as its caller does.
func (w *watch) redacted(c *messages.Call, stage string, phase messages.Phase) bool {
	if w.redactor < 0 {
		return true
	}
	i := slices.IndexFunc(c.Slip.Stops, func(s messages.Stop) bool { return s.Name == stage })
	switch {
	case i < 0:
		return false
	case slices.Contains(redactorNames, stage):
		return phase == messages.Before
	}
	return i > w.redactor
}
