// Package protocol decides how calls are carried over NATS: which member is asked and when it is asked again, where
// target work is offered, what must never run twice, who owns a stored call, and how a call ends once.
//
// It only decides. It knows no NATS, no clock, no goroutine and no randomness: events go in as method calls, effects
// come out as values, and whoever carries them out (pipeline/bus) reports what came of them. So the whole protocol
// runs in a simulation with simulated time (sim_test.go).
//
// There are two aggregates, one of each a process: [Owner] runs calls and [Member] serves stages and targets. Neither
// is safe for concurrent use; the bus guards each by one mutex, held only while a method runs.
//
// Time is a [time.Duration] since the Unix epoch: the wall clock as the process read it at its start plus monotonic
// time since, so that it never goes back. Methods take it as now. Clocks of other processes may differ.
//
// Methods append effects to a slice that the caller hands in and return it, as append does. The methods of the path
// that every call takes (Owner.Ask, Owner.Answered, Member.Question, Member.Answered) return none and do not allocate.
//
// docs/protocol.md describes the protocol in full.
package protocol
