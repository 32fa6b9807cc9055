package pipeline

import (
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
)

// The targets of a jump.
const (
	JumpModel = "model" // the run asks its model next
	JumpTool  = "tool"  // the run calls the tools that the last assistant message asks for
	JumpEnd   = "end"   // the run ends
)

// judgeJump turns a jump into the verdict that carries it out. In a model call of a run the loop is told by a note
// where to go on. Everywhere else only an end is possible: Answer if there is a reply, Stop if not.
func judgeJump(s Stage, phase messages.Phase, c *messages.Call, v Verdict) (Verdict, error) {
	inRun := c.Kind == messages.Model && c.Run != ""
	switch {
	case !slices.Contains(s.Jumps, v.target):
		return refuse(s, "invalid jump target %q; declared: [%s]", v.target, strings.Join(s.Jumps, ", "))
	case inRun:
		c.Note(messages.NoteJumpTo, v.target)
	case c.Kind == messages.Agent && phase == messages.Before && v.target != JumpEnd:
		c.Note(messages.NoteJumpTo, v.target) // where the loop begins
		return Continue(), nil
	case c.Kind == messages.Agent && v.target != JumpEnd:
		return refuse(s, "jump to %q after the run has ended; only end is possible there", v.target)
	case v.target != JumpEnd:
		return refuse(s, "jump to %q needs the agent loop; in a bare %s call only end is possible", v.target, c.Kind)
	}
	switch {
	case phase == messages.After:
		return Continue(), nil
	case c.HasReply():
		return Answer(), nil
	default:
		return Stop(), nil
	}
}
