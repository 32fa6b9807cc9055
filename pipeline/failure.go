package pipeline

import (
	"fmt"

	"github.com/shallot-nats/shallot/messages"
)

// failure is an error that says itself what becomes of the call.
type failure struct {
	error
	open bool
}

func (f *failure) Unwrap() error { return f.error }

// Open marks an error that is recorded in the stage's statistics and does not touch the call: it goes on from before and
// from after as if the phase had said Continue. A phase that returns it has left the call as it was.
func Open(err error) error { return &failure{err, true} }

// Closed marks an error that becomes the call's fault from after too, whether the stage fails closed or not: an answer
// that is no verdict (CH-21), trouble of a stage that the call must not pass without.
func Closed(err error) error { return &failure{err, false} }

// Absent is the error of a stage whose work is done by a program elsewhere, where nobody is there to do it: nothing
// has been done. The bus waits for the program as for a stage that nobody serves, or skips the stage if it may be
// skipped; without a bus it is the fault stage_absent.
type Absent struct {
	Stage string
	// Subject is where the program would answer.
	Subject string
}

// Error is the fault's text.
func (a *Absent) Error() string { return a.fault().Message }

// Unwrap returns the fault stage_absent.
func (a *Absent) Unwrap() error { return a.fault() }

func (a *Absent) fault() *messages.Fault {
	return messages.NewFault(messages.StageAbsent, "%s", AbsentText(a.Stage, a.Subject)).From(a.Stage)
}

// AbsentText says whose program is missing and what to do.
func AbsentText(stage, subject string) string {
	return fmt.Sprintf("the program of remote stage %s does not run: nobody answers on %s; start it, or take the stage off the route", stage, subject)
}
