package pipeline

import (
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
)

// Observer is told of the calls that this process owns: for what is kept of them, for counters and traces. Nothing that
// it does changes what a caller gets. It is called for many calls at once; its methods and those of its watches run in
// the goroutines of the calls, so they must be quick and wait for nothing.
type Observer interface {
	// Owns is told that this process runs the call from now on, and returns who watches it; nil: nobody. It may set
	// c.Trace, and must change nothing else.
	Owns(c *messages.Call, o Ownership) Watch
}

// Ownership says how a call came to the process that runs it.
type Ownership struct {
	// Durable says that the call is stored.
	Durable bool
	// Again says that it has been owned before: it was delivered again, handed over, or goes on after a hold.
	Again bool
}

// Watch is told what happens to one call, in its order. It must not change the call, except for [Watch.Target].
type Watch interface {
	// Ran is told of a phase that has run, or was skipped; the call has moved on already.
	Ran(c *messages.Call, r PhaseRun)
	// Target is told that the call is back from its target. It may leave a note in the call.
	Target(c *messages.Call, r TargetRun)
	// Left is told that the call is this process's no more. It is the last that is told.
	Left(c *messages.Call, how Departure)
}

// PhaseRun is a phase as the owner of the call saw it.
type PhaseRun struct {
	Report
	// Began is when the owner turned to the phase, Elapsed how long it waited for its end: Report.Took and the way there
	// and back.
	Began   time.Time
	Elapsed time.Duration
	// Skipped says that nobody served the stage, and the call went on without it.
	Skipped bool
}

// TargetRun is a run of the target as the owner of the call saw it. What came of it is in the call.
type TargetRun struct {
	// Facts are what whoever ran the target says of it; the zero value if nothing is known.
	Facts messages.TargetRun
	// Class is the class of work, Member the process that did it; empty if it is not known.
	Class, Member string
	// Began is when the owner turned to the target, Elapsed how long it waited, in line too.
	Began   time.Time
	Elapsed time.Duration
	// First is when the first piece of a streamed reply came to who follows the call, counted from Began; 0: none came.
	First time.Duration
	// Model and Usage are what the reply of a model says of who answered, and what it cost.
	Model string
	Usage chat.Usage
	// Err is set where the wait ended before the target did: the call's time was over, or its caller left.
	Err error
}

// Departure is how a call leaves the process that owned it.
type Departure uint8

// The departures.
const (
	Ended  Departure = iota + 1 // it has its reply or its fault
	Parked                      // it waits for an answer
	Moved                       // another process goes on with it
)

// String returns ended, parked or moved.
func (d Departure) String() string { return [...]string{"", "ended", "parked", "moved"}[d] }

// Observers tells all of them, in their order.
type Observers []Observer

// Owns implements [Observer].
func (o Observers) Owns(c *messages.Call, how Ownership) Watch {
	var all watches
	for _, one := range o {
		if w := one.Owns(c, how); w != nil {
			all = append(all, w)
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

type watches []Watch

func (all watches) Ran(c *messages.Call, r PhaseRun) {
	for _, w := range all {
		w.Ran(c, r)
	}
}

func (all watches) Target(c *messages.Call, r TargetRun) {
	for _, w := range all {
		w.Target(c, r)
	}
}

func (all watches) Left(c *messages.Call, how Departure) {
	for _, w := range all {
		w.Left(c, how)
	}
}
