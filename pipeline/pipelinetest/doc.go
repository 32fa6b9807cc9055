// Package pipelinetest holds the suites that every implementation of a seam must pass, and fakes for tests.
//
//   - [Runner] is the suite of a [pipeline.Caller]: pipeline.Local and the bus pass the same cases.
//   - [Store] is the suite of a [pipeline.Store].
//   - [Stage] runs one phase of a stage twice, each time over the wire form, as a redelivery would.
//
// The suites know nothing of how a call is carried. Stages and targets of the [Fixtures] keep no state in the process:
// they read their script from the request and leave their trace in the call's notes, so they may run in other
// processes, found there by the fixture's name.
package pipelinetest
