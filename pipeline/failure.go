package pipeline

import (
	"fmt"

	"github.com/shallot-nats/shallot/messages"
)

// failure is an error that decides itself what happens to the call.
type failure struct {
	error
	open bool
}

func (f *failure) Unwrap() error { return f.error }

// Open marks an error that is only recorded in the stage's statistics: from before and from after, the call goes on as
// if the phase had returned Continue. The phase must leave the call unchanged.
func Open(err error) error { return &failure{err, true} }

// Closed marks an error that becomes the call's fault even from after, whether the stage fails closed or not: an answer
// that is not a verdict, or a failure of a stage that the call must not go without.
func Closed(err error) error { return &failure{err, false} }

// Absent is the error of a stage whose work a program elsewhere does, when that program is not running: nothing has
// been done. The bus waits for the program as for a stage that no process serves, or skips the stage if that is
// allowed; without a bus it is the fault stage_absent.
type Absent struct {
	Stage string
	// Subject is where the program would answer.
	Subject string
}

// Error returns the text of the fault stage_absent.
func (a *Absent) Error() string { return a.fault().Message }

// Unwrap returns the fault stage_absent.
func (a *Absent) Unwrap() error { return a.fault() }

func (a *Absent) fault() *messages.Fault {
	return messages.NewFault(messages.StageAbsent, "%s", AbsentText(a.Stage, a.Subject)).From(a.Stage)
}

// AbsentText is the message of stage_absent: which program is missing, and what to do.
func AbsentText(stage, subject string) string {
	return fmt.Sprintf("the program of remote stage %s does not run: nobody answers on %s; start it, or take "+
		"the stage off the route", stage, subject)
}
